// Pty listeners: programs that open a port one after the other or together, and the state in which each finds it.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A pty listener", .timeLimit(.minutes(5)))
struct PtyListenerTests {
  @Test(
    "gives the port the mode, owner and group of its URL",
    .enabled(if: geteuid() == 0, "only root gives nodes to other users"))
  func rights() async throws {
    try await servePty("sim://echo", query: "?mode=0622&owner=4711&group=nogroup") { path, _, _ in
      var status = stat()
      #expect(stat(path, &status) == 0 && status.st_mode & 0o7777 == 0o622 && status.st_uid == 4711)
      #expect(try status.st_gid == NodeOwnership.group("nogroup"))
      try expectEcho(openPort(path))
    }
  }

  @Test("serves one user after the other at the same port, each in the port's initial state")
  func oneAfterTheOther() async throws {
    try await servePty("sim://echo") { path, story, _ in
      let target = node(of: path)
      for round in 1...10 {
        let port = try openPort(path)
        let raw = open(path, O_RDWR | O_NOCTTY)
        var modes = termios()
        #expect(tcgetattr(raw, &modes) == 0 && modes.c_lflag & tcflag_t(ICANON | ISIG) == 0)
        modes.c_lflag |= tcflag_t(ICANON | ISIG)
        tcsetattr(raw, TCSANOW, &modes)
        Glibc.close(raw)
        try port.send([UInt8(ascii: "\n")])
        #expect(try port.receive(exactly: 1) == [UInt8(ascii: "\n")])
        port.close()
        let ending = try story.reports(atLeast: round)[round - 1].ending
        #expect(ending.word == .clientLeft, "\(ending)")
        #expect(node(of: path) == target)
      }
      #expect(story.opened == 10)
    }
  }

  @Test("restores its link, when a check finds it removed, and keeps its user")
  func removed() async throws {
    try await servePty("sim://echo") { path, story, route in
      let port = try openPort(path)
      try expectEcho(port)
      checkSocketFiles(of: route)
      #expect(!story.all.contains { if case .listenerWaits = $0 { true } else { false } })
      try #require(unlink(path) == 0)
      checkSocketFiles(of: route)
      _ = try story.bound(of: "x", 1)
      try expectEcho(port, 2)
      let next = try openPort(path)
      try next.send([3])
      port.close()
      #expect(try story.reports(atLeast: 1)[0].ending.word == .clientLeft)
      #expect(try next.receive(exactly: 1) == [3])
      next.close()
      #expect(try story.reports(atLeast: 2)[1].up == 1)
      // This time no program has it open.
      try #require(unlink(path) == 0)
      checkSocketFiles(of: route)
      try expectEcho(openPort(path), 4)
    }
  }

  @Test("can be opened by the next program after one that set it exclusive, with root's rights and without")
  func exclusive() async throws {
    try await servePty("sim://echo") { path, story, _ in
      for round in 1...5 {
        // For a moment the link still leads to the previous program's pty, which can't be opened.
        var port: FarEnd?
        try until {
          port = try? openPort(path)
          return port != nil
        }
        let program = try #require(port)
        try expectEcho(program, UInt8(round))
        let descriptor = try program.take()
        #expect(ioctl(descriptor.raw, UInt(TIOCEXCL), 0) == 0)
        _ = consume descriptor
        #expect(try story.reports(atLeast: round)[round - 1].ending.word == .clientLeft)
      }
    }
  }

  @Test("treats several programs that have it open as one client, which ends with the last of them")
  func together() async throws {
    try await servePty("sim://echo") { path, story, _ in
      let first = try openPort(path)
      try expectEcho(first)
      let second = try openPort(path)
      try expectEcho(second, 2)
      first.close()
      try expectEcho(second, 3)
      #expect(story.opened == 1 && story.reports.isEmpty)
      second.close()
      #expect(try story.reports(atLeast: 1)[0].up == 3)
    }
  }

