// Clients of a route that is full, in the order they came. Each waits for a place and is told which he has in the line.
// Nothing is read of what they send: it stays in the kernel, which stops them in time. Lives on the route's home lane.

import ByteStreams

final class ClientQueue: ByteStreamDelegate {
  /// Somebody who waits, or did.
  struct Client {
    let stream: any ByteStream
    let label: Arrival.Label
    let since = monotonicNanoseconds()
    /// His place in the line when he was told last; 0 for never.
    fileprivate var toldPlace = 0
    var wasTold: Bool { toldPlace > 0 }
    /// The rest of a line that his socket did not take; it goes before all else that he is sent.
    fileprivate(set) var unsent: [UInt8] = []
  }

  private var line: [Client] = []
  private let poller: Poller
  private let notice: (Int, Arrival.Label) -> String?
  private let hasLeft: (Client, (any Error)?) -> Void
  private var timer: Timers.Token?
  private var lastTold: UInt64?
  // Whoever leaves moves all who are behind him. So they are told together, and not more often than this.
  private static let pause = Duration.seconds(1)

  /// `notice` says what to tell somebody at a place, counted from 1; nil for nothing. `hasLeft` is told of those who go by
  /// themselves; their streams are its own then.
  init(
    on poller: Poller, notice: @escaping (Int, Arrival.Label) -> String?,
    hasLeft: @escaping (Client, (any Error)?) -> Void
  ) {
    self.poller = poller
    self.notice = notice
    self.hasLeft = hasLeft
  }

  var count: Int { line.count }
  var isEmpty: Bool { line.isEmpty }
  func count(where isMeant: (Arrival.Label) -> Bool) -> Int { line.count { isMeant($0.label) } }

  /// `mayLeave` for one who waits long; else somebody is going for him, and his end is not looked at before he is in.
  func append(_ stream: any ByteStream, _ label: Arrival.Label, mayLeave: Bool) {
    stream.delegate = self
    if mayLeave {
      // Puts him into the lane's set, where he is waited for only to leave.
      stream.readerWaits = .readable
      stream.readerWaits = []
    }
    line.append(Client(stream: stream, label: label))
    tell(line.count - 1)
  }

  /// The one who has waited longest. He is the caller's.
  func takeFirst() -> Client? { line.isEmpty ? nil : take(0) }

  /// All whom `isMeant` names, in their order. They are the caller's.
  func takeAll(where isMeant: (Arrival.Label) -> Bool = { _ in true }) -> [Client] {
    line.indices.filter { isMeant(line[$0].label) }.reversed().map(take).reversed()
  }

  private func take(_ place: Int) -> Client {
    let client = line.remove(at: place)
    client.stream.delegate = nil
    client.stream.writerWaits = []
    if place < line.count { lineMoved() }
    return client
  }

  // MARK: - What they are told

  private func lineMoved() {
    guard timer == nil else { return }
    let quiet = Duration.nanoseconds(Int64(clamping: poller.timers.now &- (lastTold ?? 0)))
    timer = poller.timers.after(lastTold == nil ? .zero : max(.zero, Self.pause - quiet)) { [weak self] in
      guard let self else { return }
      timer = nil
      lastTold = poller.timers.now
      for place in line.indices { tell(place) }
    }
  }

  private func tell(_ place: Int) {
    if let channel = line[place].stream as? any DeskChannel, channel.carriesTexts {
      guard line[place].toldPlace != place + 1 else { return }
      line[place].toldPlace = place + 1
      _ = channel.send(event: Array(DeskEvent.queue(place: place + 1).json.description.utf8))
      return
    }
    // Who has not taken the last line yet is told his place then, once he has.
    guard line[place].toldPlace != place + 1, line[place].unsent.isEmpty,
      let text = notice(place + 1, line[place].label)
    else { return }
    line[place].toldPlace = place + 1
    line[place].unsent = Array((text + "\r\n").utf8)
    sendRest(place)
  }

  private func sendRest(_ place: Int) {
    let stream = line[place].stream
    do throws(InternalFault) {
      let left = try PrefacedStream.write(line[place].unsent[...], to: stream)
      line[place].unsent = Array(left)
      stream.writerWaits = left.isEmpty ? [] : .writable
    } catch {
      line[place].unsent = []
      stream.writerWaits = []
      // In a turn of its own: this one may be going through the line.
      poller.timers.after(.zero) { [weak self] in
        guard let self, let place = line.firstIndex(where: { $0.stream === stream }) else { return }
        hasLeft(take(place), error)
      }
    }
  }

  // MARK: - What their streams tell

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    guard let place = line.firstIndex(where: { $0.stream === stream }) else { return }
    switch event {
    case .hasSpaceAvailable:
      sendRest(place)
      tell(place)
    // He sends no more, so he has left: what he may have sent is not for a device that he waits for no longer.
    case .lastByteIsIn, .endEncountered: hasLeft(take(place), nil)
    case .errorOccurred(let error): hasLeft(take(place), error)
    case .hasBytesAvailable, .openCompleted: break
    }
  }
}
