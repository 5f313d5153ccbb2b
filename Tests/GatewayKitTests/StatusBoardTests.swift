// The board's picture of listeners, and the face that events come by.

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

  @Test("counts refusals by their reason, also in words and in JSON")
  func refusals() throws {
    let label = Arrival.Label(address: nil, listener: "tcp://:1")
    let ended = { (ending: Ending) in
      StatusEvent.sessionEnded(route: "a", number: 1, label, SessionReport(ending: ending))
    }
    let board = board(
      ended(Ending(.denied, HTTPRequestFault())), ended(Ending(.denied, HTTPRequestFault())), ended(Ending(.denied)),
      ended(Ending(.full, DescriptorShortage())), ended(Ending(.full, GreetingFault.tooManyInAll)),
      .requestRefused(label, GreetingFault.noSuchPath("/x")),
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

  @Test("knows each listener's state, in the order of the configuration")
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

  @Test("knows what limits a listener that listens, in words, in JSON and when it is over")
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

  @Test("tells two listeners of one URL apart by what they were given")
  func twins() {
    let board = board(
      .routeConfigured(route: "a", listeners: ["tcp://:0", "tcp://:0"]),
      .listening(route: "a", listener: "tcp://:0", bound: "tcp://*:7"),
      .listening(route: "a", listener: "tcp://:0", bound: "tcp://*:8"))
    #expect(board.listeners(of: "a").map(\.state) == [.listening("tcp://*:7"), .listening("tcp://*:8")])
    board.observe(.listenerClosed(route: "a", listener: "tcp://:0", bound: "tcp://*:7"))
    #expect(board.listeners(of: "a").map(\.state) == [.listening("tcp://*:8")])
  }

  @Test("follows a reload: what stays is known still, what is new is awaited, what has closed is forgotten")
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

  @Test("makes no event when nobody listens")
  func nobody() {
    let heard = Heard()
    func event() -> StatusEvent {
      heard.note("made")
      return .stopped
    }
    let sink = StatusSink()
    sink.tell(event())
    #expect(heard.all.isEmpty)
    let guest = sink.observe { _ in heard.note("told") }
    sink.tell(event())
    #expect(heard.all == ["made", "told"])
    withExtendedLifetime(guest) {}
  }

  @Test("tells guests from their coming to their going, also by its copies, and the others always")
  func guests() {
    let heard = Heard()
    let sink = StatusSink([{ _ in heard.note("first") }, { _ in heard.note("second") }])
    let copy = sink
    var guest: StatusObservation? = copy.observe { event in if case .stopping = event { heard.note("guest") } }
    let other = sink.observe { _ in heard.note("other") }
    sink.tell(.stopping)
    #expect(heard.all == ["first", "second", "guest", "other"])
    guest = nil
    sink.tell(.stopping)
    #expect(heard.all.dropFirst(4) == ["first", "second", "other"])
    withExtendedLifetime((guest, other)) {}
  }

  @Test("bears guests that come and go while lanes tell")
  func busy() async throws {
    let sink = StatusSink()
    let told = Told()
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<4 {
        group.addTask { try await onOwnThread { for _ in 0..<2000 { sink.tell(.stopping) } } }
        group.addTask {
          try await onOwnThread {
            for _ in 0..<200 {
              let guest = sink.observe { _ in told.count.add(1, ordering: .relaxed) }
              sink.tell(.stopped)
              withExtendedLifetime(guest) {}
            }
          }
        }
      }
      try await group.waitForAll()
    }
    let count = told.count.load(ordering: .relaxed)
    #expect(count >= 800)
    sink.tell(.stopped)
    #expect(told.count.load(ordering: .relaxed) == count)
  }

  private final class Told: Sendable {
    let count = Atomic<Int>(0)
  }
}
