// Sends a line to the endpoint of a URL, and prints the answer.

import StreamBroker

let stream = try await Broker.standard.connect(CommandLine.arguments[1], timeout: .seconds(5))
try await stream.write(Array("hello\n".utf8))
let answer = try await stream.read(upTo: 100, within: .seconds(2))
stream.close()
print(String(decoding: answer, as: UTF8.self), terminator: "")
