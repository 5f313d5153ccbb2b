// Reads values of a car's engine from an ELM327 adapter: over Bluetooth, USB or Wi-Fi, whatever the URL names.
//   obd2-reader rfcomm://00:0A:3A:22:68:73
//   obd2-reader 'tty:///dev/ttyUSB0?baud=38400'
//   obd2-reader tcp://192.168.0.10:35000 3          (three rounds, then it ends)

import Glibc
import StreamBroker
import StreamBrokerBluetooth

@main
struct OBDReader {
  static func main() async throws {
    let arguments = CommandLine.arguments
    guard (2...3).contains(arguments.count) else {
      print("usage: obd2-reader URL [ROUNDS]")
      exit(64)
    }
    let rounds = arguments.count == 3 ? Int(arguments[2]) ?? 1 : .max
    do {
      let broker = Broker(Schemes.standard + BluetoothSchemes.all)
      let adapter = ELM327(stream: try await broker.connect(arguments[1], timeout: .seconds(30)))
      print("adapter:", try await adapter.begin())
      for _ in 0..<rounds {
        for value in EngineValue.all { print("\(value.name):", await text(of: value, from: adapter)) }
        fflush(nil)
        try await Task.sleep(for: .milliseconds(200))
      }
    } catch {
      print("obd2-reader: \(error)")
      exit(1)
    }
  }

  /// A value that the car does not have, or an answer that is late, must not end the program.
  static func text(of value: EngineValue, from adapter: ELM327) async -> String {
    do {
      return "\(value.compute(try await adapter.bytes(of: value))) \(value.unit)"
    } catch {
      return "no value (\(error))"
    }
  }
}

/// A value of service 01 (SAE J1979): its number, its length in bytes, and how to compute it.
struct EngineValue: Sendable {
  let name: String, number: UInt8, length: Int, unit: String
  let compute: @Sendable ([UInt8]) -> Double

  static let all = [
    EngineValue(name: "engine speed", number: 0x0C, length: 2, unit: "rpm") {
      (Double($0[0]) * 256 + Double($0[1])) / 4
    },
    EngineValue(name: "vehicle speed", number: 0x0D, length: 1, unit: "km/h") { Double($0[0]) },
    EngineValue(name: "coolant", number: 0x05, length: 1, unit: "°C") { Double($0[0]) - 40 },
  ]
}

struct ELM327: Sendable {
  struct NoValue: Error { let answer: String }

  let stream: StreamHandle

  /// Resets the adapter and switches its echo off. Returns its name.
  func begin() async throws -> String {
    let name = try await ask("AT Z", within: .seconds(5))
    _ = try await ask("AT E0")
    return name
  }

  func bytes(of value: EngineValue) async throws -> [UInt8] {
    let answer = try await ask("01 " + String(Int(value.number) + 0x100, radix: 16, uppercase: true).dropFirst())
    let digits = Array(answer.filter(\.isHexDigit))
    let bytes = stride(from: 0, to: digits.count - 1, by: 2).compactMap {
      UInt8(String(digits[$0...$0 + 1]), radix: 16)
    }
    guard bytes.starts(with: [0x41, value.number]), bytes.count >= 2 + value.length else {
      throw NoValue(answer: answer)
    }
    return Array(bytes[2..<(2 + value.length)])
  }

  /// The text between the command and the prompt, on one line.
  func ask(_ command: String, within timeout: Duration = .seconds(2)) async throws -> String {
    // An answer that came too late is not this command's.
    while let late = try? await stream.read(within: .zero), !late.isEmpty {}
    try await stream.write(Array("\(command)\r".utf8), within: timeout)
    let answer = try await stream.read(until: Array(">".utf8), within: timeout)
    guard answer.last == UInt8(ascii: ">") else { throw SystemError("read", EPIPE) }  // the adapter is gone
    let lines = String(decoding: answer.dropLast(), as: UTF8.self).split { $0 == "\r" || $0 == "\n" || $0 == "\r\n" }
    return lines.filter { $0 != command }.joined(separator: " ")
  }
}
