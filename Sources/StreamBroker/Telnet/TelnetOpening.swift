// One opening of a telnet or RFC 2217 endpoint: connection, options, and with RFC 2217 the settings of the line. The
// settings are sent together, so they take one round trip. The broker's timeout limits the whole.

import ByteStreams
import StreamBrokerCore
import StreamTelnet

/// Kept by the connection and the caller, which may cancel it.
final class TelnetOpening: Opening, ByteStreamDelegate, PollHandler {
  private let target: TelnetTarget
  private let request: OpenRequest
  private let poller: Poller
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var connecting: (any Opening)?
  private var stream: TelnetStream?
  private var line: RemoteLine?
  private var hasBegunLine = false
  private var hasEnded = false
  private var deadline: Timers.Token?

  /// How long a server may take for its first answers. One without telnet never sends any.
  private static let longestNegotiation = Duration.seconds(5)
  /// The same for plain telnet, where a server without telnet does no harm.
  private static let longestPlainNegotiation = Duration.seconds(1)

  init(
    _ target: TelnetTarget, _ request: OpenRequest, on poller: Poller,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.target = target
    self.request = request
    self.poller = poller
    self.done = done
  }

  /// The opening may already be finished.
  func wait(for opening: any Opening) { if done != nil && stream == nil { connecting = opening } }

  func isConnected(_ result: Result<any ByteStream, OpenFailure>) {
    connecting = nil
    switch result {
    case .success(let connection):
      guard done != nil else { return connection.close() }
      begin(over: connection)
    case .failure(let failure): finish(.failure(failure))
    }
  }

  func cancel() {
    done = nil
    connecting?.cancel()
    connecting = nil
    poller.timers.cancel(deadline)
    line = nil
    stream.take()?.close()
  }

  // MARK: - Options

  private func begin(over connection: any ByteStream) {
    request.report?(.open(target.authority))
    var settings = TelnetStream.Settings(.client)
    // TCP's window does the same. ser2net and gensio take FLOWCONTROL-SUSPEND for a change of the flow control.
    settings.suspends = false
    let negotiation = TelnetNegotiation(.client(comPort: target.line != nil))
    let stream = TelnetStream(over: connection, settings, negotiation, on: poller)
    self.stream = stream
    stream.delegate = self
    if target.line != nil { line = RemoteLine(of: stream, on: poller) }
    stream.observer = { [weak self] in self?.handle($0) }
    if target.line == nil { stream.binarySettled = { [weak self] in self?.binaryIsSettled() } }
    // Data before a line is set up is mostly noise. Of plain telnet every byte counts: TCP holds what is too much here.
    stream.readAhead = target.line == nil ? .kept : .latest
    let limit = target.line == nil ? Self.longestPlainNegotiation : Self.longestNegotiation
    deadline = poller.timers.after(limit) { [weak self] in self?.negotiationIsOver() }
    stream.begin()
  }

  private func handle(_ event: TelnetStream.Event) {
    switch event {
    case .comPortAgreed: beginLine()
    case .comPortRefused:
      fail("the server does not have RFC 2217 (it refuses COM-PORT-OPTION)\(Self.others)")
    case .comPort, .lineChanged: line?.handle(event)
    case .breakKey: break
    }
  }

  private static let others = "; telnet:// or tcp:// carries the bytes alone"

  private func negotiationIsOver() {
    guard target.line != nil else { return finish() }
    if !hasBegunLine { fail("the server does not answer as RFC 2217 requires\(Self.others)") }
  }

  /// Plain telnet waits for this: a server that has agreed to BINARY expects no NUL after CR, which we would still
  /// send. With RFC 2217 it is known long before the settings are in force. The stream is reading: open it in the next
  /// round.
  private func binaryIsSettled() { poller.nextRound(self) }

  /// In plain telnet an end is no failure: the stream has what came before, and the end.
  func ready(_ events: PollEvents) {
    if target.line == nil { finish() } else if hasEnded, let stream { hungUp(stream) }
  }

  // MARK: - The line

  private func beginLine() {
    guard let line, let wish = target.line, !hasBegunLine else { return }
    hasBegunLine = true
    line.open(wish, discardingInput: request.discardsInput) { [weak self] result in
      guard let self, done != nil else { return }
      switch result {
      case .success:
        if request.discardsInput { stream?.dropReadAhead() }
        finish()
      case .failure(let fault): fail(fault.cause, fault.text)
      }
    }
  }

  // MARK: - The end

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .inputEnded, .endEncountered:
      // In the next round: the last answer may have arrived before, and its result may be due.
      hasEnded = true
      poller.nextRound(self)
    case .errorOccurred(let error): fail(error, nil)
    case .openCompleted, .hasBytesAvailable, .hasSpaceAvailable: break
    }
  }

  /// Servers write the reason as text, in the last line: "Port already in use".
  private func hungUp(_ stream: any ByteStream) {
    var words: [UInt8] = []
    do {
      try withUnsafeTemporaryAllocation(byteCount: 256, alignment: 1) { run in
        while words.count < 4096, case .moved(let count) = try stream.read(into: run) { words += run[..<count] }
      }
    } catch let error as SystemError where words.isEmpty {
      return fail(error, nil)
    } catch {}
    // Of each line, only what comes before an escape sequence.
    let lines = words.split { [0x0A, 0x0D].contains($0) }.compactMap { $0.split { $0 < 0x20 }.first }
    let line = lines.last { $0.allSatisfy { $0 < 0x7F } }.map { String(decoding: $0, as: UTF8.self) }
    fail("the server closed the connection before it answered" + (line.map { ", and sent: \($0)" } ?? ""))
  }

  private func fail(_ words: String) { fail(nil, words) }

  private func fail(_ cause: SystemError?, _ words: String?) {
    let protocolName = target.line == nil ? "telnet" : "RFC 2217"
    finish(.failure(OpenFailure("\(protocolName) to \(target.authority)", cause, advice: words)))
  }

  private func finish() {
    guard let done, let stream = self.stream.take() else { return }
    self.done = nil
    poller.timers.cancel(deadline)
    stream.delegate = nil
    stream.binarySettled = nil
    stream.readAhead = .off
    if !request.discardsInput, stream.lostReadAhead > 0 {
      let words = "\(stream.lostReadAhead) bytes were dropped: the server sent too much before the line was set up"
      request.remark(EndpointRemark(words, isWarning: true))
    }
    let line = line.take()
    stream.observer = { [weak line] event in line?.handle(event) }
    stream.serialLine = line
    stream.metadata = line?.metadata
    line?.begin()
    done(.success(stream))
  }

  private func finish(_ result: Result<any ByteStream, OpenFailure>) {
    guard let done else { return }
    cancel()
    done(result)
  }
}
