// One client from accept to ending: his stream, his pump towards the endpoint, his place in the hub's ring. The hub
// moves the bytes and decides when it is over; the session keeps what that needs and tells the hub of events.

import ByteStreams
import Glibc

final class Session: ByteStreamDelegate {
  /// Unique in the process; what the log calls him.
  let number: UInt64
  let arrival: Arrival.Label
  private(set) var client: any ByteStream
  let pump: Pump
  private(set) unowned var hub: Hub  // the link keeps the hub longer than any of its sessions
  let began: UInt64  // nanoseconds, CLOCK_MONOTONIC

  /// His index in the hub's list.
  var place = 0

  // Down. Position in the hub of the next byte for him.
  var cursor: UInt64 = 0
  /// Bytes of the endpoint's that his stream took.
  private(set) var down: UInt64 = 0
  /// A write failed: he takes nothing any more, though what he sent may still be read.
  private(set) var takesOutput = true
  /// It was sent text of ours: a banner, or its place in the queue.
  var hasReadText = false
  /// He was told that no more will come.
  var isToldEnd = false
  /// Where the packet ends that he has a part of; not beyond the cursor when he has none.
  private var packetEnd: UInt64 = 0
  /// What is left of a packet that he has half, after those behind it were dropped: it goes out before all else.
  private var rest: ArraySlice<UInt8> = []
  var hasRest: Bool { !rest.isEmpty }
  /// He has held up others for too long, and loses the oldest without further ado until he has caught up.
  var isBehind = false
  /// Bytes that he lost by being slow; a part of `dropped`.
  private(set) var droppedAsSlow: UInt64 = 0
  // What was told of that, and when the next may be told.
  var droppedTold: UInt64 = 0
  var dropTimer: Timers.Token?

  // Up.
  /// What he sends goes to the endpoint; else it is read and dropped.
  var mayWrite = false
  /// The last of all clients has finished sending, and nothing more is wanted of anybody.
  var isFlushed = false
  /// He broke off, or some of what he sent was given up: what his endpoint heard of him is not all.
  var isInputCut = false
  /// Sees to it that his packets stay whole, where packets are on.
  var gate: PacketGate?
  /// The end of his input has reached his endpoint.
  var isEndPassedOn = false
  /// He sends no more, or is gone, though there was no room yet to read all of it.
  private(set) var hasSentLastByte = false
  /// When its FIN came, even if bytes before it are not delivered yet; nanoseconds on the lane's clock.
  var finishedAt: UInt64?
  /// What it sent before was given up after `device.drain`.
  var isGivenUp = false
  /// Half-closed on a shared link: when it was last sent a byte, at first when its input was over.
  var receivedAt: UInt64?
  var halfCloseWait: (limit: Duration, timer: Timers.Token)?
  /// While its input waits: when to look whether it moves.
  var endLook: Timers.Token?
  /// A mistake of ours in what is kept of this session: it ends as `internal`.
  private(set) var fault: InternalFault?
  /// The error that ended his input, if it was not in order.
  var inputError: (any Error)?
  /// Bytes of either direction that were given up, by policy or at an end that left no other choice.
  var dropped: UInt64 = 0
  /// Where he asks for things beside his bytes; nil for those who have only bytes.
  var desk: Desk?
  /// He is served when the endpoint has space.
  var isWaiting = false

  // The end.
  /// He goes as soon as what is kept for him, and what he sent, is out.
  var leaving: Ending?
  /// Since when; nanoseconds on the lane's clock.
  var leavingSince: UInt64?
  /// Position up to which he still hears then; output under way must not keep him forever.
  var leavesAt: UInt64 = 0
  /// How much of what he sends is delivered then.
  var mostSent: UInt64 = 0
  var isOver = false
  /// Which side was first to finish.
  var endedFirst: Ending?
  var patience = Duration.zero
  var deadline: Timers.Token?
  /// For one who leaves and whose input is read dry: when that is believed.
  var lull: Timers.Token?
  /// Progress when the deadline was set: another value means that it begins again.
  var progress: UInt64 = 0
  /// What he had not acknowledged then; less is progress too.
  var unacknowledged = 0

  var slow = SlowClock()
  var holdsUpOthers = false
  var idleTimer: Timers.Token?

  init(_ arrival: Arrival.Label, client: any ByteStream, number: UInt64, hub: Hub, buffer: Int, on poller: Poller) {
    self.number = number
    self.arrival = arrival
    self.client = client
    self.hub = hub
    began = monotonicNanoseconds()
    pump = Pump(from: client, to: nil, capacity: buffer, on: poller)
    client.delegate = self
  }

  /// The same client by another stream: the one in front of it has done its work.
  func exchangeClient(for stream: any ByteStream) {
    client = stream
    pump.exchangeSource(for: stream)
  }

  /// Keeps the first bytes back until it is known whether they are an HTTP request; nil once that is known.
  var screen: HTTPScreen? { client as? HTTPScreen }

