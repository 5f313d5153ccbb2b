// Serial ports and TCP only: links no OpenSSL and no zlib. Prints the first bytes that an endpoint sends.

import StreamBrokerCore

let broker = Broker([TTYConnector.self, TCPConnector.self])
let stream = try await broker.connect(CommandLine.arguments[1])
print(String(decoding: try await stream.read(), as: UTF8.self), terminator: "")
stream.close()
