// The clients that wait for a slot of a full route, in order of arrival. Each one is sent its position. Their input is
// not read: it stays in the kernel, which makes the client stop in time. Where a new client takes the slot of another
// one, it first waits for its own first byte: a port check connects and closes. Lives on the route's home lane.

import ByteStreams

final class ClientQueue: ByteStreamDelegate {
  /// A client that waits or has waited.
  struct Client {
    let stream: any ByteStream
    let label: AcceptedConnection.Label
    /// Nanoseconds on the lane's clock.
    let since: UInt64
    /// The last position sent to the client; 0 = none yet.
    fileprivate var reportedPosition = 0
    var wasTold: Bool { reportedPosition > 0 }
    /// The rest of a notice that its socket did not take. It is sent before anything else.
    fileprivate(set) var unsent: [UInt8] = []
    /// It gets a slot that is free, but nobody's: it has sent nothing yet.
    fileprivate(set) var isHesitant = false
    /// It has sent its first byte, or waited long enough: another client is ended for it.
    fileprivate var hasClaimed = false
    fileprivate var timer: Timers.Token?
  }

  /// How a client waits.
  enum Wait {
    /// For its turn. It may wait long, so its end is watched for.
    case turn
    /// For a slot that another client is ended for: its own end is noticed once it has the slot.
    case slot
    /// As `slot` from its first byte on, or after `longestHesitation`. Until then its end is watched for.
    case firstByte
  }

  /// A client that has connected and sent nothing for this long takes its slot: it may wait for the device to speak.
  static let longestHesitation = Duration.seconds(1)
  /// A stream with a layer may have bytes that are none of the client's, such as the close of TLS. Its client has sent
  /// its first byte if it is still connected this long after they came.
  static let layerTakes = Duration.milliseconds(100)

  private var line: [Client] = []
  private let poller: Poller
  private let notice: (Int, AcceptedConnection.Label) -> String?
  private let hasLeft: (Client, (any Error)?) -> Void
  private let hasClaimed: () -> Void
  private var timer: Timers.Token?
  private var lastTold: UInt64?
  // A client that leaves moves all after it. So positions are sent to all together, with at least this pause.
  private static let pause = Duration.seconds(1)

  /// `notice` gives the text for a position, counted from 1; nil = none. `hasLeft` is called for each client that
  /// leaves by itself, and owns its stream from then on; `hasClaimed` when a client that waited for its first byte
  /// wants its slot now.
  init(
    on poller: Poller, notice: @escaping (Int, AcceptedConnection.Label) -> String?,
    hasLeft: @escaping (Client, (any Error)?) -> Void, hasClaimed: @escaping () -> Void = {}
  ) {
    self.poller = poller
    self.notice = notice
    self.hasLeft = hasLeft
    self.hasClaimed = hasClaimed
  }

  var count: Int { line.count }
  var isEmpty: Bool { line.isEmpty }
  func count(where isMeant: (AcceptedConnection.Label) -> Bool) -> Int { line.count { isMeant($0.label) } }

  /// How many want a slot now.
  var wanting: Int { line.count { !$0.isHesitant } }

  func append(_ stream: any ByteStream, _ label: AcceptedConnection.Label, waitingFor wait: Wait) {
    stream.delegate = self
    var client = Client(stream: stream, label: label, since: poller.timers.now)
    client.isHesitant = wait == .firstByte
    client.hasClaimed = wait == .slot
    line.append(client)
    report(line.count - 1)
    if wait == .slot { return }
    // Registers the client in the lane's set; without waiting for input only its end is reported.
    stream.readerWaits = .readable
    guard wait == .firstByte else { return stream.readerWaits = [] }
    claim(stream, after: Self.longestHesitation)
    if stream.hasBufferedInput { poller.again(stream) }
  }

  private func claim(_ stream: any ByteStream, after time: Duration) {
    guard let index = line.firstIndex(where: { $0.stream === stream }) else { return }
    poller.timers.cancel(line[index].timer)
    line[index].timer = poller.timers.after(time) { [weak self, weak stream] in
      guard let self, let stream, let index = line.firstIndex(where: { $0.stream === stream }) else { return }
      claim(index)
      hasClaimed()
    }
  }

