// A conversation at the control socket: a real one over a socket pair, on a lane that the test drives.

import CLinux
import Glibc

@testable import ByteStreams
@testable import GatewayKit

/// One rig serves many conversations. Not for two threads at once.
final class ConversationRig {
  private let lane: PollerRig
  private var endings = 0

  init() throws(Broken) { lane = try PollerRig() }

  /// What a client receives that sends `input` in pieces and then nothing more, until its connection closes. `respond`
  /// makes the answers.
  func answer(to input: [UInt8], respond: @escaping (ControlRequest) -> any ControlAnswer) throws(Broken) -> [UInt8] {
    let ends = try PollerRig.pair(SOCK_STREAM)
    let client = Descriptor(owning: ends.1)
    endings = 0
    let conversation = ControlConnection(
      Descriptor(owning: ends.0), on: lane.poller, answer: { request, _ in respond(request) }
    ) { [self] _ in
      endings += 1
    }
    say(input, client.raw)
    var said: [UInt8] = []
    var rounds = 0
    while endings == 0 {
      rounds += 1
      // An answer arrives in one round and its end in the next; if there is no answer, the timeout ends the
      // conversation.
      if rounds > 4 { lane.pass(seconds: 3) }
      try hold(rounds < 8, "a conversation that does not end")
      lane.turn()
      said += received(client.raw)
    }
    said += received(client.raw)
    conversation.close()
    try hold(endings == 1, "a conversation that ends \(endings) times")
    return said
  }

  private func say(_ input: [UInt8], _ socket: Int32) {
    var state = input.reduce(0x811C_9DC5 as UInt32) { ($0 ^ UInt32($1)) &* 0x0100_0193 }
    let isWhole = state & 0x300 == 0
    var rest = input[...]
    while !rest.isEmpty && endings == 0 {
      state = state &* 1_664_525 &+ 1_013_904_223
      let size = isWhole ? rest.count : min(rest.count, 1 + Int(state >> 24) % (rest.count < 32 ? 8 : 700))
      let sent = rest.prefix(size).withUnsafeBytes { send(socket, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
      guard sent > 0 else { break }  // the server has closed
      rest = rest.dropFirst(sent)
      lane.turn()
    }
    shutdown(socket, Int32(SHUT_WR))
  }

  private func received(_ socket: Int32) -> [UInt8] {
    withUnsafeTemporaryAllocation(byteCount: 8192, alignment: 1) { room in
      let count = recv(socket, room.baseAddress, room.count, 0)
      return count > 0 ? Array(room[..<count]) : []
    }
  }
}
