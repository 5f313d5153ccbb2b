// From events to lines: wording that people and programs rely on, hostile strings, and a pipe that is not read.

import FoundationEssentials
import Glibc
import Logging
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A status log", .timeLimit(.minutes(5)))
struct StatusLogTests {
  /// The lines for `events`, without their time.
  private func lines(_ format: Config.Log.Format, level: Config.Log.Level = .debug, _ events: [StatusEvent])
    async throws -> [String]
  {
    try await onOwnThread {
      let pipe = try Pipe()
      let write = try pipe.takeWriteEnd()
      let raw = write.raw
      let log = Self.log(format, level: level, to: raw, ManualQueueClock())
      for event in events { log.observe(event) }
      log.flush()
      _ = consume write
      return pipe.readToEnd().split(separator: "\n").map(String.init)
    }
  }

  private static func log(
    _ format: Config.Log.Format, level: Config.Log.Level, to descriptor: Int32, _ time: ManualQueueClock? = nil
  ) -> StatusLog {
    StatusLog(Config.Log(level: level, format: format), clock: time?.clock ?? .monotonic) { settings in
      Logger(label: "test") { _ in
        LineLogHandler(settings.format == .json ? .json : .text, level: Logger.Level(settings.level), to: descriptor)
      }
    }
  }

  private static let label = AcceptedConnection.Label(
    address: SocketAddress(numeric: "127.0.0.1", port: 51234), listener: "tcp://127.0.0.1:4001")
  private static let report = SessionReport(
    ending: Ending(.deviceLost, SystemError("read", EIO)), up: 12, down: 340, dropped: 1, nanoseconds: 1_234_567_890)

  private static var receiver: DeviceFacts {
    var facts = DeviceFacts()
    (facts.name, facts.manufacturer, facts.model) = ("HM", "ACME", "X\u{1b}[2J 1")
    (facts.serialNumber, facts.firmware, facts.signalStrength, facts.mtu) = ("42", "1.2", -50, 185)
    return facts
  }

