// The board's state of listeners, and the sink for events.

import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A status board")
struct StatusBoardTests {
  private static let busy = OpenFailure("bind", SystemError("bind", EADDRINUSE))

  private func board(_ events: StatusEvent...) -> StatusBoard {
    let board = StatusBoard()
    for event in events { board.observe(event) }
    return board
  }

  @Test("is not healthy before each listener has been tried, nor while one waits")
  func health() {
    let board = board(.started(routes: 1), .routeConfigured(route: "a", listeners: ["tcp://:1", "tcp://:2"]))
    #expect(!board.isHealthy && !board.isSettled)
    board.observe(.listening(route: "a", listener: "tcp://:1", bound: "tcp://*:1"))
    #expect(!board.isHealthy && !board.isSettled)
    board.observe(.listenerWaits(route: "a", listener: "tcp://:2", Self.busy, retry: .seconds(1)))
    #expect(!board.isHealthy && board.isSettled)
    #expect(board.health.description == #"{"healthy":false,"routes":1,"listeners-waiting":1}"#)
    board.observe(.listening(route: "a", listener: "tcp://:2", bound: "tcp://*:2"))
    #expect(board.isHealthy)
    board.observe(.stopping)
    #expect(!board.isHealthy)
  }

  @Test("counts refusals by reason, in text and in JSON")
  func refusals() throws {
    let label = AcceptedConnection.Label(address: nil, listener: "tcp://:1")
    let ended = { (ending: Ending) in
      StatusEvent.sessionEnded(route: "a", number: 1, label, SessionReport(ending: ending))
    }
    let board = board(
      ended(Ending(.denied, HTTPRequestFault())), ended(Ending(.denied, HTTPRequestFault())), ended(Ending(.denied)),
      ended(Ending(.full, DescriptorShortage())), ended(Ending(.full, HandshakeFault.tooManyInAll)),
      .requestRefused(label, HandshakeFault.noSuchPath("/x")),
      ended(Ending(.clientLost, SystemError("read", ECONNRESET))))
    #expect(board.refused == ["descriptors": 1, "http-request": 2, "no-such-path": 1])
    var snapshot = Snapshot(
      version: "1", process: 1, nanoseconds: 1_000_000_000, isHealthy: true, refused: board.refused)
    let json = try JSONReader.read((snapshot.opening + Snapshot.closing).utf8)
    #expect(json["refused"]?.description == #"{"descriptors":1,"http-request":2,"no-such-path":1}"#)
    #expect(Snapshot(json) == snapshot)
    #expect(
      StatusTable(snapshot, hasColours: false).lines.contains("refused: 2 http-request, 1 descriptors, 1 no-such-path"))
    snapshot.refused = [:]
    #expect(!StatusTable(snapshot, hasColours: false).lines.contains { $0.hasPrefix("refused") })
  }

  @Test("keeps each listener's state, in the order of the configuration")
  func states() {
    let board = board(
      .routeConfigured(route: "a", listeners: ["tcp://:1", "tcp://:2"]),
      .listenerWaits(route: "a", listener: "tcp://:2", Self.busy, retry: .seconds(1)))
    let listeners = board.listeners(of: "a")
    #expect(listeners.map(\.url) == ["tcp://:1", "tcp://:2"])
    #expect(
      listeners.map(\.state) == [.starting, .waiting(error: Self.busy.description, retry: .seconds(1))])
    #expect(board.listeners(of: "b").isEmpty)
  }

  @Test("keeps the limitations of a listener that listens, in text and JSON, until they end")
  func limits() throws {
    let board = board(
      .routeConfigured(route: "a", listeners: ["rfcomm://", "tcp://:1"]),
      .listening(route: "a", listener: "rfcomm://", bound: "rfcomm://?channel=3"),
      .listenerLimited(
        route: "a", listener: "rfcomm://?channel=3", [OpenFailure("list it", nil, advice: "start it with --compat")]))
    #expect(board.listeners(of: "a").map(\.limit) == ["list it: start it with --compat", nil])
    board.observe(.listenerLimited(route: "a", listener: "rfcomm://?channel=3", []))
    #expect(board.listeners(of: "a").map(\.limit) == [nil, nil])
  }

  @Test("distinguishes two listeners of one URL by their bound addresses")
  func twins() {
    let board = board(
      .routeConfigured(route: "a", listeners: ["tcp://:0", "tcp://:0"]),
      .listening(route: "a", listener: "tcp://:0", bound: "tcp://*:7"),
      .listening(route: "a", listener: "tcp://:0", bound: "tcp://*:8"))
    #expect(board.listeners(of: "a").map(\.state) == [.listening("tcp://*:7"), .listening("tcp://*:8")])
    board.observe(.listenerClosed(route: "a", listener: "tcp://:0", bound: "tcp://*:7"))
    #expect(board.listeners(of: "a").map(\.state) == [.listening("tcp://*:8")])
  }

  @Test("follows a reload: kept listeners stay known, new ones are expected, closed ones are forgotten")
  func reload() {
    let board = board(
      .started(routes: 1), .routeConfigured(route: "a", listeners: ["tcp://:1", "tcp://:2"]),
      .listening(route: "a", listener: "tcp://:1", bound: "tcp://*:1"),
      .listening(route: "a", listener: "tcp://:2", bound: "tcp://*:2"))
    board.expect(["tcp://:2", "tcp://:3"], of: "a")
    #expect(!board.isSettled)
    for event: StatusEvent in [
      .routeConfigured(route: "a", listeners: ["tcp://:2", "tcp://:3"]),
      .listenerClosed(route: "a", listener: "tcp://:1", bound: "tcp://*:1"),
      .listening(route: "a", listener: "tcp://:3", bound: "tcp://*:3"),
    ] { board.observe(event) }
    #expect(board.listeners(of: "a").map(\.state) == [.listening("tcp://*:2"), .listening("tcp://*:3")])
    #expect(board.isHealthy)
    board.observe(.routeStopped("a"))
    #expect(board.listeners(of: "a").isEmpty && board.isHealthy)
  }
}

