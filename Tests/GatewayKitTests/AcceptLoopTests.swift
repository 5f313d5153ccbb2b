// The descriptor limit is tested in a child process, which can run out of descriptors without harming other tests.

import CLinux
import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("An accept loop", .timeLimit(.minutes(5)))
struct AcceptLoopTests {
  @Test("at the descriptor limit refuses clients with a reason, reports it once, pauses, and accepts again later")
  func limit() async {
    await #expect(processExitsWith: .success) {
      // Dispatch opens a timerfd for each clock with the first sleep by it, and traps if it can't.
      try await Task.sleep(for: .milliseconds(1), clock: .continuous)
      try await Task.sleep(for: .milliseconds(1), clock: .suspending)
      let rig = try AcceptRig()
      var limit = rlimit(rlim_cur: 128, rlim_max: 128)
      try #require(setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0)
      let crowd = try (0..<5).map { _ in try rig.connect() }
      var fillers: [Int32] = []
      while case let filler = dup(0), filler >= 0 { fillers.append(filler) }
      for client in crowd {
        try #require(try rig.refusalLine(to: client) == "baudway: out of descriptors\r\n")
      }
      try #require(rig.accepted.isEmpty && rig.reported == ["EMFILE"])
      // It pauses, so that the limit costs no CPU, and then retries without another report.
      close(fillers.removeLast())
      let late = try rig.connect()
      try #require(try rig.refusalLine(to: late).utf8.count == 29 && rig.reported.count == 1)
      for filler in fillers { close(filler) }
      let served = try rig.connect()
      try #require(rig.run { rig.accepted.count == 1 })
      // Another shortage soon after is not reported, or each client accepted in between would cause a new line. Later
      // it is.
      let one = try Descriptor.socket(.ipv4)
      let other = try Descriptor.socket(.ipv4)
      while dup(0) >= 0 {}
      try rig.connect(one)
      var end = pollfd(fd: one.raw, events: 0x2000 /* POLLRDHUP */, revents: 0)
      try #require(rig.run { poll(&end, 1, 0) > 0 })
      try #require(rig.reported.count == 1)
      rig.skip(.seconds(6))
      try rig.connect(other)
      try #require(rig.run { rig.reported.count == 2 })
      served.close()
    }
  }

  @Test("closes its socket when it is stopped, also during a pause", arguments: [true, false])
  func stops(rests: Bool) async throws {
    try await expectNoDescriptorLeak {
      let rig = try AcceptRig()
      if !rests {
        let client = try rig.connect()
        #expect(rig.run { rig.accepted.count == 1 })
        client.close()
      }
      rig.loop?.stop()
      rig.loop = nil
      // A program that a parallel test is starting holds a copy of the socket until its exec.
      let address = rig.address
      #expect(
        await eventually {
          guard let client = try? connectTCP(address) else { return true }
          client.close()
          return false
        })
    }
  }

  @Test(
    "reports once that another holder of its socket has shut it down, and stops polling it",
    arguments: [SHUT_RD, SHUT_RDWR], [true, false])
  func shutDown(how: Int, isLocal: Bool) throws {
    let rig = try AcceptRig(isLocal: isLocal)
    let other = rig.duplicate
    defer { close(other) }
    try #require(shutdown(other, Int32(how)) == 0)
    #expect(rig.run { !rig.lost.isEmpty })
    // Otherwise each turn would report the shutdown.
    for _ in 0..<20 { _ = rig.poller.turn(waiting: 5) }
    #expect(rig.lost == ["EINVAL"] && rig.reported.isEmpty)
    rig.loop?.stop()
  }

  @Test("reports a loss when its descriptor number no longer names its socket, and leaves that descriptor open")
  func foreign() throws {
    let rig = try AcceptRig()
    let other = rig.duplicate
    defer { close(other) }
    let file = open("/dev/null", O_RDONLY)
    try #require(dup2(file, rig.number) >= 0)
    let client = try rig.connect()
    #expect(rig.run { !rig.lost.isEmpty })
    #expect(rig.lost == ["ENOTSOCK"])
    rig.loop = nil
    #expect(fcntl(rig.number, F_GETFD) >= 0)
    close(rig.number)
    close(file)
    client.close()
  }

  @Test("accepts one client per event, and all of them in the end")
  func all() throws {
    let rig = try AcceptRig()
    let clients = try (0..<100).map { _ in try rig.connect() }
    _ = rig.poller.turn(waiting: 1000)
    #expect(rig.accepted.count == 1)
    #expect(rig.run { rig.accepted.count == 100 })
    #expect(rig.addresses.allSatisfy { $0?.isLoopback == true })
    for client in clients { client.close() }
    rig.loop?.stop()
  }
}

