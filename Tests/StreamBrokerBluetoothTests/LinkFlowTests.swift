// From a device's address to an encrypted link: the steps of connecting and securing, and what ends the wait for an
// adapter.

import ByteStreams
import Glibc
import StreamBroker
import Testing

@testable import StreamBrokerBluetooth

private let lamp = Keys.lamp
private let place: [UInt8] = [5, 0, 0, 0, 0, 0xC0, 2]
private let otherPlace: [UInt8] = [6, 0, 0, 0, 0, 0xC0, 2]

private func reported(_ code: UInt16, _ parameters: [UInt8], adapter: UInt16 = 0) -> ManagementEvent {
  Kernel.event(code, adapter, parameters) ?? ManagementEvent(adapter: 99, content: .other(0))
}
private let justWorks: [UInt8] = [1, 0, 0, 0, 0]
private let number: [UInt8] = [0, 1, 2, 3, 0]

@Suite("A connection under way")
struct ConnectFlowTests {
  private func flow() -> ConnectFlow { ConnectFlow(lamp, on: 0, timeout: .seconds(7)) }

  private func steps(_ events: ConnectFlow.Event...) -> [ConnectFlow.Step] {
    var flow = flow()
    return events.map { flow.handle($0) }
  }
  private let refused = SystemError("connect", ECONNREFUSED)

  @Test("ends once, with the first result")
  func once() {
    #expect(steps(.connected, .timedOut, .failed(refused), .connected) == [.ready, .wait, .wait, .wait])
    #expect(steps(.failed(refused), .connected) == [.giveUp(.system(refused)), .wait])
    #expect(steps(.timedOut, .connected) == [.giveUp(.silent(after: .seconds(7))), .wait])
  }

  @Test("has the pairing timeout from the first request on, and reports it")
  func pairs() {
    let asked = ConnectFlow.Event.management(reported(0x0F, place + justWorks))
    #expect(steps(asked, asked, .timedOut) == [.nowPairs, .wait, .giveUp(.neverSecured)])
    #expect(steps(asked, .connected) == [.nowPairs, .ready])
    #expect(steps(.management(reported(0x0E, place + [0]))) == [.nowPairs])
    #expect(steps(.management(reported(0x10, place))) == [.nowPairs])
    #expect(steps(.connected, asked) == [.ready, .wait])
  }

  @Test("knows that the device was reached")
  func linked() {
    for (event, isLinked) in [
      (reported(0x0B, place + [0, 0, 0, 0, 0, 0]), true), (reported(0x0F, place + justWorks), true),
      (reported(0x10, place), true),
      (reported(0x0B, otherPlace), false), (reported(0x0B, place, adapter: 1), false),
      (reported(0x0D, place + [4]), false),
    ] {
      var flow = flow()
      _ = flow.handle(.management(event))
      #expect(flow.isLinked == isLinked)
    }
  }

  @Test("ends with its adapter, and not with another's, or another device's pairing")
  func adapter() {
    #expect(steps(.management(reported(5, []))) == [.giveUp(.adapterIsGone)])
    #expect(steps(.management(reported(6, [0, 2, 0, 0]))) == [.giveUp(.adapterIsOff)])
    #expect(steps(.management(reported(6, [1, 2, 0, 0]))) == [.wait])
    #expect(
      steps(.management(reported(5, [], adapter: 1)), .timedOut) == [.wait, .giveUp(.silent(after: .seconds(7)))])
    #expect(steps(.management(reported(0x0F, otherPlace + justWorks))) == [.wait])
  }

  @Test("names the step in its error")
  func words() {
    for (fault, number, words) in [
      (.silent(after: .seconds(7)), ETIMEDOUT, "within 7.0 seconds"),
      (.adapterIsGone, EHOSTUNREACH, "was just removed"),
      (.adapterIsOff, EHOSTUNREACH, "switched off"), (.neverSecured, ETIMEDOUT, "pairing did not finish"),
      (.system(refused), ECONNREFUSED, "x: "),
    ] as [(ConnectFlow.Fault, Int32, String)] {
      let failure = fault.failure("x")
      #expect(failure.cause?.errno == number)
      #expect("\(failure)".contains(words))
    }
  }
}

@Suite("Securing a link")
struct SecureFlowTests {
  private func flow(
    _ side: BondKeeper.Standing.Side = .ours, line: Int? = nil, wanting security: BluetoothTarget.Security? = nil
  ) -> SecureFlow {
    SecureFlow(lamp, on: 0, .init(side: side, lines: line.map { [lamp: $0] } ?? [:], path: "/b"), wanting: security)
  }

