// The messages that systemd receives from a gateway; a datagram socket replaces systemd.

import CLinux
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A service manager", .timeLimit(.minutes(5)))
struct ServiceManagerTests {
  private static let config = try! ConfigFile.read(
    Array("routes: { a: { listen: [ 'tcp://127.0.0.1:0', 'tcp://[::1]:0' ], endpoint: 'sim://echo' } }".utf8))
  private static let label = AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:0")

  private static func manager(
    _ systemd: Systemd, _ more: [String: String] = [:], _ time: ManualQueueClock? = nil
  ) throws -> ServiceManager {
    let environment = more.merging(["NOTIFY_SOCKET": systemd.address]) { $1 }
    return try #require(
      ServiceManager(environment: environment, config: config, clock: time?.clock ?? .monotonic))
  }

  private static func opened(_ number: UInt64) -> StatusEvent { .sessionOpened(route: "a", number: number, label) }

  private static func ended(_ number: UInt64, _ word: Ending.Word = .clientLeft, wasOpened: Bool = true) -> StatusEvent
  {
    .sessionEnded(route: "a", number: number, label, SessionReport(ending: Ending(word), wasOpened: wasOpened))
  }

  private static func start(_ manager: ServiceManager) {
    manager.observe(.started(routes: 1))
    for listener in config.routes[0].listen {
      manager.observe(.listening(route: "a", listener: listener.url.description, bound: "tcp://127.0.0.1:1"))
    }
  }

  @Test("receives READY when every listener has its first result, and not before", arguments: [false, true])
  func ready(isAbstract: Bool) async throws {
    try await onOwnThread {
      let systemd = try Systemd(isAbstract: isAbstract)
      let manager = try Self.manager(systemd)
      manager.observe(.started(routes: 1))
      manager.observe(.listening(route: "a", listener: "tcp://127.0.0.1:0", bound: "tcp://127.0.0.1:1"))
      manager.observe(.listening(route: "other", listener: "tcp://[::1]:0", bound: "tcp://127.0.0.1:1"))
      #expect(systemd.next(within: 100) == nil)
      manager.observe(
        .listenerWaits(
          route: "a", listener: "tcp://[::1]:0", OpenFailure("bind", SystemError("bind", EADDRNOTAVAIL)),
          retry: .seconds(1)))
      #expect(systemd.next() == "READY=1\nSTATUS=1 route, 0 clients")
      // READY is sent once.
      manager.observe(.listening(route: "a", listener: "tcp://[::1]:0", bound: "tcp://127.0.0.1:1"))
      #expect(systemd.next(within: 100) == nil)
    }
  }

  @Test("receives the same phases in the same order as the log")
  func phases() async throws {
    try await onOwnThread {
      let systemd = try Systemd()
      let manager = try Self.manager(systemd)
      manager.observe(.reloading)  // too early: it is starting
      Self.start(manager)
      #expect(systemd.next() == "READY=1\nSTATUS=1 route, 0 clients")
      let before = monotonicNanoseconds() / 1000
      manager.observe(.reloading)
      let lines = systemd.next()?.split(separator: "\n") ?? []
      #expect(lines.first == "RELOADING=1")
      let stamp = try #require(lines.dropFirst().first?.wholeMatch(of: /MONOTONIC_USEC=(\d+)/)?.1)
      #expect((before...monotonicNanoseconds() / 1000).contains(try #require(UInt64(stamp))))
      manager.observe(.reloadFailed(problems: ["x"]))
      #expect(systemd.next() == "READY=1\nSTATUS=1 route, 0 clients, the last reload failed (see the log)")
      manager.observe(.reloading)
      _ = systemd.next()
      manager.observe(.reloaded(ReloadReport(added: ["b", "c"], untouched: 1)))
      #expect(systemd.next() == "READY=1\nSTATUS=3 routes, 0 clients")
      manager.observe(.stopping)
      #expect(systemd.next() == "STOPPING=1\nSTATUS=stopping, 3 routes, 0 clients")
    }
  }

  @Test("gets a status line that counts admitted clients and absent devices")
  func line() async throws {
    try await onOwnThread {
      let (systemd, time) = (try Systemd(), ManualQueueClock())
      let manager = try Self.manager(systemd, [:], time)
      Self.start(manager)
      _ = systemd.next()
      manager.observe(Self.opened(1))
      #expect(systemd.next() == "STATUS=1 route, 1 client")
      time.settle()
      manager.observe(Self.ended(2, .full, wasOpened: false))
      manager.observe(Self.opened(3))
      manager.observe(.link(route: "a", endpoint: "x", .waiting(.lost(nil)), retry: nil))
      manager.observe(.link(route: "a", endpoint: "x", .opening, retry: nil))
      time.advance(by: .seconds(1))
      #expect(systemd.next() == "STATUS=1 route, 2 clients, 1 device away")
      manager.observe(.link(route: "a", endpoint: "x", .open, retry: nil))
      manager.observe(Self.ended(1))
      time.advance(by: .seconds(1))
      #expect(systemd.next() == "STATUS=1 route, 1 client")
      manager.observe(.link(route: "a", endpoint: "x", .waiting(.lost(nil)), retry: nil))
      manager.observe(.routeStopped("a"))
      manager.observe(Self.ended(3))
      time.advance(by: .seconds(1))
      #expect(systemd.next() == "STATUS=1 route, 0 clients")
    }
  }

  @Test("gets one line per second for any number of clients, the last one correct, and none when nothing changed")
  func pace() async throws {
    try await onOwnThread {
      let (systemd, time) = (try Systemd(), ManualQueueClock())
      let manager = try Self.manager(systemd, [:], time)
      Self.start(manager)
      _ = systemd.next()
      time.settle()
      manager.observe(Self.opened(1))
      #expect(systemd.next() == "STATUS=1 route, 1 client")
      for second in 1...3 as ClosedRange<UInt64> {
        for number in 1...1000 { manager.observe(Self.opened(second * 1000 + UInt64(number))) }
        time.advance(by: .milliseconds(999))
        #expect(systemd.next(within: 0) == nil)
        time.advance(by: .milliseconds(1))
        #expect(systemd.next(within: 0) == "STATUS=1 route, \(second * 1000 + 1) clients")
      }
      // A state that has passed is not sent.
      manager.observe(Self.opened(9000))
      manager.observe(Self.ended(9000))
      for _ in 0..<5 { time.advance(by: .seconds(1)) }
      #expect(systemd.next(within: 0) == nil)
    }
  }

  @Test("receives a change of phase eventually, though its queue is full at first")
  func fullQueue() async throws {
    try await onOwnThread {
      let systemd = try Systemd()
      let manager = try Self.manager(systemd)
      let stuffing = try systemd.stuff()
      Self.start(manager)
      manager.observe(.reloading)
      manager.observe(.reloaded(ReloadReport(untouched: 1)))
      for _ in 0..<stuffing { _ = systemd.next() }
      #expect(systemd.next() == "READY=1\nSTATUS=1 route, 0 clients")
    }
  }

  // MARK: the watchdog

  @Test("gets a watchdog message every half interval, and none while a lane hangs")
  func watchdog() async throws {
    let lanes = try (0..<2).map { try Lane("watched \($0)") }
    defer { for lane in lanes { lane.stop() } }
    try await onOwnThread {
      let (systemd, time) = (try Systemd(), ManualQueueClock())
      let asked = ["WATCHDOG_USEC": "400000", "WATCHDOG_PID": "\(getpid())"]
      let manager = try Self.manager(systemd, asked, time)
      manager.watch { answered in Gateway.ping(lanes[...], answered) }
      #expect(systemd.next() == "WATCHDOG=1")
      for _ in 0..<4 {
        time.advance(by: .milliseconds(199))
        #expect(systemd.next(within: 20) == nil)
        time.advance(by: .milliseconds(1))
        #expect(systemd.next() == "WATCHDOG=1")
      }
      for lane in lanes {
        let hangs = Hang()
        lane.post { _ in hangs.wait() }
        for _ in 0..<3 { time.advance(by: .milliseconds(200)) }
        #expect(systemd.next(within: 100) == nil)
        hangs.end()
        #expect(systemd.next() == "WATCHDOG=1")
        #expect(systemd.next(within: 20) == nil)  // one request at a time
      }
    }
  }

  @Test(
    "gets no watchdog messages if it does not ask this process for them",
    arguments: [
      [:], ["WATCHDOG_USEC": "0"], ["WATCHDOG_USEC": "-1"], ["WATCHDOG_USEC": "soon"],
      ["WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"],
    ])
  func noWatchdog(environment: [String: String]) throws {
    let manager = try Self.manager(Systemd(), environment)
    #expect(manager.watchdog == nil)
    manager.watch { _ in Issue.record("pings") }
  }

  @Test("that asks for a useless interval gets the nearest useful one")
  func oddIntervals() throws {
    #expect(try Self.manager(Systemd(), ["WATCHDOG_USEC": "1"]).watchdog == .milliseconds(100))
    #expect(try Self.manager(Systemd(), ["WATCHDOG_USEC": "\(UInt64.max)"]).watchdog == .seconds(86400))
  }

  @Test(
    "does not exist without a valid socket address",
    arguments: [nil, "", "@", "/", "relative", "vsock:2:1234", "/" + String(repeating: "x", count: 107)])
  func noAddress(address: String?) {
    let environment = address.map { ["NOTIFY_SOCKET": $0] } ?? [:]
    #expect(ServiceManager(environment: environment, config: Self.config) == nil)
  }

  @Test("may disappear without harm to the gateway")
  func gone() throws {
    let manager: ServiceManager
    do { manager = try Self.manager(Systemd()) }
    Self.start(manager)
    manager.observe(.stopping)
  }
}

