// Pty listeners during reloads, and while devices come and go.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A pty listener's port", .timeLimit(.minutes(5)))
struct PtyListenerReloadTests {
  @Test("keeps its user when something else changes")
  func unchanged() async throws {
    try await servePty("sim://echo") { path, story, route in
      let first = node(of: path)
      let port = try openPort(path)
      try expectEcho(port)
      try update(route, routeConfig("clients: { max: 3 }", listen: "pty://\(path)", endpoint: "sim://echo"))
      try expectEcho(port, 2)
      #expect(node(of: path) == first && story.opened == 1 && story.reports.isEmpty)
      port.close()
      _ = try story.reports(atLeast: 1)
      try expectEcho(openPort(path), 3)
    }
  }

  @Test("moves to its new path, and its user keeps the old pty")
  func moved() async throws {
    try await servePty("sim://echo") { path, story, route in
      let port = try openPort(path)
      try expectEcho(port)
      try update(route, routeConfig(listen: "pty://\(path)-2", endpoint: "sim://echo"))
      #expect(try story.bound(of: "x", 1) == "pty://\(path)-2")
      try until { node(of: path) == nil }
      let other = try openPort("\(path)-2")
      try expectEcho(other, 2)
      try port.send([3])
      #expect(try port.receive(exactly: 2) == [2, 3] && other.receive(exactly: 1) == [3])
      #expect(story.links == [.opening, .open] && story.opened == 2)
      port.close()
      #expect(try story.reports(atLeast: 1)[0].up == 2)
      try expectEcho(other, 4)
    }
  }

  @Test("is replaced at the same path when its mode changes")
  func changed() async throws {
    try await servePty("sim://echo") { path, story, route in
      let port = try openPort(path)
      try expectEcho(port)
      try update(route, routeConfig(listen: "pty://\(path)?mode=0600", endpoint: "sim://echo"))
      _ = try story.bound(of: "x", 1)
      var status = stat()
      #expect(stat(path, &status) == 0 && status.st_mode & 0o7777 == 0o600)
      let other = try openPort(path)
      try expectEcho(other, 2)
      #expect(try port.receive(exactly: 1) == [2])
    }
  }

  @Test("stays open for its user when its listener is removed, and accepts no other user")
  func removed() async throws {
    try await servePty("sim://echo") { path, story, route in
      let port = try openPort(path)
      try expectEcho(port)
      try update(route, routeConfig(endpoint: "sim://echo"))
      _ = try story.bound(of: "x", 1)
      try expectEcho(port, 2)
      try until { node(of: path) == nil }
      port.close()
      #expect(try story.reports(atLeast: 1)[0].ending.word == .clientLeft)
    }
  }

  @Test(
    "replaces the link of a gateway that crashed, whose pty is gone or belongs to another program now",
    arguments: [true, false])
  func leftOver(isGone: Bool) async throws {
    let folder = try TemporaryFolder()
    let path = folder / "port"
    let other = try makePty()
    #expect(symlink(isGone ? "/dev/pts/999999" : other.node, path) == 0)
    // The gateway's link is older than the other program's pty.
    let before = [timespec](repeating: timespec(tv_sec: 1_700_000_000, tv_nsec: 0), count: 2)
    #expect(utimensat(AT_FDCWD, path, before, AT_SYMLINK_NOFOLLOW) == 0)
    try await withRoute(routeConfig(listen: "pty://\(path)", endpoint: "sim://echo")) { story, _ in
      _ = try story.bound()
      #expect(node(of: path) != other.node)
      try expectEcho(openPort(path))
    }
    #expect(node(of: path) == nil)
  }

  @Test("waits while its link leads to another gateway's pty, and replaces it when that pty is gone")
  func twoGateways() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "port"
    let other = try PtyDevice.open(path, NodeOwnership(), PtySettings(LineSettings()), replacing: nil)
    let before = node(of: path)
    try await withRoute(routeConfig(listen: "pty://\(path)", endpoint: "sim://echo")) { story, _ in
      let failure = try story.wait { events in
        events.compactMap { event in if case .listenerWaits(_, _, let failure, _) = event { failure } else { nil } }
          .first
      }
      #expect(failure.cause == SystemError("symlink", EADDRINUSE))
      #expect(node(of: path) == before)
      other.leave()
      _ = try story.bound()
      try expectEcho(openPort(path))
    }
    #expect(node(of: path) == nil)
  }

  @Test("keeps its user when the device is lost, and delivers the input to the next device")
  func hold() async throws {
    let devices = try (0...10).map { _ in try makePty() }
    let folder = try TemporaryFolder()
    let device = folder / "device"
    #expect(symlink(devices[0].path, device) == 0)
    try await servePty("tty://\(device)", isFast: true) { path, story, _ in
      let port = try openPort(path)
      try port.send([0])
      #expect(try devices[0].master.receive(exactly: 1) == [0])
      for number in 1...10 {
        unlink(device)
        devices[number - 1].unplug()
        _ = try story.wait { _ in story.links.count { $0.word == "waiting" } >= number ? true : nil }
        try port.send([UInt8(number)])
        #expect(symlink(devices[number].path, device) == 0)
        #expect(try devices[number].master.receive(exactly: 1) == [UInt8(number)])
        try devices[number].master.send([0x80 | UInt8(number)])
        #expect(try port.receive(exactly: 1) == [0x80 | UInt8(number)])
      }
      #expect(story.opened == 1 && story.reports.isEmpty)
      port.close()
      #expect(try story.reports(atLeast: 1)[0].ending.word == .clientLeft)
      devices[10].unplug()
    }
  }

  @Test("hangs up on its user when the device is lost and `absent` is close, and serves the next user")
  func absentClose() async throws {
    let devices = try (0...1).map { _ in try makePty() }
    let folder = try TemporaryFolder()
    let device = folder / "device"
    #expect(symlink(devices[0].path, device) == 0)
    try await servePty("tty://\(device)", "device: { absent: close }") { path, story, _ in
      let port = try openPort(path)
      try port.send([1])
      #expect(try devices[0].master.receive(exactly: 1) == [1])
      try devices[0].master.send([2])
      #expect(try port.receive(exactly: 1) == [2])
      unlink(device)
      devices[0].unplug()
      #expect(try port.receiveToEnd().isEmpty)
      #expect(try story.reports(atLeast: 1).map(\.ending.word) == [.deviceLost])
      #expect(symlink(devices[1].path, device) == 0)
      try until { node(of: path) != nil }
      let next = try openPort(path)
      try next.send([3])
      #expect(try devices[1].master.receive(exactly: 1) == [3])
      port.close()
      next.close()
      devices[1].unplug()
    }
  }
}
