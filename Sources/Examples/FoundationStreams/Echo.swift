// The classic: a delegate on a run loop. What does not fit into the stream stays in an out-buffer.

import Foundation
import StreamBrokerFoundation

final class Echo: NSObject, StreamDelegate {
  private let input: InputStream
  private let output: OutputStream
  private var outBuffer: Data
  private var received = Data()
  private var piece = [UInt8](repeating: 0, count: 4096)
  // The program ends with it.
  nonisolated(unsafe) private static var current: Echo?

  static func start(_ url: String) {
    Stream.pair(for: url, timeout: .seconds(10)) { result in
      switch result {
      case .success(let (input, output)): current = Echo(input, output)
      case .failure(let error): Program.fail(error.localizedDescription)
      }
    }
  }

  private init(_ input: InputStream, _ output: OutputStream) {
    (self.input, self.output) = (input, output)
    outBuffer = Program.sample
    super.init()
    for stream in [input, output] as [Stream] {
      stream.delegate = self
      stream.schedule(in: .current, forMode: .default)
      stream.open()
    }
  }

  func stream(_ aStream: Stream, handle eventCode: Stream.Event) {
    switch eventCode {
    case .hasSpaceAvailable: writeOut()
    case .hasBytesAvailable:
      let count = input.read(&piece, maxLength: piece.count)
      if count > 0 { received.append(contentsOf: piece[..<count]) }
      if received.count >= Program.sample.count { end() }
    case .errorOccurred: Program.fail(aStream.streamError?.localizedDescription ?? "an error")
    case .endEncountered: Program.fail("ended after \(received.count) bytes")
    default: break
    }
  }

  private func writeOut() {
    guard !outBuffer.isEmpty else { return }
    let count = outBuffer.withUnsafeBytes { bytes in
      output.write(bytes.bindMemory(to: UInt8.self).baseAddress!, maxLength: bytes.count)
    }
    if count > 0 { outBuffer = Data(outBuffer.dropFirst(count)) }
  }

  private func end() {
    let meta = input.meta
    input.close()
    output.close()
    Program.succeed(received, meta)
  }
}
