// The library in twenty lines, without the gateway: says a line to whatever a URL names and prints the line that comes back.
//   stream-example 'ble://6E400001-B5A3-F393-E0A9-E50E24DCCA9E?name=test-nus' hello

import ByteStreams
import StreamBroker
import StreamBrokerBluetooth

@main
struct Example {
  static func main() async throws {
    guard CommandLine.arguments.count == 3 else { return print("usage: stream-example URL LINE") }
    try await ask(CommandLine.arguments[1], CommandLine.arguments[2], on: Lane("example"))
  }

  static func ask(_ url: String, _ line: String, on lane: isolated Lane) async throws {
    let stream = try await Broker(Schemes.standard + BluetoothSchemes.all).open(url, on: lane, timeout: .seconds(30))
    defer { stream.close() }
    try await stream.send(Array("\(line)\n".utf8))
    for try await chunk in stream.bytes {
      print(String(decoding: chunk, as: UTF8.self), terminator: "")
      if chunk.last == UInt8(ascii: "\n") { return }
    }
  }
}