  @Test("delivers the bytes of a program that opens, writes and closes at once")
  func hitAndRun() async throws {
    let server = try LoopbackListener()
    try await servePty("tcp://\(server.address)") { path, story, _ in
      for round in 1...20 {
        let port = try openPort(path)
        try port.send(Array("AT\r\(round)".utf8))
        port.close()
        let endpoint = try server.accept()
        #expect(try endpoint.receiveToEnd() == Array("AT\r\(round)".utf8))
        endpoint.close()
        _ = try story.reports(atLeast: round)
      }
    }
    server.close()
  }

  @Test("makes the next user wait while the device takes the previous user's bytes, and mixes nothing")
  func inTurn() async throws {
    let device = try makePty()
    try await servePty("tty://\(device.path)", "clients: { max: 1 }") { path, story, _ in
      let first = try openPort(path)
      // More than the device, the ring and the port's own buffers take.
      let sent = try sendAll(first)
      let target = node(of: path)
      first.close()
      // Until the gateway has noticed the close, another program would continue the first session.
      try until { node(of: path) != target }
      let second = try openPort(path)
      try second.send([0x42])
      usleep(100_000)
      #expect(story.opened == 1 && story.reports.isEmpty)
      #expect(try device.master.receive(exactly: sent + 1) == [UInt8](repeating: 0x41, count: sent) + [0x42])
      #expect(story.reports.map(\.ending.word) == [.clientLeft] && story.opened == 2)
      device.unplug()
    }
  }

  /// Sends until the gateway has taken no more for a while.
  private func sendAll(_ port: FarEnd) throws -> Int {
    var sent = 0
    var idle = 0
    while sent == 0 || idle < 1000 {
      let more = try port.sendUntilFull(0x41)
      sent += more
      idle = more == 0 ? idle + 1 : 0
      usleep(1000)
    }
    return sent
  }

  @Test("gives no user output meant for the previous user, or sent while no user was there")
  func unread() async throws {
    let server = try LoopbackListener()
    let more = "link: shared, device: { open: always, flush: none }, clients: { max: 2 }"
    let folder = try TemporaryFolder()
    let config = try routeConfig(more, listen: "pty://\(folder / "port")", endpoint: "tcp://\(server.address)")
    try await withRoute(config) { story, _ in
      _ = try story.bound()
      let endpoint = try server.accept()
      let first = try openPort(folder / "port")
      _ = try story.wait { _ in story.opened == 1 ? true : nil }
      try endpoint.send([UInt8](repeating: 0x41, count: 3000))
      #expect(try first.receive(exactly: 1) == [0x41])
      first.close()
      let report = try story.reports(atLeast: 1)[0]
      #expect(report.down == 3000)
      let second = try openPort(folder / "port")
      _ = try story.wait { _ in story.opened == 2 ? true : nil }
      try endpoint.send([0x42])
      #expect(try second.receive(upTo: 100) == [0x42])
      endpoint.close()
    }
    server.close()
  }

  @Test("hangs up on a user whose endpoint ends, after all its output, however slowly the user reads")
  func endpointEnds() async throws {
    let server = try LoopbackListener()
    try await servePty("tcp://\(server.address)") { path, story, _ in
      let port = try openPort(path)
      let endpoint = try server.accept()
      let said = (0..<10_000).map { UInt8($0 % 251) }
      try endpoint.send(said)
      endpoint.close()
      _ = try story.reports(atLeast: 1)
      usleep(300_000)  // longer than any pause between two looks whether the user reads
      #expect(try port.receive(exactly: 100) == Array(said[..<100]))
      usleep(300_000)
      #expect(try port.receiveToEnd() == Array(said[100...]))
      #expect(story.reports[0].ending.word == .endpointLeft)
      port.close()
      let next = try openPort(path)
      try server.accept().send([1])
      #expect(try next.receive(exactly: 1) == [1])
    }
    server.close()
  }