  var up: UInt64 { pump.moved }
  /// Another value than before means that bytes went, either way.
  var activity: UInt64 { down &+ pump.taken &+ UInt64(screen?.kept ?? 0) }
  /// He has finished sending, all of it is delivered, and he may listen still.
  var isHalfClosed: Bool { pump.sourceEnded && pump.count == 0 && leaving == nil }
  var isBlocked: Bool { !client.writerWaits.isEmpty }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    guard !isOver else { return }
    switch event {
    case .hasBytesAvailable: hub.takeInput(of: self)
    case .hasSpaceAvailable: hub.giveOutput(to: self)
    case .errorOccurred(let error): hub.clientFailed(self, error)
    case .endEncountered: hub.clientFailed(self, nil)
    case .lastByteIsIn:
      hasSentLastByte = true
      hub.settle(self)
    case .openCompleted: break
    }
  }

  /// Writes what `ring` holds for him until he has all of it up to `end`, or takes no more. With `packets` each packet is
  /// written by itself.
  func take(from ring: RingBuffer, upTo end: UInt64, by packets: PacketCutter? = nil) {
    let client = client
    var cursor = cursor
    // Beyond the end nothing is looked at: the bytes before it would be missing without a word.
    guard max(cursor, end) <= ring.head else {
      return isBroken(InternalFault("session.take", "bytes \(cursor) to \(end) of \(ring.head)"), at: ring.head)
    }
    let before = cursor
    defer {
      self.cursor = cursor
      down &+= cursor &- before
      if receivedAt != nil && cursor != before { receivedAt = hub.poller.timers.now }
    }
    do {
      while cursor < end {
        let stop = if let packets { packetEnd(at: cursor, upTo: end, by: packets) } else { end }
        switch try ring.look(from: cursor, limit: Int(truncatingIfNeeded: stop &- cursor), { try client.write($0) }) {
        case .moved(let count):
          guard UInt64(bitPattern: Int64(count)) <= stop &- cursor else {
            throw InternalFault.miscounted(count, of: Int(clamping: stop &- cursor), at: "session.take")
          }
          cursor &+= UInt64(count)
          if packets != nil && count > 0 { packetEnd = stop }
        case .blocked(let wish):
          client.writerWaits = wish
          return
        case .ended:
          self.cursor = cursor
          stopOutput(at: ring.head)
          return
        }
      }
      if !client.writerWaits.isEmpty { client.writerWaits = client.holdsUnit ? client.writerWaits : [] }
    } catch {
      self.cursor = cursor
      outputFailed(error, at: ring.head)
    }
  }

  /// One who leaves has the beginning of a packet that is not complete, too: up to `end`.
  private func packetEnd(at cursor: UInt64, upTo end: UInt64, by packets: PacketCutter) -> UInt64 {
    if cursor < packetEnd { return packetEnd }
    return cursor < packets.end ? packets.end(behind: cursor) : end
  }

  /// Lets his cursor jump to `position`, where a packet begins. One that he has a part of he still gets whole.
  func skip(to position: UInt64, in ring: RingBuffer) {
    guard position > cursor else { return }
    if packetEnd > cursor {
      do {
        rest = try ring.look(from: cursor, limit: Int(truncatingIfNeeded: packetEnd &- cursor)) { ArraySlice($0) }
      } catch {
        return outputFailed(error, at: ring.head)
      }
      cursor = packetEnd
    }
    guard position > cursor else { return }
    dropped &+= position &- cursor
    droppedAsSlow &+= position &- cursor
    cursor = position
  }

  /// Writes what is left of a packet whose successors were dropped. Whether all of it is out, or was given up.
  func sendRest(head: UInt64) -> Bool {
    do {
      while !rest.isEmpty {
        let transfer = try rest.withUnsafeBytes { try client.write($0) }
        switch try transfer.checked(of: rest.count, at: "session.sendRest") {
        case .moved(let count):
          rest.removeFirst(count)
          down &+= UInt64(count)
        case .blocked(let wish):
          client.writerWaits = wish
          return false
        case .ended: stopOutput(at: head)
        }
      }
    } catch {
      outputFailed(error, at: head)
    }
    return true
  }

  // A reset is told to whoever asks first, and reading then finds an end as if he had left in order. Linux says EPIPE in
  // place of ECONNRESET when his FIN came before it.
  private func outputFailed(_ error: any Error, at head: UInt64) {
    if let fault = error as? InternalFault { return isBroken(fault, at: head) }
    if inputError == nil, let error = error as? SystemError, [ECONNRESET, ETIMEDOUT].contains(error.errno) {
      inputError = error
      if !pump.sourceEnded { isInputCut = true }
    }
    stopOutput(at: head)
  }

  private func isBroken(_ fault: InternalFault, at head: UInt64) {
    self.fault = self.fault ?? fault
    stopOutput(at: head)
  }

  /// He takes nothing any more; what was kept for him up to `head` is dropped.
  func stopOutput(at head: UInt64) {
    guard takesOutput else { return }
    takesOutput = false
    client.writerWaits = []
    dropped &+= kept(head: head)
    rest = []
    packetEnd = 0
    isBehind = false
  }

  /// Bytes of the endpoint's that are kept for him.
  func kept(head: UInt64) -> UInt64 { (head > cursor ? head &- cursor : 0) &+ UInt64(rest.count) }
}