/// The other end: receives the messages. Its calls block.
private final class Systemd: Sendable {
  let address: String
  private let socket: Descriptor
  private static let count = Atomic<Int>(0)

  init(isAbstract: Bool = false) throws {
    let number = Self.count.add(1, ordering: .relaxed).newValue
    let name = "baudway-notify-\(getpid())-\(number)"
    address = isAbstract ? "@\(name)" : "/tmp/\(name)"
    socket = Descriptor(owning: Glibc.socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue | SOCK_CLOEXEC.rawValue), 0))
    let control = isAbstract ? ControlAddress.abstract(name) : .path(address)
    let raw = socket.raw
    guard try control.withSockaddr({ bind(raw, $0, $1) }) == 0 else { throw SystemError("bind") }
  }

  deinit { if address.hasPrefix("/") { unlink(address) } }

  /// The next message, or nil when none comes.
  func next(within milliseconds: Int32 = 10_000) -> String? {
    var one = pollfd(fd: socket.raw, events: Int16(POLLIN), revents: 0)
    guard poll(&one, 1, milliseconds) == 1 else { return nil }
    var bytes = [UInt8](repeating: 0, count: 4096)
    let count = recv(socket.raw, &bytes, bytes.count, 0)
    return count < 0 ? nil : String(decoding: bytes[..<count], as: UTF8.self)
  }

  /// Fills the queue. Returns the number of messages.
  func stuff() throws -> Int {
    guard let sender = NotifySocket(address) else { throw SystemError("socket", EINVAL) }
    var count = 0
    while case .sent = sender.send("X") { count += 1 }
    return count
  }
}

/// Blocks a lane until `end()`.
private final class Hang: Sendable {
  private let isOver = Atomic<Bool>(false)
  func wait() { while !isOver.load(ordering: .acquiring) { usleep(5000) } }
  func end() { isOver.store(true, ordering: .releasing) }
}
