// One connection to the admin listener after its log-in: reads the content of the request, lets an AnswerWriter write
// the response, and closes in order. Bounded in memory and in time, whatever the client sends or does not read.

import ByteStreams
import StreamBroker
import StreamWebSocket

final class AdminConnection: ByteStreamDelegate {
  let request: AdminRequest
  let caller: AdminCaller
  private let stream: any ByteStream
  private let poller: Poller
  private unowned let server: AdminServer  // owns this object
  private var content: [UInt8]
  private var writer: AnswerWriter?
  private var deadline: Timers.Token?
  private var isOver = false
  /// Bytes that came after the request.
  private var rest = 0

  /// For the content, from the log-in on.
  private static let contentLimit = Duration.seconds(10)
  /// Time in which the client must read at least a byte of the piece.
  private static let stallLimit = Duration.seconds(30)
  /// Time to make a piece: a reload waits for clients that drain, and for files on a network.
  private static let pieceLimit = Duration.seconds(60)
  private static let mostRest = 64 << 10
  /// For the whole response.
  private static let responseLimit = Duration.seconds(120)

  init(
    _ stream: any ByteStream, _ request: AdminRequest, _ caller: AdminCaller, on poller: Poller, of server: AdminServer
  ) {
    self.stream = stream
    self.request = request
    self.caller = caller
    self.poller = poller
    self.server = server
    content = request.early
  }

  /// Call it once. `refusal`: the response, whatever is asked.
  func begin(_ refusal: AdminRefusal? = nil) {
    stream.delegate = self
    if let refusal = refusal ?? request.objection(to: caller) { return respond(.whole(refusal.response)) }
    deadline = poller.timers.after(Self.contentLimit) { [weak self] in
      self?.respond(.whole(.problem(.requestTimeout, "The content did not arrive in time.")))
    }
    if request.expectsContinue, content.count < request.length {
      var word = Array("HTTP/1.1 100 Continue\r\n\r\n".utf8)
      let transfer = try? word.withUnsafeMutableBytes { try stream.write(UnsafeRawBufferPointer($0)) }
      // Its first bytes always fit into the socket.
      guard transfer == .moved(word.count) else { return close() }
    }
    readContent()
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable: if writer == nil { readContent() } else { readRest() }
    case .hasSpaceAvailable: writer?.write()
    case .errorOccurred, .endEncountered: close()
    case .openCompleted, .inputEnded: break
    }
  }

  // MARK: - The content

  private func readContent() {
    while content.count < request.length {
      var buffer = [UInt8](repeating: 0, count: min(request.length - content.count, 16 << 10))
      let transfer = try? buffer.withUnsafeMutableBytes {
        try stream.read(into: $0).checked(of: $0.count, at: "admin.read")
      }
      switch transfer {
      case .moved(let count)?: content += buffer.prefix(count)
      case .blocked(let wish)?:
        stream.readerWaits = wish
        return
      case .ended?, nil: return close()
      }
    }
    stream.readerWaits = []
    poller.timers.cancel(deadline)
    do throws(AdminRefusal) {
      if let action = try request.action(content) {
        server.backend.carryOut(action, for: caller) { [weak self] answer in self?.respond(answer) }
      } else if case .terminal(let route) = request.resource {
        server.giveTicket(for: route, to: caller) { [weak self] answer in self?.respond(answer) }
      } else if request.resource == .events {
        respond(server.eventStream(for: request, caller))
      } else {
        server.backend.answer(request, for: caller) { [weak self] answer in self?.respond(answer) }
      }
    } catch {
      respond(.whole(error.response))
    }
  }

  /// Reads and drops what comes after the request; the client's end ends an event stream.
  private func readRest() {
    let isOpen = withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 1) { scratch in
      switch try? stream.read(into: scratch).checked(of: scratch.count, at: "admin.rest") {
      case .moved(let count)?:
        rest += count
        return rest <= Self.mostRest
      case .blocked(let wish)?:
        stream.readerWaits = wish
        return true
      case .ended?, nil: return false
      }
    }
    if !isOpen { close() }
  }

  // MARK: - The response

  var isEventStream: Bool { request.resource == .events }

  private func respond(_ answer: AdminAnswer) {
    guard !isOver, writer == nil else { return }
    poller.timers.cancel(deadline)
    if isEventStream {
      // Its end must be noticed while there is nothing to write.
      stream.readerWaits = .readable
    } else {
      stream.readerWaits = []
      deadline = poller.timers.after(Self.responseLimit) { [weak self] in self?.close() }
    }
    let writer = AnswerWriter(
      to: stream, on: poller, stallLimit: Self.stallLimit, pieceLimit: isEventStream ? nil : Self.pieceLimit
    ) { [weak self] outcome in self?.responded(outcome) }
    self.writer = writer
    writer.send(AdminPieces(answer, to: request))
  }

  private func responded(_ outcome: AnswerWriter.Outcome) {
    guard outcome == .sent else { return close() }
    isOver = true
    poller.timers.cancel(deadline)
    server.part(from: self, stream)
  }

  /// Closes at once: after an error, or when the server stops.
  func close() {
    guard !isOver else { return }
    isOver = true
    poller.timers.cancel(deadline)
    writer?.stop()
    stream.close()
    server.ended(self)
  }
}
