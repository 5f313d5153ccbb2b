// Which events become log lines and which are only counted, on a manual clock.

import Glibc
import StreamBroker
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A log limiter")
struct LogLimiterTests {
  /// A limiter, its clock, and its lines: event, and fields as "key=value".
  private struct Rig {
    var limiter: LogLimiter
    var now: UInt64 = 1_000_000_000_000
    private(set) var lines: [String] = []
    private(set) var times: [timespec?] = []
    private var number: UInt64 = 0

    init(_ repeats: Config.Log.Repeats = .summary) { limiter = LogLimiter(repeats) }

    mutating func take(_ event: StatusEvent) {
      var (lines, times) = ([String](), [timespec?]())
      limiter.take(event, timespec(tv_sec: Int(now / 1_000_000_000), tv_nsec: 0), at: now) { line, time in
        lines.append(Self.text(line))
        times.append(time)
      }
      self.lines += lines
      self.times += times
    }

    mutating func wait(_ length: Duration) {
      now += length.nanoseconds
      var (lines, times) = ([String](), [timespec?]())
      limiter.advance(to: now) { line, time in
        lines.append(Self.text(line))
        times.append(time)
      }
      self.lines += lines
      self.times += times
    }

    mutating func set(_ repeats: Config.Log.Repeats) {
      var lines = [String]()
      limiter.set(repeats) { line, _ in lines.append(Self.text(line)) }
      self.lines += lines
    }

    /// The lines written since the last call.
    mutating func news() -> [String] {
      defer { lines = [] }
      return lines
    }

    static func text(_ line: LogLine) -> String {
      let fields = line.fields.map { key, value in
        switch value {
        case .text(let text): " \(key)=\(text)"
        case .number(let number): " \(key)=\(number)"
        case .seconds(let nanoseconds): " \(key)=\(Seconds(nanoseconds: nanoseconds))"
        }
      }
      return "\(line.level) \(line.event)" + fields.joined()
    }

    // Sessions.

    mutating func refuse(_ address: String = "192.0.2.1", _ word: Ending.Word = .denied, route: String = "x") {
      number += 1
      take(.sessionEnded(route: route, number: number, label(address), SessionReport(ending: Ending(word))))
    }

    mutating func refuse(report: SessionReport) {
      number += 1
      take(.sessionEnded(route: "x", number: number, label("192.0.2.1"), report))
    }

    mutating func refuseRequest() { take(.requestRefused(label("192.0.2.1"), HandshakeFault.noSuchPath("/x"))) }

    mutating func open(ownLink: Bool = true, tls: String? = nil) -> UInt64 {
      number += 1
      var label = label("192.0.2.1")
      label.hasOwnLink = ownLink
      label.tls = tls
      take(.sessionOpened(route: "x", number: number, label))
      return number
    }

    mutating func end(
      _ number: UInt64, _ word: Ending.Word = .clientLeft, up: UInt64 = 1, down: UInt64 = 0,
      after nanoseconds: UInt64 = 1_000_000, ownLink: Bool = true, tls: String? = nil
    ) {
      var label = label("192.0.2.1")
      label.hasOwnLink = ownLink
      label.tls = tls
      let report = SessionReport(
        ending: Ending(word), up: up, down: down, nanoseconds: nanoseconds, wasOpened: true)
      take(.sessionEnded(route: "x", number: number, label, report))
    }

    private func label(_ address: String) -> AcceptedConnection.Label {
      AcceptedConnection.Label(
        address: SocketAddress(numeric: address, port: 50_000), listener: "tcp://192.0.2.100:4001")
    }

    // Devices.

    mutating func fail(_ error: Int32 = ENOENT, route: String = "x") {
      take(.link(route: route, endpoint: "tty:///dev/x", .opening, retry: nil))
      let failure = OpenFailure("open", SystemError("open", error))
      take(.link(route: route, endpoint: "tty:///dev/x", .waiting(.openFailed(failure)), retry: .seconds(30)))
      lines.removeAll { $0.hasPrefix("debug") }
    }

    mutating func link(_ status: LinkStatus) {
      take(.link(route: "x", endpoint: "tty:///dev/x", status, retry: nil))
    }
  }

  // MARK: - Refused connections

