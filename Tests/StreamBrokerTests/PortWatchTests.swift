// A port that another program holds: when that program releases it, and how it is named. Uses ptys, flock(2) and the
// test's own lock files.

import ByteStreams
import CLinux
import Glibc
import StreamTestKit
import Synchronization
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A watch of a port in use", .timeLimit(.minutes(5)))
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

  /// One failed open, as a link makes it.
  private func fail(_ connector: TTYConnector, _ watch: (any DeviceWatch)?, on lane: isolated Lane) async
    -> SystemError?
  {
    watch?.attemptBegins()
    let over = Gate()
    var cause: SystemError?
    let opening = connector.open(OpenRequest(discardsInput: false), on: lane.poller) { result in
      if case .failure(let failure) = result { cause = failure.cause } else { Issue.record("it was opened") }
      over.open()
    }
    await over.wait(on: lane)
    withExtendedLifetime(opening) {}
    watch?.attemptFailed(cause)
    return cause
  }

  /// Waits until the watch, which sets itself up off the lane, watches `path`, and has told its lane so.
  private func setUp(_ path: String, on lane: isolated Lane) async {
    #expect(await eventually { watches(of: path) > 0 })
    await evaluate(on: lane)
  }

  /// Time for news that must not come.
  private func evaluate(on lane: isolated Lane, _ milliseconds: Int = 60) async {
    let pause = Gate()
    lane.poller.timers.after(.milliseconds(milliseconds)) { pause.open() }
    await pause.wait(on: lane)
  }

  @Test("reports when the program closes it, and ignores our own tries")
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
      await setUp(pair.path, on: lane)
      for _ in 0..<20 { _ = await fail(connector, watch, on: lane) }
      await evaluate(on: lane)
      #expect(news.count == 0)
      _ = holder.take()
      #expect(await eventually { news.count == 1 })
      // Other programs that open and close the port meanwhile wake it too.
      let other = try hold(pair.path)
      _ = await fail(connector, watch, on: lane)
      await evaluate(on: lane)
      _ = other.take()
      #expect(await eventually { news.count == 2 })
      watch.cancel()
      watch.cancel()
    }
  }

  @Test(
    "reports the removal of a lock file that is not our own, under any name of the port", arguments: ["ttyX", "pts"])
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
      await setUp(locks.path, on: lane)
      for _ in 0..<5 { _ = await fail(connector, watch, on: lane) }
      try locks.write("LCK..another", "\(getppid())\n")
      unlink(locks / "LCK..another")
      await evaluate(on: lane)
      #expect(news.count == 0)
      unlink(locks / lock)
      #expect(await eventually { news.count == 1 })
      watch.cancel()
    }
  }

  @Test("reports changes during a try that the try did not cause")
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
      await setUp(locks.path, on: lane)
      watch.attemptBegins()
      unlink(path)
      await evaluate(on: lane)
      #expect(news.count == 0)
      watch.attemptFailed(cause)
      #expect(await eventually { news.count == 1 })
      watch.cancel()
    }
  }

  @Test("sees a release between the kernel's watch and its lane's knowledge of it")
  func early() async throws {
    let pair = try TTYPair()
    let locks = try TemporaryFolder()
    let connector = TTYConnector(
      try EndpointURL("tty://\(pair.path)"), usb: USBPorts(), locks: UUCPLocks(folder: locks.path))
    let holder = try hold(pair.path)
    let news = News()
    try await onLane { lane in
      let cause = await fail(connector, nil, on: lane)
      let watch = try #require(connector.watch(on: lane.poller, after: cause) { news.note($0) })
      // The lane is busy here until the watch exists, and then reads its event first.
      let waits = ContinuousClock.now + .seconds(60)
      while watches(of: pair.path) == 0, .now < waits { usleep(1000) }
      _ = holder.take()
      lane.poller.inotify.readNow()
      #expect(news.count == 0)
      #expect(await eventually { news.count == 1 })
      watch.cancel()
    }
  }

  @Test("tries each second where the kernel refuses to watch")
  func refused() async throws {
    let pair = try TTYPair()
    let locks = try TemporaryFolder()
    let connector = TTYConnector(
      try EndpointURL("tty://\(pair.path)"), usb: USBPorts(), locks: UUCPLocks(folder: locks.path))
    let holder = try hold(pair.path)
    let news = News()
    try await onLane(isFast: true) { lane in
      lane.poller.inotify.calls.open = {
        errno = EMFILE
        return -1
      }
      let cause = await fail(connector, nil, on: lane)
      let watch = try #require(connector.watch(on: lane.poller, after: cause) { news.note($0) })
      // The first may be of the port's node, which is new.
      #expect(await eventually { news.appeared.load(ordering: .relaxed) >= 3 })
      watch.cancel()
    }
    _ = holder.take()
  }
}

@Suite("The program that holds a port")
struct PortHoldersTests {
  @Test("is named from its descriptors in /proc, or its lock; otherwise fuser is suggested")
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

  @Test("is named without a lock, with the unit of a service, unless it made the pty or is ourselves")
  func others() throws {
    let folder = try TemporaryFolder()
    let (port, proc) = (folder / "ttyUSB0", folder / "proc")
    try folder.write("ttyUSB0", "")
    #expect(PortHolders.others(of: port, in: proc) == nil && PortHolders.others(of: folder / "none", in: proc) == nil)
    for (number, name) in [(812, "agetty"), (813, "cat"), (814, "sh"), (Int(getpid()), "us")] {
      try folder.write("proc/\(number)/comm", "\(name)\n")
      try folder.write("proc/\(number)/fd/x", "")
      if name != "sh" { symlink(port, folder / "proc/\(number)/fd/3") }
    }
    let cat = "cat (pid 813)"
    #expect(
      PortHolders.others(of: port, in: proc)
        == "agetty (pid 812) of a service: systemctl disable --now serial-getty@ttyUSB0.service stops it, \(cat)")
    try folder.write("proc/812/cgroup", "0::/system.slice/console.service\n")
    try folder.write("proc/813/cgroup", "0::/user.slice/session-1.scope\n")
    #expect(
      PortHolders.others(of: port, in: proc)
        == "agetty (pid 812) of a service: systemctl disable --now console.service stops it, \(cat)")
  }

  @Test("is found by its controlling terminal where its descriptors can't be seen")
  func controllingTerminal() throws {
    let folder = try TemporaryFolder()
    let proc = folder / "proc"
    // /dev/null stands for a port: 1:3. A device's numbers are mixed: 3 + (1 << 8).
    try folder.write("proc/812/comm", "agetty\n")
    try folder.write("proc/812/stat", "812 (a) getty) S 1 812 812 259 812 4194304\n")
    #expect(PortHolders.others(of: "/dev/null", in: proc)?.hasPrefix("agetty (pid 812)") == true)
    try folder.write("proc/812/stat", "812 (agetty) S 1 812 812 260 812 4194304\n")
    #expect(PortHolders.others(of: "/dev/null", in: proc) == nil)
  }

  @Test("is found among real programs")
  func real() throws {
    let pair = try TTYPair()
    let raw = open(pair.path, O_RDWR | O_NOCTTY | O_CLOEXEC)
    #expect(raw >= 0 && flock(raw, LOCK_EX) == 0)
    defer { close(raw) }
    // The gateway's own descriptors are not listed, because a failed open has one; the lock file shows the owner.
    #expect(PortHolders.advice(for: pair.path) == "in use by this program itself")
  }
}
