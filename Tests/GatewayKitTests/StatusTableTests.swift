// The output of `baudway status`, compared with a golden file, and the JSON between gateway and command.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("A status table")
struct StatusTableTests {
  private static let second: UInt64 = 1_000_000_000

  static var snapshot: Snapshot {
    var gps = Snapshot.Route(name: "gps", endpoint: "tty:///dev/ttyS1?baud=4800", link: .shared, maxClients: 8)
    gps.listeners = [
      .init(url: "tcp://127.0.0.1:4001", state: .listening("tcp://127.0.0.1:4001"), nanoseconds: 9 * second)
    ]
    var receiver = DeviceFacts()
    receiver.manufacturer = "u-blox AG"
    receiver.model = "GPS/GNSS\u{1b} Receiver"
    receiver.signalStrength = -50
    receiver.mtu = 185
    gps.state = .init(word: "open", nanoseconds: 7384 * second, line: "4800 8N1", device: receiver)
    gps.totals = .init(ended: [.clientLeft: 30, .clientLost: 9, .tooSlow: 2], up: 12, down: 3_565_158, dropped: 0)
    gps.clients = [
      client(17, "127.0.0.1:51234", up: 12, down: 3_565_000, seconds: 723, writer: true),
      client(1900, "[fe80::1%eth0]:40312", up: 0, down: 1023, seconds: 3, writer: false, role: .monitor),
    ]
    var board = Snapshot.Route(name: "board-3", endpoint: "tty:///dev/ttyUSB0?baud=9600", link: .shared, maxClients: 4)
    board.listeners = [
      .init(url: "tcp://:4002", state: .listening("tcp://*:4002"), nanoseconds: 9 * second),
      .init(
        url: "tcp://192.0.2.1:4002",
        state: .waiting(error: "bind: Cannot assign requested address (EADDRNOTAVAIL)", retry: .seconds(1)),
        nanoseconds: 65 * second),
      .init(url: "unix:///run/b", state: .starting, nanoseconds: 0),
    ]
    board.state = .init(
      word: "waiting", nanoseconds: 12 * second, reason: "open /dev/ttyUSB0: No such file or directory (ENOENT)",
      retry: .milliseconds(4300))
    board.totals = .init(ended: [:], up: 1024, down: 340, dropped: 512)
    board.queued = 1
    var client = client(18, nil, up: 1024, down: 340, seconds: 90061, writer: nil)
    client.dropped = 512
    client.queuedUp = 65536
    client.phase = .leaving
    board.clients = [client]
    var ssh = Snapshot.Route(name: "ssh", endpoint: "tcp://localhost:22", link: .perClient, maxClients: 1000)
    ssh.links = ["open": 2, "opening": 1]
    ssh.totals = .init(ended: [.full: 1], up: 5_368_709_120, down: 1 << 60, dropped: 0)
    var hung = Snapshot.Route(name: "hung", endpoint: "sim://echo", link: .shared, maxClients: 8)
    hung.isStuck = true
    return Snapshot(
      version: "0.3.0", process: 4711, nanoseconds: 183_845 * second, isHealthy: false, routes: [board, gps, hung, ssh])
  }

  private static func client(
    _ number: UInt64, _ address: String?, up: UInt64, down: UInt64, seconds: UInt64, writer: Bool?,
    role: Config.Listen.Role = .writer
  ) -> Snapshot.Client {
    Snapshot.Client(
      number: number, address: address, listener: "tcp://127.0.0.1:4001", role: role, nanoseconds: seconds * second,
      up: up, down: down, dropped: 0, queuedUp: 0, queuedDown: 0, isWriter: writer, phase: .open)
  }

  /// The same a second later: more bytes, another client.
  private static var later: Snapshot {
    var later = snapshot
    later.nanoseconds += second
    later.routes[1].totals.down += 2048
    later.routes[1].clients[0].down += 2048
    later.routes[1].clients[1] = client(1901, "127.0.0.1:40400", up: 100, down: 0, seconds: 0, writer: false)
    return later
  }

  /// Compares the tables with Golden/status.txt. With GOLDEN_UPDATE in the environment the file is rewritten, for you
  /// to review and commit.
  @Test("matches its golden file: plain, with rates, with colours")
  func golden() throws {
    let tables = [
      StatusTable(Self.snapshot, hasColours: false), StatusTable(Self.later, since: Self.snapshot, hasColours: false),
      StatusTable(Self.snapshot, hasColours: true),
    ]
    let text = tables.map { $0.lines.joined(separator: "\n") + "\n" }.joined(separator: "----\n")
      .replacing("\u{1b}", with: "^")
    let path = #filePath.replacing("StatusTableTests.swift", with: "Golden/status.txt")
    if getenv("GOLDEN_UPDATE") != nil { try writeText(text, to: path) }
    #expect(try String(decoding: readBytes(path), as: UTF8.self) == text)
  }

