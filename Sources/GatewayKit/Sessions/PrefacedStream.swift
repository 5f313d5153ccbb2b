// A client's stream while text of ours, a banner or the rest of a notice, is still to go out before anything else. It stands in
// front of the stream like any layer that holds a unit, so hubs, endings and lingering closes wait for the text as they do for
// a TLS record. Made only for a client whose socket did not take the text at once, which is hardly ever.

import ByteStreams
import Glibc
import StreamWebSocket

final class PrefacedStream: ByteStream, ByteStreamDelegate {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if stream.delegate == nil && delegate != nil { delegate = nil } }  // it is closed
  }

  var readerWaits: Readiness {
    get { stream.readerWaits }
    set { stream.readerWaits = newValue }
  }
  var writerWaits: Readiness = [] { didSet { if writerWaits != oldValue { askForSpace() } } }

  private let stream: any ByteStream
  private var text: ArraySlice<UInt8>
  /// The stream said that it took more than it was given. Whoever reads or writes next learns it.
  private var fault: InternalFault?

  /// Writes `text` to the client behind `stream`. Returns the stream to go on with, which keeps the order if he has not taken
  /// all of it: `stream` itself, or one in front of it.
  static func send(_ text: [UInt8], through stream: any ByteStream) -> any ByteStream {
    do throws(InternalFault) {
      let left = try write(text[...], to: stream)
      return left.isEmpty ? stream : PrefacedStream(stream, left)
    } catch {
      return PrefacedStream(stream, [], error)
    }
  }

  private init(_ stream: any ByteStream, _ text: ArraySlice<UInt8>, _ fault: InternalFault? = nil) {
    self.stream = stream
    self.text = text
    self.fault = fault
    stream.delegate = self
    askForSpace()
  }

  /// Writes what the stream takes of `text` and says what is left. Nothing when it broke: whoever reads from it learns that.
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

  private func askForSpace() { stream.writerWaits = text.isEmpty && fault == nil ? writerWaits : .writable }

  /// Lets a WebSocket's close frame say why.
  static func tell(_ ending: Ending, to stream: any ByteStream) {
    if let stream = stream as? WebSocketStream {
      stream.closing = WebSocketClose(ending)
    } else if let stream = stream as? PrefacedStream {
      tell(ending, to: stream.stream)
    }
  }

  // MARK: - A stream

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if let fault { throw fault }
    return try stream.read(into: run)
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    if let fault { throw fault }
    return text.isEmpty ? try stream.write(run) : .blocked(until: .writable)
  }

  func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer {
    if let fault { throw fault }
    return text.isEmpty ? try stream.write(together: runs) : .blocked(until: .writable)
  }

  var holdsBytes: Bool { stream.holdsBytes }
  var holdsUnit: Bool { !text.isEmpty || stream.holdsUnit }
  var unacknowledged: Int { text.count + stream.unacknowledged }
  var unread: Int? { stream.unread.map { text.count + $0 } }
  var largestUnit: Int { stream.largestUnit }
  var canHalfClose: Bool { stream.canHalfClose }
  var hasClosingHandshake: Bool { stream.hasClosingHandshake }
  var serialLine: (any SerialLine)? { stream.serialLine }
  var saysFarewell: Bool { stream.saysFarewell }
  func finishWriting() { stream.finishWriting() }
  func makeRoomForEnd() { stream.makeRoomForEnd() }

  func close() {
    stream.close()
    dismissDelegate()
  }

  func abort() {
    stream.abort()
    dismissDelegate()
  }

  // MARK: - What the stream tells

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
      stream.writerWaits = []  // told once
      delegate?.stream(self, handle: .hasBytesAvailable)
      return
    }
    askForSpace()
    if text.isEmpty && !writerWaits.isEmpty { delegate?.stream(self, handle: event) }
  }
}
