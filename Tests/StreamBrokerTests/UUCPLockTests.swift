// Lock files, in the test's own folder.

import ByteStreams
import Dispatch
import Glibc
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A lock file", .serialized, .timeLimit(.minutes(5)))
struct UUCPLockTests {
  private let folder: TemporaryFolder
  private var locks: UUCPLocks { UUCPLocks(folder: folder.path) }
  private var file: String { folder / "LCK..ttyUSB0" }

  init() throws { folder = try TemporaryFolder() }

  private func take() throws(OpenFailure) -> UUCPLock? { try locks.take("/dev/ttyUSB0", leadingTo: "/dev/ttyUSB0") }

  private var content: String? { FileSystem.beginning(of: file).map { String(decoding: $0, as: UTF8.self) } }

  /// The pid of a process that has ended.
  private func deadProcess() throws -> pid_t {
    var pid: pid_t = 0
    try #require(posix_spawn(&pid, "/bin/true", nil, nil, [strdup("true"), nil], nil) == 0)
    waitpid(pid, nil, 0)
    return pid
  }

  @Test("contains the owner's pid, in ten digits and a line feed, until it is released")
  func format() throws {
    do {
      let lock = try take()
      let number = String(getpid())
      #expect(content == String(repeating: " ", count: 10 - number.count) + number + "\n")
      var status = stat()
      #expect(stat(file, &status) == 0 && status.st_mode & 0o777 == 0o644)
      #expect(FileSystem.names(in: folder.path) == ["LCK..ttyUSB0"])
      withExtendedLifetime(lock) {}
    }
    #expect(FileSystem.names(in: folder.path) == [])
  }