  @Test("writes ten refusals of an address per second, and counts the rest by reason")
  func oneAddress() {
    var rig = Rig()
    for _ in 0..<40 { rig.refuse() }
    for _ in 0..<5 { rig.refuse("192.0.2.1", .full) }
    #expect(rig.news().count == 10)
    rig.wait(.milliseconds(999))
    #expect(rig.news().isEmpty)
    rig.wait(.milliseconds(1))
    #expect(rig.news() == ["info connections not served route=x client=192.0.2.1 count=35 denied=30 full=5"])
    #expect(rig.limiter.due == nil)
  }

  @Test("counts clients refused for their first bytes as refused, though they had a session")
  func firstBytes() {
    var rig = Rig()
    for _ in 0..<40 { rig.refuse(report: SessionReport(ending: Ending(.denied, HTTPRequestFault()), wasOpened: true)) }
    #expect(rig.news().count == 10)
    rig.wait(.seconds(1))
    #expect(rig.news() == ["info connections not served route=x client=192.0.2.1 count=30 denied=30"])
  }

  @Test("writes a line for each of ten refusals, and for the next ten a second later")
  func within() {
    var rig = Rig()
    for _ in 0..<3 {
      for _ in 0..<10 { rig.refuse() }
      #expect(rig.news().count == 10)
      rig.wait(.seconds(1))
      #expect(rig.news().isEmpty)
    }
  }

  @Test(
    "writes one line per second while an address continues, and every refusal again after a second within the limit")
  func goesOn() {
    var rig = Rig()
    for _ in 0..<50 { rig.refuse() }
    #expect(rig.news().count == 10)
    for _ in 0..<3 {
      rig.wait(.seconds(1))
      for _ in 0..<50 { rig.refuse() }
      #expect(rig.news().count == 1)
    }
    rig.wait(.seconds(1))
    #expect(rig.news() == ["info connections not served route=x client=192.0.2.1 count=50 denied=50"])
    for _ in 0..<5 { rig.refuse() }
    #expect(rig.news().isEmpty, "this second still belongs to the limit")
    rig.wait(.seconds(1))
    #expect(rig.news() == ["info connections not served route=x client=192.0.2.1 count=5 denied=5"])
    rig.refuse()
    #expect(rig.news().count == 1)
  }

  @Test("resets a limit after a pause")
  func pause() {
    var rig = Rig()
    for _ in 0..<50 { rig.refuse() }
    rig.wait(.seconds(1))
    _ = rig.news()
    rig.wait(.seconds(5))
    rig.refuse()
    #expect(rig.news().count == 1)
  }

  @Test("keeps one address from using up the lines of others")
  func apartFromOthers() {
    var rig = Rig()
    for _ in 0..<5000 { rig.refuse("192.0.2.1") }
    for _ in 0..<5 { rig.refuse("192.0.2.2") }
    #expect(rig.news().count == 15)
  }

  @Test("writes a hundred refusals of all addresses per second, and counts the rest by reason")
  func allAddresses() {
    var rig = Rig()
    for number in 0..<250 {
      rig.refuse("10.0.\(number / 200).\(number % 200)", number % 5 == 0 ? .protocolError : .full)
    }
    #expect(rig.news().count == 100)
    rig.wait(.seconds(1))
    #expect(rig.news() == ["info connections not served route=x count=150 full=120 protocol-error=30"])
    for _ in 0..<3 { rig.refuse("10.9.9.9") }
    #expect(rig.news().isEmpty)
    rig.wait(.seconds(1))
    #expect(rig.news() == ["info connections not served route=x client=10.9.9.9 count=3 denied=3"])
    rig.refuse("10.9.9.9")
    #expect(rig.news().count == 1)
  }

  @Test("writes lines for other addresses again while only one address continues")
  func oneStays() {
    var rig = Rig()
    for number in 0..<250 { rig.refuse("10.0.0.\(number)") }
    for _ in 0..<4 {
      rig.wait(.seconds(1))
      for _ in 0..<500 { rig.refuse("10.0.0.1") }
    }
    _ = rig.news()
    rig.refuse("10.0.0.2")
    #expect(rig.news().count == 1)
  }

  @Test("counts an IPv6 network of 64 bits as one address, and omits route and client when there were several")
  func network() {
    var rig = Rig()
    for number in 1...20 { rig.refuse("2001:db8::\(number)") }
    #expect(rig.news().count == 10)
    for _ in 0..<20 { rig.refuse("192.0.2.1", route: "y") }
    rig.wait(.seconds(1))
    #expect(rig.news().last == "info connections not served count=20 denied=20")
    for number in 1...20 { rig.refuse("2001:db8:1::\(number)") }
    rig.wait(.seconds(1))
    #expect(rig.news().last == "info connections not served route=x client=2001:db8:1::/64 count=10 denied=10")
  }

