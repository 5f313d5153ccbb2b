// A client's stream that must send text of ours first: a banner, or the rest of a notice. It is a layer that holds a
// unit, so hubs, endings and orderly closes wait for the text as for a TLS record. Made only if the socket did not take
// the text at once, which is very rare.

import ByteStreams
import Glibc
import StreamWebSocket

final class PrefacedStream: LayeredStream {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if below.delegate == nil && delegate != nil { delegate = nil } }  // it is closed
  }

  var writerWaits: Readiness = [] { didSet { if writerWaits != oldValue { askForSpace() } } }

  let below: any ByteStream
  private var text: ArraySlice<UInt8>
  /// The stream reported an impossible count. The next read or write throws this.
  private var fault: InternalFault?

  /// Writes `text` to the client of `stream`. Returns the stream to use from now on: `stream` itself, or if some of the
  /// text is left, a layer that sends that first.
  static func send(_ text: [UInt8], through stream: any ByteStream) -> any ByteStream {
    do throws(InternalFault) {
      let left = try write(text[...], to: stream)
      return left.isEmpty ? stream : PrefacedStream(stream, left)
    } catch {
      return PrefacedStream(stream, [], error)
    }
  }

  private init(_ stream: any ByteStream, _ text: ArraySlice<UInt8>, _ fault: InternalFault? = nil) {
    below = stream
    self.text = text
    self.fault = fault
    stream.delegate = self
    askForSpace()
  }

  /// Writes what the stream takes of `text`. Returns the rest; empty if the stream broke, since the next read reports
  /// that.
  static func write(
    _ text: ArraySlice<UInt8>, to stream: any ByteStream
  ) throws(InternalFault) -> ArraySlice<UInt8> {
    var text = text
    while !text.isEmpty {
      let transfer = text.withUnsafeBytes { try? stream.write($0) }
      switch try transfer?.checked(of: text.count, at: "preface.write") {
      case .moved(let count): text = text.dropFirst(count)
      case .blocked: return text
      case .ended, nil: return []
      }
    }
    return []
  }

  private func askForSpace() { below.writerWaits = text.isEmpty && fault == nil ? writerWaits : .writable }

  /// Sets the reason in a WebSocket's close frame.
  static func report(_ ending: Ending, to stream: any ByteStream) {
    if let stream = stream as? WebSocketStream {
      stream.closing = WebSocketClose(ending)
    } else if let stream = stream as? any LayeredStream {
      report(ending, to: stream.below)
    }
  }

  // MARK: - A stream

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if let fault { throw fault }
    return try below.read(into: run)
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    if let fault { throw fault }
    return text.isEmpty ? try below.write(run) : .blocked(until: .writable)
  }

  func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer {
    if let fault { throw fault }
    return text.isEmpty ? try below.write(together: runs) : .blocked(until: .writable)
  }

  var hasPendingOutput: Bool { !text.isEmpty || below.hasPendingOutput }
  var undelivered: UndeliveredOutput { below.undelivered.adding(text.count) }

  func close() {
    below.close()
    dismissDelegate()
  }

  func abort() {
    below.abort()
    dismissDelegate()
  }

  // MARK: - Events of the stream

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    guard event == .hasSpaceAvailable, !text.isEmpty || fault != nil else {
      delegate?.stream(self, handle: event)
      return
    }
    do throws(InternalFault) {
      text = try Self.write(text, to: stream)
    } catch {
      text = []
      fault = error
    }
    guard fault == nil else {
      stream.writerWaits = []  // report the fault once
      delegate?.stream(self, handle: .hasBytesAvailable)
      return
    }
    askForSpace()
    if text.isEmpty && !writerWaits.isEmpty { delegate?.stream(self, handle: event) }
  }
}