  static let words: [(StatusEvent, String)] = [
    (.started(routes: 3), "info started routes=3 version=\(Version.text)"),
    (
      .listening(route: "gps", listener: "tcp://127.0.0.1:0", bound: "tcp://127.0.0.1:4001"),
      "info listening route=gps listen=tcp://127.0.0.1:4001"
    ),
    (
      .listenerWaits(
        route: "x", listener: "tcp://:1",
        OpenFailure("bind", SystemError("bind", EADDRINUSE)), retry: .seconds(1)),
      #"warning listener waiting route=x listen=tcp://:1 error="bind: Address already in use (EADDRINUSE)" retry=1.000"#
    ),
    (
      .listenerLimited(
        route: "x", listener: "rfcomm://",
        [OpenFailure("list", SystemError("bind", EADDRINUSE)), OpenFailure("use", nil, advice: "b")]),
      #"warning listener limited route=x listen=rfcomm:// error="list: Address already in use (EADDRINUSE) | use: b""#
    ),
    (
      .listenerLimited(route: "x", listener: "rfcomm://", []),
      "info listener no longer limited route=x listen=rfcomm://"
    ),
    (
      .sessionOpened(
        route: "x", number: 2,
        AcceptedConnection.Label(address: nil, device: "00:AA:01:00:00:01", listener: "rfcomm://")),
      "info session 2 opened route=x client=00:AA:01:00:00:01 listen=rfcomm://"
    ),
    (
      .inheritedUnused(socket: "tcp://[::]:23", name: "te\nst", .same(as: 4)),
      #"warning inherited socket closed name="te\nst" socket=tcp://[::]:23 error="it is the same as descriptor 4""#
    ),
    (
      .sessionOpened(route: "gps", number: 17, label),
      "info session 17 opened route=gps client=127.0.0.1:51234 listen=tcp://127.0.0.1:4001"
    ),
    (
      .sessionOpened(
        route: "gps", number: 18,
        AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:4001", role: .monitor)),
      "info session 18 opened route=gps listen=tcp://127.0.0.1:4001 role=monitor"
    ),
    (
      .sessionEnded(route: "gps", number: 17, label, report),
      #"info session 17 ended route=gps client=127.0.0.1:51234 reason=device-lost up=12 down=340 dropped=1 seconds=1.234"#
        + #" error="read: Input/output error (EIO)""#
    ),
    (
      .link(route: "gps", endpoint: "sim://nmea", .open, retry: nil), "info link open route=gps endpoint=sim://nmea"
    ),
    (
      .link(
        route: "gps", endpoint: "tty:///dev/x", .waiting(.lost(SystemError("read", EIO))), retry: .milliseconds(250)),
      #"warning link lost route=gps endpoint=tty:///dev/x error="read: Input/output error (EIO)" retry=0.250"#
    ),
    (
      .link(
        route: "gps", endpoint: "tty:///dev/x", .waiting(.openFailed(OpenFailure("open", SystemError("open", ENOENT)))),
        retry: .milliseconds(500)),
      #"warning link waiting route=gps endpoint=tty:///dev/x error="open: No such file or directory (ENOENT)" retry=0.500"#
    ),
    (
      .listenerClosed(route: "gps", listener: "tcp://127.0.0.1:0", bound: "tcp://127.0.0.1:4001"),
      "info listener closed route=gps listen=tcp://127.0.0.1:4001"
    ),
    (
      .portShared(route: "gps", endpoint: "tty:///dev/ttyS0", with: "agetty (pid 812)"),
      #"warning port shared route=gps endpoint=tty:///dev/ttyS0 with="agetty (pid 812)" "#
        + #"advice="it reads bytes that are for this route; end it, or set exclusive=strict to wait for it""#
    ),
    (
      .deviceKnown(route: "gps", endpoint: "ble://FFE0", receiver),
      #"info device known route=gps endpoint=ble://FFE0 dbm=-50 firmware=1.2 manufacturer=ACME model="X\u001b[2J 1""#
        + " mtu=185 name=HM serial=42"
    ),
    (
      .linkDropped(route: "gps", endpoint: "tty:///dev/x", bytes: 12),
      "warning link drops route=gps endpoint=tty:///dev/x dropped=12"
    ),
    (
      .captureBegun(route: "gps", path: "/var/lib/baudway/gps.pcapng"),
      "info recording route=gps path=/var/lib/baudway/gps.pcapng"
    ),
    (
      .captureStopped(route: "gps", path: "/x/gps.pcapng", SystemError("write", ENOSPC)),
      #"warning recording stopped route=gps path=/x/gps.pcapng error="write: No space left on device (ENOSPC)" "#
        + #"advice="free some space, or lower capture.rotate and capture.keep; then reload""#
    ),
    (
      .captureDrops(route: "gps", path: "/x/gps.pcapng", CaptureLoss(bytes: 17), nil),
      #"warning recording drops route=gps dropped=17 path=/x/gps.pcapng "#
        + #"advice="the disk is too slow for this route; record to another one""#
    ),
    (
      .captureDrops(
        route: "gps", path: "/x/gps.pcapng", CaptureLoss(bytes: 17, events: 2), SystemError("write", ENOSPC)),
      #"warning recording drops route=gps dropped=17 events=2 path=/x/gps.pcapng "#
        + #"error="the recording had stopped: write: No space left on device (ENOSPC)""#
    ),
    (
      .clientLink(route: "gps", number: 17, endpoint: "tcp://10.0.0.1:23", .open),
      "debug session 17 link open route=gps endpoint=tcp://10.0.0.1:23"
    ),
    (.writerChanged(route: "gps", from: 17, to: 18), "info writer changed route=gps from=17 to=18"),
    (.writerChanged(route: "gps", from: nil, to: 18), "info writer changed route=gps to=18"),
    (
      .dropped(route: "gps", number: 17, bytes: 512, total: 2048),
      "warning session 17 drops route=gps dropped=512 total=2048"
    ),
    (
      .reloaded(
        ReloadReport(
          added: ["new"], removed: ["gone"], changed: [.init(route: "gps", keys: ["listen", "clients.max"])],
          untouched: 3, settings: ["log.level"])),
      #"info reloaded added=1 changed=1 removed=1 routes=5 changes="+new -gone gps(listen,clients.max) log.level""#
    ),
    (.stopping, "info stopping"), (.stopped, "info stopped"),
  ]

  @Test("uses the documented words for each event")
  func text() async throws {
    let lines = try await lines(.text, Self.words.map(\.0))
    #expect(lines.map { $0.drop { $0 != " " }.dropFirst() } == Self.words.map { Substring($0.1) })
    for line in lines {
      #expect(line.prefix { $0 != " " }.wholeMatch(of: /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z/) != nil)
    }
  }

  @Test("applies the level and format of a new configuration, between the events before and after")
  func changed() async throws {
    let quiet = ReloadReport(log: Config.Log(level: .error, format: .json))
    let loud = ReloadReport(log: Config.Log(level: .debug, format: .text))
    let lines = try await lines(
      .text, level: .info,
      [.stopped, .reloaded(quiet), .stopped, .reloadFailed(problems: ["x"]), .reloaded(loud), .reloading])
    try #require(lines.count == 4)
    #expect(lines[0].hasSuffix("Z info stopped"))
    #expect(lines[1].hasPrefix("{") && lines[1].contains(#""level":"error","event":"reload failed""#))
    #expect(lines[2].contains("Z info reloaded") && lines[3].hasSuffix("Z debug reloading"))
  }

  @Test("reports another gateway at a control socket that is in use")
  func controlTaken() {
    let line = { (error: Int32) in
      let failure = OpenFailure("bind /x", SystemError("bind", error), advice: "its folder")
      return "\(LogLine(.controlFailed(failure, path: "/x")))"
    }
    #expect(line(EADDRINUSE).contains("another gateway uses it") && !line(EACCES).contains("another gateway"))
    #expect(line(ENOENT).contains("No such file or directory (ENOENT); its folder"))
  }

  @Test("knows an event's level before it makes the line")
  func levels() {
    for (event, _) in Self.words { #expect(LogLine.level(of: event) == LogLine(event).level) }
    let rest: [StatusEvent] = [
      .outOfDescriptors(route: "x", listener: "y", SystemError("accept", EMFILE)), .routeStopped("x"),
      .reloaded(ReloadReport()), .reloading, .routeConfigured(route: "x", listeners: []),
      .reloadFailed(problems: ["x"]),
      .controlFailed(OpenFailure("bind /x", SystemError("bind", EACCES)), path: "/x"), .certificateFaults(["x"]),
      .listenerClosed(route: "x", listener: "y", bound: nil), .writerChanged(route: "x", from: 1, to: nil),
      .dropped(route: "x", number: 1, bytes: 2, total: 3),
      .watchFailed(SystemError("inotify_add_watch", EACCES), path: "/x"),
      .watchesRefused(InotifyRefusal(error: SystemError("inotify_init1", EMFILE), limit: .instances)),
      .watchesRestored,
      .configurationDoubtful(
        ConfigProblem(file: "/x", location: nil, path: "y", message: "warning: z", suggestion: nil)),
      .link(route: "x", endpoint: "y", .opening, retry: nil), .link(route: "x", endpoint: "y", .draining, retry: nil),
      .sessionEnded(route: "x", number: 1, Self.label, SessionReport(ending: Ending(.internal))),
    ]
    for event in rest { #expect(LogLine.level(of: event) == LogLine(event).level) }
  }

  @Test("is one valid JSON object per line, with any text in a name or an error")
  func json() async throws {
    let hostile = [
      "\"", "\\", "\n", "\r\n", "\u{0}", "\u{1b}[31m", "\u{7f}", "\u{9b}", "\u{2028}", "é", "😀", "}{", "a=b c", "",
      "\\u0000", String(repeating: "x", count: 100_000),
    ]
    let lines = try await lines(
      .json, hostile.map { .link(route: $0, endpoint: $0, .waiting(.openFailed(OpenFailure($0, nil))), retry: nil) })
    #expect(lines.count == hostile.count)
    for (line, text) in zip(lines, hostile) {
      let object = try JSONDecoder().decode([String: String].self, from: Data(line.utf8))
      #expect(object["route"] == text && object["error"] == text && object["event"] == "link waiting")
      #expect(line.unicodeScalars.allSatisfy { $0.value >= 32 && !(127...159 ~= $0.value) })
    }
  }

  @Test("writes numbers as JSON numbers")
  func numbers() async throws {
    let line = try #require(
      try await lines(.json, [.sessionEnded(route: "x", number: 7, Self.label, Self.report)]).first)
    struct Ended: Decodable { let session, up, down, dropped: Int; let seconds: Double; let reason: String }
    let ended = try JSONDecoder().decode(Ended.self, from: Data(line.utf8))
    #expect(ended.session == 7 && ended.up == 12 && ended.down == 340 && ended.dropped == 1)
    #expect(ended.seconds == 1.234 && ended.reason == "device-lost")
  }

  @Test(
    "stays one line as text, and sends a terminal no control sequences",
    arguments: ["a\nb", "\u{1b}[31m", "\u{9b}31m", "\r"])
  func textInjection(text: String) async throws {
    let lines = try await lines(.text, [.routeStopped(text)])
    #expect(lines.count == 1)
    #expect(lines[0].unicodeScalars.allSatisfy { $0.value >= 32 && !(127...159 ~= $0.value) })
  }

  @Test("delays no lane when its pipe is full, and counts the lines that it could not keep", .waits)
  func stuckPipe() async throws {
    try await onOwnThread {
      let pipe = try Pipe()
      let write = try pipe.takeWriteEnd()
      let raw = write.raw
      let log = Self.log(.json, level: .info, to: raw)
      let total = 30_000
      let before = monotonicNanoseconds()
      for _ in 0..<total { log.observe(.routeStopped("some-route")) }
      log.flush()  // gives up after a second
      #expect(monotonicNanoseconds() - before < 10_000_000_000)
      // The pipe is read again: the kept lines arrive, and the count of the rest.
      var text = ""
      var (kept, dropped) = (0, 0)
      while kept + dropped < total, let more = pipe.readSome() {
        text += more
        let lines = text.split(separator: "\n", omittingEmptySubsequences: false)
        text = String(lines.last ?? "")
        kept += lines.dropLast().count { $0.contains("route stopped") }
        dropped += lines.dropLast().compactMap { $0.firstMatch(of: /"dropped":(\d+)/).flatMap { Int($0.1) } }.reduce(
          0, +)
      }
      _ = consume write
      #expect(dropped > 0 && kept <= 2 * 8192 + 1000)  // waiting, on their way, in the pipe
      #expect(kept + dropped == total)
    }
  }
}

extension StatusLogTests {
  @Test("writes its counts a second later, without another event")
  func summary() async throws {
    try await onOwnThread {
      let pipe = try Pipe()
      let write = try pipe.takeWriteEnd()
      let raw = write.raw
      let time = ManualQueueClock()
      let log = Self.log(.text, level: .info, to: raw, time)
      let refused = SessionReport(ending: Ending(.denied))
      for number in 1...500 {
        log.observe(.sessionEnded(route: "gps", number: UInt64(number), Self.label, refused))
      }
      var text = ""
      while text.split(separator: "\n").count < 10, let more = pipe.readSome() { text += more }
      try time.waitForAlarm()
      time.advance(by: .seconds(1))
      _ = consume write
      text += pipe.readToEnd()
      #expect(text.contains(" info connections not served route=gps client=127.0.0.1 count=490 denied=490\n"))
      #expect(text.split(separator: "\n").count == 11)
    }
  }

  @Test("writes pending lines when it is flushed")
  func flushed() async throws {
    var label = Self.label
    label.hasOwnLink = true
    let refused = SessionReport(ending: Ending(.full))
    let events = (1...12).map { StatusEvent.sessionEnded(route: "gps", number: $0, label, refused) }
    let lines = try await lines(.text, level: .info, [.sessionOpened(route: "gps", number: 99, label)] + events)
    #expect(lines.count == 12)
    #expect(lines.contains { $0.contains("session 99 opened") })
    #expect(lines.contains { $0.contains("count=2 full=2") })
  }

  @Test("applies another 'repeats' with a new configuration")
  func repeats() async throws {
    let refused = SessionReport(ending: Ending(.full))
    let events = (1...30).map { StatusEvent.sessionEnded(route: "gps", number: $0, Self.label, refused) }
    let all = ReloadReport(log: Config.Log(level: .info, format: .text, repeats: .all))
    let lines = try await lines(.text, level: .info, events + [.reloaded(all)] + events)
    try #require(lines.count == 42)
    #expect(lines[10].contains("count=20 full=20"))
    #expect(lines[11].contains("info reloaded"))
  }

  // The documented cost is 2 µs on an idle machine, in a release build.
  @Test("costs the lane that reports an event little", .timed)
  func cost() async throws {
    try await onOwnThread {
      let pipe = try Pipe()
      let write = try pipe.takeWriteEnd()
      let raw = write.raw
      let log = Self.log(.text, level: .info, to: raw)
      let event = StatusEvent.sessionEnded(route: "gps", number: 17, Self.label, Self.report)
      let count = 300  // their lines fit into the pipe
      let before = Self.threadTime()
      for _ in 0..<count { log.observe(event) }
      #expect((Self.threadTime() - before) / count < 20_000)
      log.flush()
      _ = consume write
    }
  }

  private static func threadTime() -> Int {
    var time = timespec()
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
    return time.tv_sec * 1_000_000_000 + time.tv_nsec
  }
}

/// The pipe of pipe(2), blocking at both ends, like a pipe at standard error.
private final class Pipe {
  private let reader: Descriptor
  private let writer: DescriptorParcel

  init() throws(SystemError) {
    var ends: [Int32] = [-1, -1]
    guard Glibc.pipe(&ends) == 0 else { throw SystemError("pipe") }
    reader = Descriptor(owning: ends[0])
    writer = DescriptorParcel(Descriptor(owning: ends[1]))
  }

  func takeWriteEnd() throws(SystemError) -> Descriptor {
    guard let end = writer.take() else { throw SystemError("pipe", EBADF) }
    return end
  }

  func readToEnd() -> String {
    var text = ""
    while let more = readSome() { text += more }
    return text
  }

  func readSome() -> String? {
    var bytes = [UInt8](repeating: 0, count: 65536)
    let count = Glibc.read(reader.raw, &bytes, bytes.count)
    return count > 0 ? String(decoding: bytes[..<count], as: UTF8.self) : nil
  }
}