  @Test("shows how long a client has been closing", arguments: [(3, "3s"), (67, "1m 7s"), (0, "0.4s")])
  func closing(seconds: UInt64, text: String) {
    var snapshot = Self.snapshot
    snapshot.routes[0].clients[0].phase = .closing
    snapshot.routes[0].clients[0].closingNanoseconds = seconds * Self.second + 400_000_000
    let lines = StatusTable(snapshot, hasColours: false).lines
    #expect(lines.contains { $0.hasSuffix("closing \(text)") }, "\(lines)")
  }

  @Test("shows no rates between two gateways, nor without elapsed time")
  func rates() {
    var other = Self.later
    other.process += 1
    #expect(!StatusTable(other, since: Self.snapshot, hasColours: false).lines.joined().contains("UP/S"))
    #expect(!StatusTable(Self.snapshot, since: Self.snapshot, hasColours: false).lines.joined().contains("UP/S"))
    #expect(StatusTable(Self.later, since: Self.snapshot, hasColours: false).lines.joined().contains("2.0 KiB"))
  }

  @Test("sends a terminal no control sequences, with any text in a name or an error")
  func hostile() {
    var snapshot = Self.snapshot
    let order = "\u{1b}]0;x\u{7}\u{9b}2J\r\n\t"
    snapshot.routes[0].endpoint = order
    snapshot.routes[0].state?.reason = order
    snapshot.routes[0].clients[0].address = order
    for line in StatusTable(snapshot, hasColours: false).lines {
      #expect(line.unicodeScalars.allSatisfy { !JSONValue.isControl($0) })
    }
  }

  @Test(
    "shows what holds up the output, since when, and how many bytes the port has lost",
    arguments: [(OutputHold.Cause.xoff, "XOFF"), (.cts, "CTS")])
  func heldOutput(cause: OutputHold.Cause, word: String) throws {
    var snapshot = Self.snapshot
    let place = try #require(snapshot.routes.firstIndex { $0.name == "gps" })
    snapshot.routes[place].state?.hold = .init(cause: cause, nanoseconds: 67 * Self.second)
    snapshot.routes[place].state?.overruns = 1234
    let read = try Self.transferred(snapshot)
    #expect(read == snapshot)
    let lines = StatusTable(try #require(read), hasColours: false).lines.joined(separator: "\n")
    #expect(lines.contains("output is held by \(word) since 1m 7s"))
    #expect(lines.contains("overrun: the port has lost 1234 bytes since it was opened"), "\(lines)")
    snapshot.routes[place].state?.overruns = 0
    #expect(!StatusTable(snapshot, hasColours: false).lines.joined().contains("overrun"))
  }

  @Test("is unchanged by the transfer through the control socket")
  func roundTrip() throws { #expect(try Self.transferred(Self.snapshot) == Self.snapshot) }

  private static func transferred(_ snapshot: Snapshot) throws -> Snapshot? {
    var text = snapshot.opening
    for (index, route) in snapshot.routes.enumerated() {
      text += (index > 0 ? "," : "") + route.opening + route.clients.map(\.json.description).joined(separator: ",")
      text += Snapshot.Route.closing
    }
    text += Snapshot.closing
    return Snapshot.read(Array(text.utf8))
  }

  @Test("ignores keys that a later version may add, and accepts nothing else as a status")
  func others() throws {
    let text = #"{"protocol":1,"version":"9","pid":1,"seconds":2,"healthy":true,"news":[1],"routes":[]}"#
    #expect(Snapshot.read(Array(text.utf8))?.version == "9")
    for text in ["", "{}", "[]", #"{"error":"x"}"#, text.replacing("[]}", with: "[{}]}")] {
      #expect(Snapshot.read(Array(text.utf8)) == nil)
    }
  }

  static let sizes: [(UInt64, String)] = [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (102_399, "99.9 KiB"), (102_400, "100 KiB"),
    (1_048_575, "1023 KiB"), (1_048_576, "1.0 MiB"), (1 << 40, "1.0 TiB"), (.max, "15.9 EiB"),
  ]

  @Test("shows bytes with at most four digits and a unit", arguments: sizes)
  func bytes(count: UInt64, text: String) { #expect(Figures.bytes(count) == text) }

  static let ages: [(UInt64, String)] = [
    (0, "0.0s"), (940_000_000, "0.9s"), (second, "1s"), (60 * second, "1m"), (125 * second, "2m 5s"),
    (3600 * second, "1h"), (90061 * second, "1d 1h"), (86_460 * second, "1d"),
  ]

  @Test("shows a time in its two largest units", arguments: ages)
  func age(nanoseconds: UInt64, text: String) { #expect(Figures.age(nanoseconds) == text) }
}