/// An accept loop that runs in the test's own thread.
private final class AcceptRig {
  private let skew = Skew()
  private(set) var poller: Poller!
  let address: SocketAddress
  var loop: AcceptLoop?
  private(set) var accepted: [FarEnd] = []
  private(set) var addresses: [SocketAddress?] = []
  private(set) var reported: [String] = []
  private(set) var lost: [String] = []

  init(isLocal: Bool = false) throws {
    let socket = try isLocal ? Self.local() : Self.network()
    guard listen(socket.raw, 128) == 0 else { throw SystemError("listen") }
    address = isLocal ? Self.anywhere : try #require(try SocketAddress.local(of: socket.raw))
    number = socket.raw
    poller = try Poller(clock: LaneClock { [skew] in monotonicNanoseconds() + skew.nanoseconds }) { _ in }
    loop = try AcceptLoop(
      socket, on: poller, refusalLine: "baudway: out of descriptors",
      outOfDescriptors: { [unowned self] in reported.append($0.name) },
      lost: { [unowned self] in lost.append($0.name) },
      accepted: { [unowned self] descriptor, address in
        accepted.append(FarEnd(descriptor, isSocket: true))
        addresses.append(address)
      })
  }

  // How far the lane's clock is ahead of the machine's. Unchecked: used by the test's thread only.
  private final class Skew: @unchecked Sendable { var nanoseconds: UInt64 = 0 }

  func skip(_ time: Duration) { skew.nanoseconds += time.nanoseconds }

  private static let anywhere = SocketAddress(ipv4: [127, 0, 0, 1], port: 0)

  private static func network() throws -> Descriptor {
    let socket = try Descriptor.socket(.ipv4)
    guard anywhere.withSockaddr({ bind(socket.raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    return socket
  }

  private static func local() throws -> Descriptor {
    let socket = Descriptor(owning: linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0))
    let name = UnixAddress.abstract("baudway-test/\(getpid())/\(UInt64.random(in: 0 ... .max))")
    guard try name.withSockaddr({ bind(socket.raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    return socket
  }

  private(set) var number: Int32 = -1
  var duplicate: Int32 { dup(number) }

  func connect() throws -> FarEnd { try connectTCP(address) }

  func connect(_ socket: borrowing Descriptor) throws {
    let answer = address.withSockaddr { Glibc.connect(socket.raw, $0, $1) }
    guard answer == 0 || errno == EINPROGRESS else { throw SystemError("connect") }
  }

  /// Runs the lane's turns until `condition` holds, at most for `Patience`. Returns whether it came to hold.
  func run(until condition: () -> Bool) -> Bool {
    let end = monotonicNanoseconds() + Patience.nanoseconds
    while !condition() {
      guard monotonicNanoseconds() < end else { return false }
      _ = poller.turn(waiting: 5)
      poller.timers.fireDue()
    }
    return true
  }

  /// Runs the lane's turns until the loop has ended this client's connection; returns what it sent before.
  func refusalLine(to client: FarEnd) throws -> String {
    guard run(until: { client.hasEnded }) else { throw SystemError("poll", ETIMEDOUT) }
    return String(decoding: try client.receiveToEnd(), as: UTF8.self)
  }
}
