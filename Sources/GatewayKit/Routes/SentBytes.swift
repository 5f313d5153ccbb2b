// What the API sends to a device: the whole of a client that has only these bytes and leaves once they are delivered.
// What the device says to it is dropped.

import ByteStreams
import StreamBroker

final class SentBytes: TransportStream, PollHandler {
  var delegate: (any ByteStreamDelegate)?
  private let poller: Poller
  private var left: ArraySlice<UInt8>
  private var isClosed = false

  init(_ bytes: [UInt8], on poller: Poller) {
    left = bytes[...]
    self.poller = poller
  }

  var hasBufferedInput: Bool { !isClosed }
  var writerWaits: Readiness = []
  /// It is always readable, and no descriptor says so.
  var readerWaits: Readiness = [] { didSet { if !readerWaits.isEmpty, !isClosed { poller.again(self) } } }

  /// A client that leaves ends both directions. The reader gets the end of its input first.
  func read(into run: UnsafeMutableRawBufferPointer) -> Transfer {
    guard !left.isEmpty else {
      poller.nextRound(self)
      return .ended
    }
    let count = min(run.count, left.count)
    left.prefix(count).withUnsafeBytes { run.copyMemory(from: $0) }
    left.removeFirst(count)
    return .moved(count)
  }

  func write(_ run: UnsafeRawBufferPointer) -> Transfer { .moved(run.count) }

  func ready(_ events: PollEvents) {
    if !isClosed { delegate?.stream(self, handle: .endEncountered) }
  }

  func close() {
    isClosed = true
    dismissDelegate()
  }
}

extension Route {
  /// Calls `done` once the open port has taken all bytes, or takes no more of them.
  func send(
    _ bytes: [UInt8], from label: AcceptedConnection.Label,
    then done: @escaping (Result<JSONValue, LinkRefusal>) -> Void
  ) {
    guard stopping == nil else { return done(.failure(LinkRefusal("the route is stopping"))) }
    var label = label
    label.isRawTCP = false  // the caller means these bytes, also if they look like a request of HTTP
    var mayWrite = false
    let number = admit(SentBytes(bytes, on: poller), label) { [weak self] report in
      guard report.up < bytes.count else { return done(.success(.integer(report.up))) }
      let why = self?.objection(toBytesOf: report, mayWrite: mayWrite || report.up > 0) ?? "the route is stopping"
      done(.failure(LinkRefusal("\(report.up) of \(Figures.count(bytes.count, "byte")) were sent: \(why)")))
    }
    mayWrite = group.sessions.contains { $0.number == number && $0.up.mayWrite }
  }

  /// Why not all of its bytes were delivered.
  private func objection(toBytesOf report: SessionReport, mayWrite: Bool) -> String {
    if report.ending.word != .clientLeft {
      return report.ending.cause.map { "\($0)" } ?? report.ending.word.rawValue
    }
    if let status = group.sharedLink?.status, status != .open {
      return "the link is \(status.word)\(status.reason.map { ": \($0)" } ?? "")"
    }
    if mayWrite { return "the device takes no more" }
    return LineRights.noWriteRefusal(clients.writers)
  }
}