  private func play(_ flow: inout SecureFlow, _ events: ManagementEvent...) -> [SecureFlow.Step] {
    events.map { flow.handle($0) }.filter { $0 != .wait }
  }

  @Test("confirms pairing that needs no comparison, each time, for its own device only")
  func confirms() {
    for side in [.ours, .nobody] as [BondKeeper.Standing.Side] {
      var flow = flow(side)
      let asked = reported(0x0F, place + justWorks)
      #expect(play(&flow, asked, asked) == [.send(.confirm(lamp, 0)), .send(.confirm(lamp, 0))])
      #expect(
        play(
          &flow, reported(0x0F, otherPlace + justWorks), reported(0x0F, place + justWorks, adapter: 1),
          reported(0x0B, place))
          == [])
      #expect(flow.fault(of: ECONNREFUSED) == nil && flow.fault(of: nil) == nil)
    }
    var beside = flow(.daemon)
    #expect(play(&beside, reported(0x0F, place + justWorks)) == [])
  }

  @Test("refuses over Classic a device that pairs under a bonded address, and names the bond's line")
  func impostor() {
    func flow(_ side: BondKeeper.Standing.Side, line: Int?) -> SecureFlow {
      SecureFlow(Keys.phone, on: 0, .init(side: side, lines: line.map { [Keys.phone: $0] } ?? [:], path: "/b"))
    }
    let asked = reported(0x0F, Keys.phone.encoded + justWorks)
    var known = flow(.ours, line: 7)
    #expect(play(&known, asked, asked) == Array(repeating: .send(.refuse(.refuse, Keys.phone, 0)), count: 2))
    #expect(known.fault(of: ECONNRESET) == .stale(path: "line 7 of /b"))
    #expect(play(&known, reported(0x11, Keys.phone.encoded + [5])) == [.giveUp(.stale(path: "line 7 of /b"))])
    // Events of the next link do not count.
    #expect(play(&known, reported(0x0B, Keys.phone.encoded + [0, 0, 0, 0, 0, 0])) == [])
    #expect(known.fault(of: ECONNRESET) == nil)
    var new = flow(.ours, line: nil)
    #expect(play(&new, asked) == [.send(.confirm(Keys.phone, 0))])
    var beside = flow(.daemon, line: 7)
    #expect(play(&beside, asked) == [])
    // Over Low Energy, devices do not connect to the gateway.
    var lamp = self.flow(line: 7)
    #expect(play(&lamp, reported(0x0F, place + justWorks)) == [.send(.confirm(Keys.lamp, 0))])
  }

  @Test("refuses pairing that needs a person, unless another program may answer")
  func people() {
    for (event, code) in [
      (reported(0x0F, place + number), .refuse), (reported(0x10, place), .refuseNumber),
      (reported(0x0E, place + [0]), .refusePIN),
    ] as [(ManagementEvent, ManagementCommand.Code)] {
      var alone = flow()
      #expect(play(&alone, event) == [.send(.refuse(code, lamp, 0))])
      #expect(alone.fault(of: ECONNRESET) == .needsPeople(besideDaemon: false))
      #expect(alone.faultOfSilence() == .needsPeople(besideDaemon: false))
      var beside = flow(.daemon)
      #expect(play(&beside, event) == [])
      #expect(beside.fault(of: EACCES) == .needsPeople(besideDaemon: true))
    }
    #expect(ManagementCommand.refuse(.refuse, lamp, 1).encoded == [0x1D, 0, 1, 0, 7, 0] + place)
  }

  @Test("names the line of a stale bond: one that existed and failed without any pairing")
  func stale() {
    let ended = reported(0x0C, place + [4])
    var flow = flow(line: 7)
    _ = play(&flow, reported(0x0B, place), ended)
    #expect(flow.fault(of: ECONNRESET) == .stale(path: "line 7 of /b"))
    #expect(self.flow(line: 7).fault(of: EACCES) == .stale(path: "line 7 of /b"))
    #expect(self.flow(line: 7).fault(of: ENOSYS) == .stale(path: "line 7 of /b"))
    #expect(self.flow(line: 7).fault(of: ECONNREFUSED) == nil)
    #expect(self.flow().fault(of: ENOSYS) == nil)
    var failed = self.flow(line: 7)
    #expect(play(&failed, reported(0x11, place + [5])) == [.giveUp(.stale(path: "line 7 of /b"))])
    #expect(failed.fault(of: nil) == .stale(path: "line 7 of /b"))
  }

  @Test("does not confuse it with a device that refuses, or with one of bluetoothd's")
  func refused() {
    var flow = flow(line: 7)
    #expect(
      play(&flow, reported(0x0F, place + justWorks), reported(0x11, place + [5])).last
        == .giveUp(.refused(besideDaemon: false)))
    #expect(flow.fault(of: EACCES) == .refused(besideDaemon: false))
    #expect(self.flow().fault(of: EACCES) == .refused(besideDaemon: false))
    #expect(self.flow(.daemon, line: nil).fault(of: EACCES) == .refused(besideDaemon: true))
    for side in [.ours, .daemon, .nobody] as [BondKeeper.Standing.Side] {
      #expect(self.flow(side).faultOfSilence() == .silent(side))
    }
  }

  @Test("keeps the plain error where it does not receive pairing events")
  func deaf() {
    var flow = flow(.nobody)
    #expect(flow.fault(of: EACCES) == nil && flow.fault(of: EPERM) == nil)
    #expect(self.flow(.nobody, wanting: .high).fault(of: EACCES) == nil)
    _ = play(&flow, reported(0x0F, place + justWorks))
    #expect(flow.fault(of: EACCES) == .refused(besideDaemon: false))
    flow = self.flow(.nobody)
    #expect(play(&flow, reported(0x11, place + [5])) == [.giveUp(.refused(besideDaemon: false))])
  }

  @Test("does not count a bond that is too weak for security=high as stale")
  func tooWeak() {
    #expect(flow(line: 7, wanting: .high).fault(of: EACCES) == .tooWeak)
    #expect(flow(.daemon, wanting: .high).fault(of: EPERM) == .tooWeak)
    #expect(flow(line: 7, wanting: .high).fault(of: ENOSYS) == .stale(path: "line 7 of /b"))
    #expect(flow(line: 7, wanting: .medium).fault(of: EACCES) == .stale(path: "line 7 of /b"))
    var new = flow(wanting: .high)
    #expect(play(&new, reported(0x11, place + [5])) == [.giveUp(.tooWeak)])
    var refused = flow(line: 7, wanting: .high)
    #expect(play(&refused, reported(0x0C, place + [4])) == [])
    #expect(refused.fault(of: EACCES) == .stale(path: "line 7 of /b"))
  }

  @Test("forgets events of an earlier link, and ignores the ends of others")
  func late() {
    var flow = flow()
    _ = play(&flow, reported(0x0C, place + [4]), reported(0x0B, place))
    #expect(flow.fault(of: ECONNRESET) == nil)
    _ = play(
      &flow, reported(0x0C, otherPlace + [4]), reported(0x0C, place + [4], adapter: 1), reported(0x0C, place + [3]),
      reported(0x0D, place + [5]))
    #expect(flow.fault(of: ECONNRESET) == nil)
  }

  @Test("explains what to do, and never prints a key")
  func words() {
    for (fault, words) in [
      (.stale(path: "line 7 of /b"), "Remove line 7 of /b"), (.refused(besideDaemon: false), "refused to pair"),
      (.refused(besideDaemon: true), "bluetoothctl remove"), (.needsPeople(besideDaemon: false), "compare or enter"),
      (.needsPeople(besideDaemon: true), "bluetoothctl pair"), (.silent(.daemon), "bluetoothd does the pairing"),
      (.silent(.ours), "within 30.0 seconds"), (.silent(.nobody), "CAP_NET_ADMIN"), (.tooWeak, "security=high"),
    ] as [(SecureFlow.Fault, String)] {
      let failure = fault.failure("connect to it", nil, lamp)
      #expect("\(failure)".contains(words), "\(failure)")
      #expect(failure.cause != nil)
    }
    #expect("\(Keys.longTerm(0xAB))" == "ltk")
    var bond = ""
    print(Keys.longTerm(0xAB), to: &bond)
    #expect(bond == "ltk\n")
  }
}

@Suite("A route that waits for an adapter")
struct AdapterNewsTests {
  @Test("is woken when one appears or is switched on, and by nothing else")
  func news() {
    var news = AdapterNews()
    func isNews(_ code: UInt16, _ parameters: [UInt8], adapter: UInt16 = 0) -> Bool {
      news.isNews(reported(code, parameters, adapter: adapter))
    }
    let (on, alsoBondable, off): ([UInt8], [UInt8], [UInt8]) = ([1, 2, 0, 0], [0x11, 2, 0, 0], [0, 2, 0, 0])
    #expect(isNews(4, []))
    #expect(!isNews(6, off))
    #expect(isNews(6, on))
    #expect(!isNews(6, on))
    #expect(!isNews(6, alsoBondable))
    #expect(isNews(6, on, adapter: 1))
    #expect(!isNews(6, off))
    #expect(isNews(6, on))
    #expect(!isNews(5, []))
    #expect(isNews(6, on))
    #expect(!isNews(0x13, [6, 1]))
    #expect(!isNews(6, [1, 2]))
  }
}
