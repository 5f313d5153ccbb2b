// One client from accept to ending: his stream, his pump towards the endpoint, his place in the hub's ring. The hub
// moves the bytes and decides when it is over; the session keeps what that needs and tells the hub of events.

import ByteStreams

final class Session: ByteStreamDelegate {
  /// Unique in the process; what the log calls him.
  let number: UInt64
  let arrival: Arrival.Label
  let client: any ByteStream
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
  /// He was told that no more will come.
  var isToldEnd = false

  // Up.
  /// The end of his input has reached his endpoint.
  var isEndPassedOn = false
  /// He sends no more, or is gone, though there was no room yet to read all of it.
  private(set) var hasSentLastByte = false
  /// The error that ended his input, if it was not in order.
  var inputError: (any Error)?
  /// Bytes of either direction that were given up, by policy or at an end that left no other choice.
  var dropped: UInt64 = 0
  /// He is served when the endpoint has space.
  var isWaiting = false

  // The end.
  /// He goes as soon as what is kept for him, and what he sent, is out.
  var leaving: Ending?
  /// Position up to which he still hears then; output under way must not keep him forever.
  var leavesAt: UInt64 = 0
  var isOver = false
  /// Which side was first to finish.
  var endedFirst: Ending.Word?
  var patience = Duration.zero
  var deadline: Timers.Token?
  /// Progress when the deadline was set: another value means that it begins again.
  var progress: UInt64 = 0

  var slow = SlowClock()
  var holdsUpOthers = false

  init(_ arrival: Arrival.Label, client: any ByteStream, number: UInt64, hub: Hub, buffer: Int, on poller: Poller) {
    self.number = number
    self.arrival = arrival
    self.client = client
    self.hub = hub
    began = monotonicNanoseconds()
    pump = Pump(from: client, to: nil, capacity: buffer, on: poller)
    client.delegate = self
  }

  var up: UInt64 { pump.moved }
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

  /// Writes what `ring` holds for him until he has all of it or takes no more.
  func take(from ring: RingBuffer) {
    let client = client
    var cursor = cursor
    let before = cursor
    defer {
      self.cursor = cursor
      down &+= cursor &- before
    }
    do {
      while cursor < ring.head {
        switch try ring.look(from: cursor, { try client.write($0) }) {
        case .moved(let count): cursor &+= UInt64(count)
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
      stopOutput(at: ring.head)
    }
  }

  /// He takes nothing any more; what was kept for him up to `head` is dropped.
  func stopOutput(at head: UInt64) {
    guard takesOutput else { return }
    takesOutput = false
    client.writerWaits = []
    dropped &+= head &- cursor
  }
}