@Suite("A status sink")
struct StatusSinkTests {
  private final class Heard: Sendable {
    private let names = Mutex<[String]>([])
    func note(_ name: String) { names.withLock { $0.append(name) } }
    var all: [String] { names.withLock(\.self) }
  }

  @Test("makes no event without observers")
  func nobody() {
    let received = Heard()
    func event() -> StatusEvent {
      received.note("made")
      return .stopped
    }
    let sink = StatusSink()
    sink.publish(event())
    #expect(received.all.isEmpty)
    let guest = sink.observe { _ in received.note("told") }
    sink.publish(event())
    #expect(received.all == ["made", "told"])
    withExtendedLifetime(guest) {}
  }

  @Test("calls temporary observers, also of its copies, until they are released, and permanent ones always")
  func guests() {
    let received = Heard()
    let sink = StatusSink([{ _ in received.note("first") }, { _ in received.note("second") }])
    let copy = sink
    var guest: StatusObservation? = copy.observe { event in if case .stopping = event { received.note("guest") } }
    let other = sink.observe { _ in received.note("other") }
    sink.publish(.stopping)
    #expect(received.all == ["first", "second", "guest", "other"])
    guest = nil
    sink.publish(.stopping)
    #expect(received.all.dropFirst(4) == ["first", "second", "other"])
    withExtendedLifetime((guest, other)) {}
  }

  @Test("allows observers to come and go while lanes report events")
  func busy() async throws {
    let sink = StatusSink()
    let reported = Told()
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<4 {
        group.addTask { try await onOwnThread { for _ in 0..<2000 { sink.publish(.stopping) } } }
        group.addTask {
          try await onOwnThread {
            for _ in 0..<200 {
              let guest = sink.observe { _ in reported.count.add(1, ordering: .relaxed) }
              sink.publish(.stopped)
              withExtendedLifetime(guest) {}
            }
          }
        }
      }
      try await group.waitForAll()
    }
    let count = reported.count.load(ordering: .relaxed)
    #expect(count >= 800)
    sink.publish(.stopped)
    #expect(reported.count.load(ordering: .relaxed) == count)
  }

  private final class Told: Sendable {
    let count = Atomic<Int>(0)
  }
}
