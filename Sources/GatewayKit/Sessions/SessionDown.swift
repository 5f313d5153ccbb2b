// The output of one session: how far its client has taken the link's output, and what was dropped because it is slow.
// The session writes to the client; `Downstream` decides what is written, `SlowClients` what is dropped.

import ByteStreams
import Glibc

struct SessionDown {
  /// Position in the link's output of the client's next byte.
  fileprivate(set) var cursor: UInt64 = 0
  /// Bytes that the client's stream has taken.
  fileprivate(set) var bytes: UInt64 = 0
  /// False after a write failed; the client's input may still be read.
  fileprivate(set) var takesOutput = true
  /// The end of the packet that the client has received in part. At or before the cursor if there is none.
  fileprivate var packetEnd: UInt64 = 0
  /// The rest of a packet that the client has received in part; the packets after it were dropped. It is written first.
  fileprivate var rest: ArraySlice<UInt8> = []
  var hasRest: Bool { !rest.isEmpty }

  /// Bytes dropped because the client was slow; also counted in the session's `dropped`.
  fileprivate(set) var droppedAsSlow: UInt64 = 0
  /// The client delayed others for too long. Until it has caught up, its output is dropped whenever the ring is full.
  fileprivate(set) var isBehind = false
  /// What `SlowClients` keeps of the session; nothing else can look into it.
  var slow = SlowClientRecord()

  /// Bytes kept for the client. `head` is the end of the link's output.
  func kept(head: UInt64) -> UInt64 { (head > cursor ? head &- cursor : 0) &+ UInt64(rest.count) }

  mutating func fallsBehind() { isBehind = true }
  mutating func catchesUp() { isBehind = false }

  func hasAll(upTo position: UInt64) -> Bool { !takesOutput || cursor >= position && rest.isEmpty }
}

extension Session {
  /// The client receives from `position` on.
  func startOutput(at position: UInt64) { down.cursor = position }

  /// Writes the ring's bytes from the cursor to `end`, as far as the client takes them. With `packets`, each packet is
  /// written by itself.
  func take(from ring: RingBuffer, upTo end: UInt64, by packets: PacketCutter? = nil) {
    let client = client
    var cursor = down.cursor
    // The loop would not look at positions beyond the ring: bytes would be missing without any error.
    guard max(cursor, end) <= ring.head else {
      return isBroken(InternalFault("session.take", "bytes \(cursor) to \(end) of \(ring.head)"), at: ring.head)
    }
    let before = cursor
    defer {
      down.cursor = cursor
      down.bytes &+= cursor &- before
      if ending.receivedAt != nil && cursor != before { ending.received(at: hub.poller.timers.now) }
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
          if packets != nil && count > 0 { down.packetEnd = stop }
        case .blocked(let wish):
          client.writerWaits = wish
          return
        case .ended:
          down.cursor = cursor
          stopOutput(at: ring.head)
          return
        }
      }
      if !client.writerWaits.isEmpty { client.writerWaits = client.hasPendingOutput ? client.writerWaits : [] }
    } catch {
      down.cursor = cursor
      outputFailed(error, at: ring.head)
    }
  }

  /// A session that is being ended also gets the beginning of an incomplete packet, up to `end`.
  private func packetEnd(at cursor: UInt64, upTo end: UInt64, by packets: PacketCutter) -> UInt64 {
    if cursor < down.packetEnd { return down.packetEnd }
    return cursor < packets.end ? packets.end(behind: cursor) : end
  }

  /// Moves the cursor to `position`, where a packet begins. The rest of a packet that the client has received in part
  /// is still written.
  func skip(to position: UInt64, in ring: RingBuffer) {
    guard position > down.cursor else { return }
    if down.packetEnd > down.cursor {
      let length = Int(truncatingIfNeeded: down.packetEnd &- down.cursor)
      do { down.rest = try ring.look(from: down.cursor, limit: length) { ArraySlice($0) } } catch {
        return outputFailed(error, at: ring.head)
      }
      down.cursor = down.packetEnd
    }
    guard position > down.cursor else { return }
    let count = position &- down.cursor &- hub.downstream.hiddenOutput(of: self, upTo: position)
    countDropped(count)
    down.droppedAsSlow &+= count
    down.cursor = position
  }

  /// Writes the rest of a packet. Returns whether it is all out, or was given up.
  func sendRest(head: UInt64) -> Bool {
    do {
      while down.hasRest {
        let transfer = try down.rest.withUnsafeBytes { try client.write($0) }
        switch try transfer.checked(of: down.rest.count, at: "session.sendRest") {
        case .moved(let count):
          down.rest.removeFirst(count)
          down.bytes &+= UInt64(count)
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

  // Linux reports a reset to the first call only; a later read finds an end, as if the client had closed in order. If
  // the client's FIN came before the reset, the error is EPIPE, not ECONNRESET.
  private func outputFailed(_ error: any Error, at head: UInt64) {
    if let fault = error as? InternalFault { return isBroken(fault, at: head) }
    if ending.inputError == nil, let error = error as? SystemError, [ECONNRESET, ETIMEDOUT].contains(error.errno) {
      ending.inputFailed(error, cutsInput: !pump.sourceEnded)
    }
    stopOutput(at: head)
  }

  private func isBroken(_ fault: InternalFault, at head: UInt64) {
    ending.failed(fault)
    stopOutput(at: head)
  }

  /// The client accepts no more output. Output kept for it up to `head` is dropped.
  func stopOutput(at head: UInt64) {
    guard down.takesOutput else { return }
    down.takesOutput = false
    client.writerWaits = []
    countDropped(down.kept(head: head) &- hub.downstream.hiddenOutput(of: self, upTo: head))
    down.rest = []
    down.packetEnd = 0
    down.isBehind = false
  }
}
