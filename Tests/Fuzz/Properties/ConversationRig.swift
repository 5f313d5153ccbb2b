// A conversation at the control socket: a real one over a socket pair, on a lane that is played by hand.

import Glibc

@testable import ByteStreams
@testable import GatewayKit

/// One for many conversations: an epoll set costs more than all the rest. Not for two threads at once.
final class ConversationRig {
  private let poller: Poller
  private let clock = Clock()
  private var ends = 0

  /// Ahead of the machine's, whose timers must not fire.
  private final class Clock { var now: UInt64 = 1 << 60 }

  init() throws(Broken) {
    let clock = clock
    guard let poller = try? Poller(clock: LaneClock { clock.now }, post: { _ in }) else {
      throw Broken("no descriptors left: \(errno)")
    }
    self.poller = poller
  }

  /// What the one who says `input`, in pieces, and then no more, hears until he is cut off. `respond` makes the answers.
  func answer(to input: [UInt8], respond: @escaping (ControlRequest) -> any ControlAnswer) throws(Broken) -> [UInt8] {
    var pair: [Int32] = [-1, -1]
    guard socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue), 0, &pair) == 0 else {
      throw Broken("no descriptors left: \(errno)")
    }
    let client = Descriptor(owning: pair[1])
    ends = 0
    let conversation = Conversation(Descriptor(owning: pair[0]), on: poller, answer: respond) { [self] _ in ends += 1 }
    say(input, client.raw)
    var said: [UInt8] = []
    var rounds = 0
    while ends == 0 {
      rounds += 1
      // An answer is one piece, and its end the next; where there is none the time-out ends it.
      if rounds > 4 { clock.now += 3_000_000_000 }
      try hold(rounds < 8, "a conversation that does not end")
      turn()
      said += received(client.raw)
    }
    said += received(client.raw)
    conversation.close()
    try hold(ends == 1, "a conversation that ends \(ends) times")
    return said
  }

  private func say(_ input: [UInt8], _ socket: Int32) {
    var state = input.reduce(0x811C_9DC5 as UInt32) { ($0 ^ UInt32($1)) &* 0x0100_0193 }
    let isWhole = state & 0x300 == 0
    var rest = input[...]
    while !rest.isEmpty && ends == 0 {
      state = state &* 1_664_525 &+ 1_013_904_223
      let size = isWhole ? rest.count : min(rest.count, 1 + Int(state >> 24) % (rest.count < 32 ? 8 : 700))
      let sent = rest.prefix(size).withUnsafeBytes { send(socket, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
      guard sent > 0 else { break }  // it has heard enough
      rest = rest.dropFirst(sent)
      turn()
    }
    shutdown(socket, Int32(SHUT_WR))
  }

  private func turn() {
    _ = poller.turn(waiting: 0)
    poller.runAgain()
    poller.timers.fireDue()
  }

  private func received(_ socket: Int32) -> [UInt8] {
    withUnsafeTemporaryAllocation(byteCount: 8192, alignment: 1) { room in
      let count = recv(socket, room.baseAddress, room.count, 0)
      return count > 0 ? Array(room[..<count]) : []
    }
  }
}