  @Test("remembers few addresses, however many come")
  func memory() {
    var rig = Rig()
    for round in 0..<5 {
      for number in 0..<20_000 { rig.refuse("10.\(round).\(number / 200).\(number % 200)") }
      #expect(rig.limiter.rememberedAddresses <= 256)
      rig.wait(.seconds(1))
    }
    rig.wait(.seconds(2))
    #expect(rig.limiter.rememberedAddresses == 0 && rig.limiter.due == nil)
  }

  @Test("has each of five thousand refusals in a line or in a count")
  func complete() {
    var rig = Rig()
    for number in 0..<5000 {
      rig.refuse("10.0.0.\(number % 30)")
      if number % 100 == 0 { rig.wait(.milliseconds(170)) }
    }
    rig.wait(.seconds(1))
    let lines = rig.news()
    let counts: [Int] = lines.compactMap { line in line.firstMatch(of: /count=(\d+)/).flatMap { Int($0.1) } }
    let counted = counts.reduce(0, +)
    let written = lines.count { $0.contains(" session ended") }
    #expect(written + counted == 5000)
    #expect(lines.count < 200)
  }

  // MARK: - Sessions

  @Test("writes a thousand session ends per second, and counts the rest by ending")
  func ends() {
    var rig = Rig()
    for number in 1...1500 { rig.end(UInt64(number), number % 2 == 0 ? .clientLost : .clientLeft) }
    #expect(rig.news().count == 1000)
    rig.wait(.seconds(1))
    #expect(rig.news() == ["info sessions ended route=x count=500 client-left=250 client-lost=250"])
    rig.end(1501)
    #expect(rig.news().count == 1)
  }

  @Test("gives a summary line the worst level among the events it counts")
  func level() {
    var rig = Rig()
    for number in 1...1000 { rig.end(UInt64(number)) }
    rig.end(1001, .internal)
    _ = rig.news()
    rig.wait(.seconds(1))
    #expect(rig.news() == ["error sessions ended route=x count=1 internal=1"])
  }

  @Test("counts session ends and refusals separately")
  func apart() {
    var rig = Rig()
    for _ in 0..<500 { rig.refuse() }
    for number in 10_000..<10_999 { rig.end(UInt64(number)) }
    #expect(rig.news().count == 10 + 999)
  }

  @Test("writes the opening line of a per-client session once it is 1 s old, with the time when it opened")
  func opening() throws {
    var rig = Rig()
    let opened = rig.now
    let number = rig.open()
    #expect(rig.limiter.due == opened + 1_000_000_000)
    rig.wait(.milliseconds(999))
    #expect(rig.news().isEmpty)
    rig.wait(.milliseconds(1))
    #expect(rig.times.last??.tv_sec == Int(opened / 1_000_000_000))
    let place = "route=x client=192.0.2.1:50000 listen=tcp://192.0.2.100:4001"
    #expect(rig.news() == ["info session opened session=\(number) \(place)"])
    rig.end(number)
    #expect(try #require(rig.news().first).contains("listen=") == false)
    #expect(rig.limiter.due == nil)
  }