  @Test(
    "of a live process is honoured, under any name of the port, and names the process",
    arguments: [
      "LCK..ttyUSB0", "LCK..serial_by-id_x", "LCK..x",
    ])
  func held(name: String) throws {
    let parent = getppid()
    let program = try #require(FileSystem.line(of: "/proc/\(parent)/comm"))
    for text in ["      \(parent)\n", "\(parent)", "\(parent) minicom root\n"] {
      try folder.write(name, text)
      let failure = #expect(throws: OpenFailure.self) {
        try locks.take("/dev/serial/by-id/x", leadingTo: "/dev/ttyUSB0")
      }
      #expect(
        failure?.description
          == "open /dev/serial/by-id/x: Device or resource busy (EBUSY); in use by \(program) (pid \(parent)), according to "
          + (folder / name))
    }
    #expect(FileSystem.names(in: folder.path) == [name])
  }

  @Test("of a dead process, of an earlier process with our pid, or without a pid is replaced")
  func stale() throws {
    let dead = try deadProcess()
    for text in ["\(dead)\n", "\(getpid())\n"] {
      try folder.write("LCK..ttyUSB0", text)
      let lock = try take()
      #expect(lock != nil && content?.contains("\(getpid())") == true)
      withExtendedLifetime(lock) {}
    }
    try folder.write("LCK..ttyUSB0", "")
    #expect(throws: OpenFailure.self) { try take() }  // new, so its owner may still write the pid
    var long = [timespec(tv_sec: 1_000_000, tv_nsec: 0), timespec(tv_sec: 1_000_000, tv_nsec: 0)]
    #expect(utimensat(AT_FDCWD, file, &long, 0) == 0)
    #expect(try take() != nil)
    #expect(FileSystem.names(in: folder.path) == [])
  }

  @Test("may have any time: its owner can set it, and a tmpfs keeps it", arguments: [Int.min, -1, 1 << 40, .max])
  func anyTime(seconds: Int) throws {
    // ext4 would limit the time; /run/lock is a tmpfs.
    let folder = "/dev/shm/baudway-test-\(getpid())"
    try #require(mkdir(folder, 0o700) == 0)
    defer { rmdir(folder) }
    let file = "\(folder)/LCK..ttyUSB0"
    close(open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0o644))
    defer { unlink(file) }
    setTime(of: file, seconds)
    let lock = try? UUCPLocks(folder: folder).take("/dev/ttyUSB0", leadingTo: "/dev/ttyUSB0")
    #expect((lock != nil) == (seconds < 0))
    withExtendedLifetime(lock) {}
  }

  @Test("in four bytes, as Kermit writes it, is understood")
  func binary() throws {
    var number = getppid()
    let bytes = withUnsafeBytes(of: &number) { Array($0) }
    try folder.write("LCK..ttyUSB0", String(decoding: bytes, as: UTF8.self))
    guard FileSystem.beginning(of: file) == bytes else { return }  // not UTF-8 in this case
    #expect(throws: OpenFailure.self) { try take() }
  }

  @Test(
    "counts only with a possible pid: for kill(2), zero and negative ones always exist",
    arguments: [
      [0, 0, 0, 0], [0xFF, 0xFF, 0xFF, 0xFF], [0xFE, 0xFF, 0xFF, 0xFF], Array("0\n".utf8), Array("-1\n".utf8),
    ] as [[UInt8]])
  func noNumber(bytes: [UInt8]) throws {
    let raw = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0o644)
    #expect(write(raw, bytes, bytes.count) == bytes.count && close(raw) == 0)
    // The owner of a new file may write its pid in a moment, so the owner is unknown.
    let failure = #expect(throws: OpenFailure.self) { try take() }
    #expect(failure?.advice?.contains("pid") == false, "\(String(describing: failure))")
    setTime(of: file, 1_000_000)
    #expect(try take() != nil)
  }

  @Test("is not followed if it is a symbolic link, which could lead to a device that acts when opened")
  func link() throws {
    try folder.write("number", "\(getppid())\n")
    #expect(symlink(folder / "number", file) == 0)
    setTime(of: file, 1_000_000)
    #expect(try take() != nil)
  }

  @Test("keeps out another route of the same gateway")
  func ourselves() throws {
    let lock = try take()
    let failure = #expect(throws: OpenFailure.self) { try take() }
    #expect(failure?.advice?.hasPrefix("in use by this program itself") == true)
    try folder.write("LCK..ttyUSB0", "\(try deadProcess())\n")  // written by mistake
    #expect(throws: OpenFailure.self) { try take() }
    withExtendedLifetime(lock) {}
  }

  @Test("is not an error where there is no folder, or none that can be written to")
  func noFolder() throws {
    #expect(try UUCPLocks(folder: folder / "nowhere").take("/dev/ttyUSB0", leadingTo: "/dev/ttyUSB0") == nil)
    #expect(try UUCPLocks(folder: "/proc/self").take("/dev/ttyUSB0", leadingTo: "/dev/ttyUSB0") == nil)
  }

  @Test("is taken by one of many at the same time, also when a stale one exists", arguments: [true, false])
  func race(hasStale: Bool) async throws {
    let dead = try deadProcess()
    let path = folder.path
    for _ in 0..<50 {
      if hasStale { try folder.write("LCK..ttyUSB0", "\(dead)\n") }
      await takeAtOnce()
      // A task releases its result some time after it was handed over.
      try #require(await eventually { FileSystem.names(in: path) == [] })
    }
  }

  private func takeAtOnce() async {
    let locks = locks
    let taken = await withTaskGroup(of: UUCPLock?.self) { group in
      for _ in 0..<4 {
        group.addTask { try? locks.take("/dev/ttyUSB0", leadingTo: "/dev/ttyUSB0") }
      }
      var taken: [UUCPLock] = []
      for await lock in group { if let lock { taken.append(lock) } }
      return taken
    }
    #expect(FileSystem.names(in: folder.path) == ["LCK..ttyUSB0"])
    #expect(taken.count == 1)
  }

  @Test("exists while the port is open, and only if it is opened exclusively", arguments: [true, false])
  func withPort(isExclusive: Bool) async throws {
    let pair = try TTYPair()
    let name = "LCK..pts_\(FileSystem.lastName(of: pair.path))"
    let url = try EndpointURL("tty://\(pair.path)?exclusive=\(isExclusive ? "yes" : "no")")
    let connector = TTYConnector(url, usb: USBPorts(), locks: locks)
    try await onLane { lane in
      let stream = try await connector.opened(on: lane).get()
      #expect(FileSystem.names(in: folder.path) == (isExclusive ? [name] : []))
      stream.value.close()
    }
    let path = folder.path
    #expect(await eventually { FileSystem.names(in: path) == [] })
  }

  @Test("is gone when the port's close counts as over, even if the value is still referenced")
  func goneWithTheClose() async throws {
    let pair = try TTYPair()
    try await onLane { lane in
      let port = TTYPort(pair.path, TTYSettings(), locks: locks)
      let opened = try port.open(discardingInput: false).get()
      let stream = TTYLine.stream(over: opened, of: port, on: lane.poller, device: DeviceQueue("port"))
      #expect(FileSystem.names(in: folder.path).count == 1)
      stream.close()
      let settled = Gate()
      PendingCleanups.settle([lane.closings], within: .seconds(30), on: lane.poller) { settled.open() }
      await settled.wait(on: lane)
      #expect(FileSystem.names(in: folder.path) == [])
      withExtendedLifetime(opened) {}
    }
  }

  @Test("is gone when an opening is undone, even if the value is still referenced")
  func goneWithTheOpening() throws {
    let pair = try TTYPair()
    let opened = try TTYPort(pair.path, TTYSettings(), locks: locks).open(discardingInput: false).get()
    #expect(FileSystem.names(in: folder.path).count == 1)
    opened.close()
    #expect(FileSystem.names(in: folder.path) == [])
    withExtendedLifetime(opened) {}
  }

  @Test("is removed when the process ends while a port's driver hangs in the close")
  func hangingClose() async throws {
    let pair = try TTYPair()
    let url = try EndpointURL("tty://\(pair.path)")
    let connector = TTYConnector(url, usb: USBPorts(), locks: locks)
    let driver = DispatchSemaphore(value: 0)
    defer { driver.signal() }
    try await onLane { lane in
      let stream = try await connector.opened(on: lane).get()
      DeviceQueue.of(url.target).queue.async { driver.wait() }
      stream.value.close()
      let settled = Gate()
      PendingCleanups.settle([lane.closings], within: .milliseconds(20), on: lane.poller) { settled.open() }
      await settled.wait(on: lane)
    }
    #expect(FileSystem.names(in: folder.path).count == 1)
    PortLocks.letGoOfAll()
    #expect(FileSystem.names(in: folder.path) == [])
  }

  @Test("that was released early does not remove the next one's")
  func letGoEarly() throws {
    let first = try take()
    PortLocks.letGoOfAll()
    let second = try take()
    first?.letGo()
    #expect(second != nil && FileSystem.names(in: folder.path) == ["LCK..ttyUSB0"])
    withExtendedLifetime((first, second)) {}
  }
}
