// A port that another program has: when it lets go, and how it is named. Ptys, flock(2) and lock files of the test's own.

import ByteStreams
import CLinux
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBroker

@Suite("A watch of a port in use", .timeLimit(.minutes(1)))
struct PortWatchTests {
  /// Opens and locks a port as picocom, tio and pyserial do.
  private func hold(_ path: String) throws -> DescriptorParcel {
    let raw = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    try #require(raw >= 0 && flock(raw, LOCK_EX | LOCK_NB) == 0)
    return DescriptorParcel(Descriptor(owning: raw))
  }

  private final class News: Sendable {
    let freed = Atomic<Int>(0)
    let appeared = Atomic<Int>(0)

    func note(_ news: DeviceNews) {
      switch news {
      case .freed: freed.add(1, ordering: .relaxed)
      case .appeared: appeared.add(1, ordering: .relaxed)
      }
    }
    var count: Int { freed.load(ordering: .relaxed) }
  }

  /// One failed try, as a link makes it.
  private func fail(_ connector: TTYConnector, _ watch: (any DeviceWatch)?, on lane: isolated Lane) async
    -> SystemError?
  {
    watch?.tryBegins()
    let over = Gate()
    var cause: SystemError?
    let opening = connector.open(on: lane.poller, discardingInput: false) { result in
      if case .failure(let failure) = result { cause = failure.cause } else { Issue.record("it was opened") }
      over.open()
    }
    await over.wait(on: lane)
    withExtendedLifetime(opening) {}
    watch?.tryFailed(cause)
    return cause
  }

  /// Lets the watch set itself up, off the lane.
  private func settle(on lane: isolated Lane, _ milliseconds: Int = 60) async {
    let pause = Gate()
    lane.poller.timers.after(.milliseconds(milliseconds)) { pause.open() }
    await pause.wait(on: lane)
  }

  @Test("tells when the program closes it, and nothing of our own tries")
  func closes() async throws {
    let pair = try TTYPair()
    let locks = try TemporaryFolder()
    let connector = TTYConnector(
      try EndpointURL("tty://\(pair.path)"), usb: USBPorts(), locks: UUCPLocks(folder: locks.path))
    let holder = try hold(pair.path)
    let news = News()
    try await onLane { lane in
      let cause = await fail(connector, nil, on: lane)
      #expect(cause == SystemError("flock", EWOULDBLOCK))
      let watch = try #require(connector.watch(on: lane.poller, after: cause) { news.note($0) })
      await settle(on: lane)
      for _ in 0..<20 { _ = await fail(connector, watch, on: lane) }
      await settle(on: lane)
      #expect(news.count == 0)
      _ = holder.take()
      #expect(await eventually { news.count == 1 })
      // Others that open and close it meanwhile are as good.
      let other = try hold(pair.path)
      _ = await fail(connector, watch, on: lane)
      await settle(on: lane)
      _ = other.take()
      #expect(await eventually { news.count == 2 })
      watch.cancel()
      watch.cancel()
    }
  }

  @Test(
    "tells when a lock file is removed that is not our own, under any name of the port", arguments: ["ttyX", "pts"])
  func unlocks(name: String) async throws {
    let pair = try TTYPair()
    let locks = try TemporaryFolder()
    let connector = TTYConnector(
      try EndpointURL("tty://\(pair.path)"), usb: USBPorts(), locks: UUCPLocks(folder: locks.path))
    let lock = "LCK.." + (name == "pts" ? "pts_" : "") + FileSystem.lastName(of: pair.path)
    try locks.write(lock, "\(getppid())\n")
    let news = News()
    try await onLane { lane in
      let cause = await fail(connector, nil, on: lane)
      #expect(cause == SystemError(UUCPLocks.call, EBUSY))
      let watch = try #require(connector.watch(on: lane.poller, after: cause) { news.note($0) })
      await settle(on: lane)
      for _ in 0..<5 { _ = await fail(connector, watch, on: lane) }
      try locks.write("LCK..another", "\(getppid())\n")
      unlink(locks / "LCK..another")
      await settle(on: lane)
      #expect(news.count == 0)
      unlink(locks / lock)
      #expect(await eventually { news.count == 1 })
      watch.cancel()
    }
  }

  @Test("tells of what happened during a try that was not the try's doing")
  func during() async throws {
    let pair = try TTYPair()
    let locks = try TemporaryFolder()
    let path = locks / "LCK..pts_\(FileSystem.lastName(of: pair.path))"
    let connector = TTYConnector(
      try EndpointURL("tty://\(pair.path)"), usb: USBPorts(), locks: UUCPLocks(folder: locks.path))
    try locks.write("LCK..pts_\(FileSystem.lastName(of: pair.path))", "\(getppid())\n")
    let news = News()
    try await onLane { lane in
      let cause = await fail(connector, nil, on: lane)
      let watch = try #require(connector.watch(on: lane.poller, after: cause) { news.note($0) })
      await settle(on: lane)
      watch.tryBegins()
      unlink(path)
      await settle(on: lane)
      #expect(news.count == 0)
      watch.tryFailed(cause)
      #expect(news.count == 1)
      watch.cancel()
    }
  }
}

@Suite("Who holds a port")
struct PortHoldersTests {
  @Test("is named by what /proc shows of its descriptors, or of its lock; else fuser is advised")
  func names() throws {
    let folder = try TemporaryFolder()
    let (port, proc) = (folder / "ttyUSB0", folder / "proc")
    try folder.write("ttyUSB0", "")
    #expect(PortHolders.advice(for: port, in: proc) == "in use by another program or route; 'fuser \(port)' names it")
    var status = stat()
    #expect(stat(port, &status) == 0)
    let place = String(gnu_dev_major(status.st_dev), radix: 16) + ":" + String(gnu_dev_minor(status.st_dev), radix: 16)
    try folder.write(
      "proc/locks",
      """
      1: POSIX  ADVISORY  WRITE 69 \(place):\(status.st_ino) 0 EOF
      2: FLOCK  ADVISORY  WRITE 68 \(place):\(status.st_ino + 1) 0 EOF
      2: -> FLOCK  ADVISORY  WRITE 67 \(place):\(status.st_ino) 0 EOF
      3: FLOCK  ADVISORY  WRITE 71 \(place):\(status.st_ino) 0 EOF

      """)
    #expect(PortHolders.advice(for: port, in: proc) == "in use by a program (pid 71)")
    try folder.write("proc/71/comm", "tio\u{1B}[31m\n")
    #expect(PortHolders.advice(for: port, in: proc).hasPrefix("in use by tio"))
    #expect(!PortHolders.advice(for: port, in: proc).contains("\u{1B}"))
    for (number, name) in [(70, "minicom"), (72, "cat"), (Int(getpid()), "us")] {
      try folder.write("proc/\(number)/comm", "\(name)\n")
      try folder.write("proc/\(number)/fd/x", "")
      symlink(port, folder / "proc/\(number)/fd/3")
    }
    #expect(PortHolders.advice(for: port, in: proc) == "in use by minicom (pid 70), cat (pid 72)")
  }

  @Test("is found among real programs")
  func real() throws {
    let pair = try TTYPair()
    let raw = open(pair.path, O_RDWR | O_NOCTTY | O_CLOEXEC)
    #expect(raw >= 0 && flock(raw, LOCK_EX) == 0)
    defer { close(raw) }
    // Of our own descriptors nothing is told, for a failed try has one; the lock says whose it is.
    #expect(PortHolders.advice(for: pair.path) == "in use by this program, on another route")
  }
}