  private func claim(_ index: Int) {
    poller.timers.cancel(line[index].timer)
    line[index].timer = nil
    line[index].isHesitant = false
    line[index].hasClaimed = true
    line[index].stream.readerWaits = []
  }

  /// There are too many: the first that waits for its first byte wants its slot now.
  func claimFirst() { if let index = line.firstIndex(where: { $0.isHesitant }) { claim(index) } }

  /// The client has bytes, or its end.
  private func mayHaveSent(_ index: Int) {
    guard line[index].isHesitant else { return }
    let stream = line[index].stream
    // From now on only its end is reported.
    stream.readerWaits = []
    guard let descriptor = stream as? DescriptorStream else { return claim(stream, after: Self.layerTakes) }
    guard descriptor.hasInput else { return }
    claim(index)
    hasClaimed()
  }

  /// Removes the client that has waited longest, of those that want a slot now if there are any. The caller owns it.
  func takeFirst() -> Client? {
    line.isEmpty ? nil : take(line.firstIndex { !$0.isHesitant } ?? 0)
  }

  /// Removes the clients that `isMeant` selects, in their order. The caller owns them.
  func takeAll(where isMeant: (AcceptedConnection.Label) -> Bool = { _ in true }) -> [Client] {
    line.indices.filter { isMeant(line[$0].label) }.reversed().map(take).reversed()
  }

  private func take(_ index: Int) -> Client {
    let client = line.remove(at: index)
    poller.timers.cancel(client.timer)
    client.stream.delegate = nil
    client.stream.writerWaits = []
    if index < line.count { lineMoved() }
    return client
  }

  // MARK: - Positions

  private func lineMoved() {
    guard timer == nil else { return }
    let quiet = Duration.nanoseconds(Int64(clamping: poller.timers.now &- (lastTold ?? 0)))
    timer = poller.timers.after(lastTold == nil ? .zero : max(.zero, Self.pause - quiet)) { [weak self] in
      guard let self else { return }
      timer = nil
      lastTold = poller.timers.now
      for index in line.indices { report(index) }
    }
  }

  private func report(_ index: Int) {
    if let texts = line[index].stream as? any ControlTextStream, texts.carriesTexts {
      guard line[index].reportedPosition != index + 1 else { return }
      line[index].reportedPosition = index + 1
      _ = ControlTexts(texts).send(.queue(position: index + 1))
      return
    }
    // A client that has not taken its last notice yet gets its position after that.
    guard line[index].reportedPosition != index + 1, line[index].unsent.isEmpty,
      let text = notice(index + 1, line[index].label)
    else { return }
    line[index].reportedPosition = index + 1
    line[index].unsent = Array((text + "\r\n").utf8)
    sendRest(index)
  }

  private func sendRest(_ index: Int) {
    let stream = line[index].stream
    do throws(InternalFault) {
      let left = try PrefacedStream.write(line[index].unsent[...], to: stream)
      line[index].unsent = Array(left)
      stream.writerWaits = left.isEmpty ? [] : .writable
    } catch {
      line[index].unsent = []
      stream.writerWaits = []
      // In a later turn, since the caller may be iterating over the line.
      poller.timers.after(.zero) { [weak self] in
        guard let self, let index = line.firstIndex(where: { $0.stream === stream }) else { return }
        hasLeft(take(index), error)
      }
    }
  }

  // MARK: - Events of their streams

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    guard let index = line.firstIndex(where: { $0.stream === stream }) else { return }
    switch event {
    case .hasSpaceAvailable:
      sendRest(index)
      report(index)
    // A client that finishes sending has left. Its input is not for a device that it no longer waits for.
    case .inputEnded, .endEncountered: if !line[index].hasClaimed { hasLeft(take(index), nil) }
    case .errorOccurred(let error): hasLeft(take(index), error)
    case .hasBytesAvailable: mayHaveSent(index)
    case .openCompleted: break
    }
  }
}