  @Test("writes no opening line for a session shorter than that, and adds its fields to the end line")
  func shortSession() throws {
    var rig = Rig()
    let number = rig.open(tls: "TLS 1.3")
    rig.wait(.milliseconds(500))
    rig.end(number, tls: "TLS 1.3")
    let line = try #require(rig.news().first)
    #expect(
      line.contains("session ended") && line.contains(" listen=tcp://192.0.2.100:4001 ")
        && line.contains(" tls=TLS 1.3 "))
    rig.wait(.seconds(5))
    #expect(rig.news().isEmpty && rig.limiter.due == nil)
  }

  @Test("writes opening lines in order, even if some of the sessions end first")
  func order() {
    var rig = Rig()
    var numbers: [UInt64] = []
    for _ in 0..<3000 {
      numbers.append(rig.open())
      rig.now += 100_000
    }
    for number in numbers where number % 3 != 0 { rig.end(number) }
    _ = rig.news()
    rig.wait(.seconds(2))
    let opened: [UInt64] = rig.news().compactMap { line in
      line.firstMatch(of: /session opened session=(\d+)/).flatMap { UInt64($0.1) }
    }
    let left: [UInt64] = numbers.filter { $0 % 3 == 0 }
    #expect(opened == left)
  }

  @Test("writes opening lines at once when too many would have to wait")
  func manyOpen() {
    var rig = Rig()
    for _ in 0..<LogLimiter.mostHeld { _ = rig.open() }
    #expect(rig.news().isEmpty)
    _ = rig.open()
    #expect(rig.news().count == 1)
  }

  @Test("writes opening lines on a shared link at once, and beyond a hundred per second once the session is 1 s old")
  func sharedLink() {
    var rig = Rig()
    let numbers = (0..<120).map { _ in rig.open(ownLink: false) }
    #expect(rig.news().count == 100)
    rig.end(numbers[119], ownLink: false)
    #expect(rig.news().first?.contains(" listen=tcp://192.0.2.100:4001 ") == true)
    rig.wait(.seconds(1))
    #expect(rig.news().count == 19)
    _ = rig.open(ownLink: false)
    #expect(rig.news().count == 1)
  }

  @Test("counts only clients that close at once without a byte as not served")
  func nothing() {
    var rig = Rig()
    for number in 1...30 { rig.end(UInt64(number), number % 2 == 0 ? .clientLost : .clientLeft, up: 0) }
    #expect(rig.news().count == 10)
    rig.end(31, .deviceLost, up: 0)
    rig.end(32, .clientLost, up: 0, after: 1_000_000_000)
    rig.end(33, up: 0, down: 1)
    #expect(rig.news().count == 3)
    rig.wait(.seconds(1))
    #expect(
      rig.news() == ["info connections not served route=x client=192.0.2.1 count=20 client-left=10 client-lost=10"])
  }

  @Test("writes ten refused requests of an address per second, and counts the rest by reason")
  func requests() {
    var rig = Rig()
    for _ in 0..<30 { rig.refuseRequest() }
    #expect(rig.news().count == 10)
    rig.wait(.seconds(1))
    #expect(rig.news() == ["info connections not served client=192.0.2.1 count=20 no-such-path=20"])
  }

  @Test("writes a thousand other lines caused by sessions per second, and counts the rest")
  func others() {
    var rig = Rig()
    for _ in 0..<1200 { rig.take(.writerChanged(route: "x", from: 1, to: 2)) }
    #expect(rig.news().count == 1000)
    rig.link(.open)
    rig.wait(.seconds(1))
    #expect(rig.news() == ["info lines left out route=x count=201 link-open=1 writer-changed=200"])
  }

  // MARK: - Absent devices

  @Test("writes once that a device is absent, again when the reason changes, and then hourly with the count")
  func absent() {
    var rig = Rig()
    rig.fail()
    #expect(rig.news().count == 1)
    for _ in 0..<119 {
      rig.wait(.seconds(30))
      rig.fail()
    }
    #expect(rig.news().isEmpty)
    rig.wait(.seconds(30))
    rig.fail()
    let error = "error=open: No such file or directory (ENOENT)"
    #expect(rig.news() == ["warning link waiting route=x endpoint=tty:///dev/x retry=30.000 \(error) count=120"])
    rig.fail(EACCES)
    #expect(rig.news().count == 1)
    rig.fail(EACCES)
    #expect(rig.news().isEmpty)
    rig.fail(ENOENT)
    #expect(rig.news().count == 1)
  }

  @Test("writes a day of absence in 25 lines")
  func day() {
    var rig = Rig()
    for _ in 0...(24 * 120) {
      rig.fail()
      rig.wait(.seconds(30))
    }
    #expect(rig.news().count == 25)
  }

  @Test("starts again when the device was open, and counts routes separately")
  func back() {
    var rig = Rig()
    rig.fail()
    rig.fail(route: "y")
    #expect(rig.news().count == 2)
    rig.link(.open)
    rig.link(.waiting(.lost(nil)))
    rig.fail()
    rig.fail(route: "y")
    let words = rig.news().map { String($0.split(separator: " ")[2]) }
    #expect(words == ["open", "lost", "waiting"])
  }

  @Test("writes three times an hour that a link is open and lost for the same reason, and then hourly with the count")
  func flaps() {
    var rig = Rig()
    func cycle(_ pause: Duration = .seconds(30)) {
      rig.link(.opening)
      rig.link(.open)
      rig.link(.waiting(.lost(nil)))
      rig.wait(pause)
    }
    for _ in 0..<3 { cycle() }
    #expect(rig.news().filter { !$0.hasPrefix("debug") }.count == 6)
    for _ in 0..<117 { cycle() }
    // The log has said that it was lost.
    #expect(rig.news().filter { !$0.hasPrefix("debug") } == ["info link open route=x endpoint=tty:///dev/x"])
    cycle()
    let line = "warning link lost route=x endpoint=tty:///dev/x error=the endpoint ended count=118"
    #expect(rig.news().filter { !$0.hasPrefix("debug") } == [line])
  }

  @Test("writes a day of a link that is away for one reason and another in turn in less than 200 lines")
  func alternating() {
    var rig = Rig()
    for _ in 0..<(24 * 60) {
      rig.fail(ECONNREFUSED)
      rig.wait(.seconds(30))
      rig.link(.open)
      rig.link(.waiting(.lost(nil)))
      rig.wait(.seconds(30))
    }
    let lines = rig.news()
    #expect(lines.count >= 50 && lines.count < 200, "\(lines.count)")
  }

  @Test("writes that a link which was lost often is open once it stayed so for a minute, with the time when it opened")
  func settles() {
    var rig = Rig()
    for _ in 0..<5 {
      rig.link(.open)
      rig.link(.waiting(.lost(nil)))
    }
    _ = rig.news()
    rig.link(.open)
    rig.wait(.seconds(59))
    #expect(rig.news().isEmpty)
    rig.wait(.seconds(1))
    #expect(rig.news() == ["info link open route=x endpoint=tty:///dev/x"])
  }

  @Test("writes that a device plugged in again and again is open each time that a line said why it was away")
  func pluggedAgain() {
    var rig = Rig()
    for plug in 1...8 {
      rig.fail(ENOENT)
      rig.wait(.seconds(1))
      rig.fail(EACCES)
      let saysAway = rig.news().last?.contains("EACCES") == true
      rig.wait(.milliseconds(10))
      rig.link(.open)
      let saysOpen = rig.news().contains { $0.hasPrefix("info link open") }
      // In the fourth turn the last line is that it was lost.
      #expect(saysAway == (plug <= 3) && saysOpen == (plug <= 4), "\(plug)")
      rig.link(.waiting(.lost(nil)))
      _ = rig.news()
    }
  }

  @Test("omits the closing of a link that was never open")
  func closes() {
    var rig = Rig()
    rig.fail()
    _ = rig.news()
    for _ in 0..<10 {
      rig.link(.closed)
      rig.fail()
    }
    #expect(rig.news().isEmpty)
    rig.link(.open)
    rig.link(.closed)
    #expect(rig.news().count == 2)
  }

  @Test("forgets the absence of a route that has stopped")
  func stopped() {
    var rig = Rig()
    rig.fail()
    rig.take(.routeStopped("x"))
    rig.fail()
    #expect(rig.news().count == 3)
  }

  // MARK: - All

  @Test("writes each line with 'repeats: all'")
  func all() {
    var rig = Rig(.all)
    for _ in 0..<300 { rig.refuse() }
    for number in 1...1500 { rig.end(UInt64(number)) }
    _ = rig.open()
    for _ in 0..<3 { rig.fail() }
    #expect(rig.news().count == 300 + 1500 + 1 + 3)
    #expect(rig.limiter.due == nil)
  }

  @Test("writes pending lines before another configuration takes effect")
  func changed() {
    var rig = Rig()
    _ = rig.open()
    for _ in 0..<12 { rig.refuse() }
    _ = rig.news()
    rig.set(.summary)
    #expect(rig.news().isEmpty)
    rig.set(.all)
    let lines = rig.news()
    #expect(lines.count == 2)
    #expect(lines.first?.contains("session opened") == true)
    #expect(lines.last?.contains("count=2 denied=2") == true)
    rig.refuse()
    #expect(rig.news().count == 1)
  }

  @Test("accepts an event below the log level only if it needs the event itself")
  func needs() {
    #expect(LogLimiter.needs(.link(route: "x", endpoint: "y", .open, retry: nil)))
    #expect(LogLimiter.needs(.routeStopped("x")))
    #expect(!LogLimiter.needs(.link(route: "x", endpoint: "y", .closed, retry: nil)))
    #expect(!LogLimiter.needs(.stopping))
  }
}