  @Test("hangs up on a user that is kicked, and has another port for the next one")
  func kicked() async throws {
    try await servePty("sim://echo", isFast: true) { path, story, route in
      for round in 1...3 {
        let target = node(of: path)
        let port = try openPort(path)
        try expectEcho(port)
        route.post { _, route in route.kick(Array(route.present.keys)) }
        #expect(try port.receiveToEnd().isEmpty)
        #expect(try story.reports(atLeast: 2 * round - 1)[2 * round - 2].ending.word == .kicked)
        // The kicked user still has the old port, and the new port is free for others.
        try until { node(of: path) != nil && node(of: path) != target }
        let next = try openPort(path)
        try expectEcho(next)
        next.close()
        port.close()
        _ = try story.reports(atLeast: 2 * round)
      }
    }
  }

  @Test("reports that it stopped listening, while it can't make its next port")
  func placeless() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "sub/port"
    mkdir(folder / "sub", 0o700)
    try await withRoute(routeConfig(listen: "pty://\(path)?mode=0600", endpoint: "sim://echo")) { story, route in
      _ = try story.bound()
      let port = try openPort(path)
      try expectEcho(port)
      try #require(rename(folder / "sub", folder / "other") == 0)
      route.post { _, route in route.kick(Array(route.present.keys)) }
      _ = try story.wait { events in events.first { if case .listenerWaits = $0 { true } else { false } } }
      let board = StatusBoard()
      story.all.forEach(board.observe)
      #expect(board.listeners(of: "x").map(\.url) == ["pty://\(path)"] && !board.isHealthy)
      mkdir(folder / "sub", 0o700)
      _ = try story.bound(of: "x", 1)
      try expectEcho(openPort(path))
    }
  }

  @Test(
    "sends a refused user the reason once, and rests until the user closes the port or another program opens it",
    arguments: [true, false])
  func full(stays: Bool) async throws {
    let folder = try TemporaryFolder()
    let text =
      "routes: { x: { listen: ['tcp://127.0.0.1:0', 'pty://\(folder / "port")'], endpoint: 'sim://echo', clients: { max: 1 } } }\n"
    let config = try ConfigFile.read(Array(text.utf8))
    try await withRoute(#require(config.routes.first)) { story, _ in
      _ = try story.bound(of: "x", 1)
      let client = try connectTCP(story.address())
      try expectEcho(client)
      let target = node(of: folder / "port")
      let raw = open(folder / "port", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
      let port = FarEnd(Descriptor(owning: raw), isSocket: false)
      let notice = Array("baudway: x is full (1 of 1 clients)\r\n".utf8)
      #expect(try port.receive(exactly: notice.count) == notice)
      try port.send([UInt8](repeating: 0x41, count: 100_000))  // more than an unread pty takes
      usleep(300_000)
      #expect(!isHungUp(raw) && node(of: folder / "port") == target)
      #expect(story.reports.map(\.ending.word) == [.full])
      client.reset()
      _ = try story.reports(atLeast: 2)
      if !stays { port.close() }
      let next = try openPort(folder / "port")
      try expectEcho(next, 2)
      #expect(story.reports.map(\.ending.word) == [.full, .clientLost] && story.opened == 2)
      next.close()
      port.close()
      #expect(try story.reports(atLeast: 3)[2].up == 1)
    }
  }

  @Test("tries the endpoint once a second for a program that reopens the port after each hang-up", .waits)
  func opensAgain() async throws {
    let server = try LoopbackListener()
    let address = server.address
    server.close()
    try await servePty("tcp://\(address)") { path, story, _ in
      let start = monotonicNanoseconds()
      while story.reports.count < 3, monotonicNanoseconds() - start < Patience.nanoseconds {
        guard let port = try? openPort(path) else { continue }
        _ = try port.receiveToEnd()
        port.close()
      }
      let words = story.reports.map(\.ending.word)
      #expect(words.count == 3 && words.allSatisfy { $0 == .openFailed }, "\(words)")
      #expect(monotonicNanoseconds() - start > 1_900_000_000)  // the second and the third try waited for a second each
    }
  }
}
