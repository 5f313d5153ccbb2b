// A lane's inotify instance with several users, in turns that the test drives, and with a kernel that refuses.

import CLinux
import Glibc
import StreamConformanceKit
import StreamTestKit
import Testing

@testable import ByteStreams

@Suite("A lane's inotify instance", .timeLimit(.minutes(1)))
struct InotifyTests {
  private let clock = ManualClock()
  private let poller: Poller
  private let folder: TemporaryFolder
  private var inotify: Inotify { poller.inotify }

  init() throws {
    poller = try Poller(clock: clock.clock) { _ in }
    folder = try TemporaryFolder()
  }

  private final class User: InotifyUser {
    var names: [String] = []
    var lost = 0
    var wakes = 0
    var polls = 0
    var number = 0

    func note(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool {
      if mask & UInt32(IN_Q_OVERFLOW) != 0 { lost += 1 }
      names.append(name.map { String(cString: $0) } ?? "")
      return true
    }
    func filesChanged() { wakes += 1 }
    func poll() { polls += 1 }
  }

  private func user() -> User {
    let user = User()
    user.number = inotify.join(user)
    return user
  }

  private func turn() {
    // Not until nothing comes: the timerfd stays readable when the real time passes the clock's.
    for _ in 0..<4 {
      _ = poller.turn(waiting: 0)
      poller.runAgain()
    }
  }

  private func pass(_ time: Duration) {
    clock.advance(by: time)
    poller.timers.fireDue()
  }

  @Test("gives each user the events that it asked for, also where several watch one folder")
  func shared() throws {
    let (one, other) = (user(), user())
    let watch = try inotify.adding(for: one.number).get().add(folder / "", UInt32(IN_CREATE)).watch
    #expect(try inotify.adding(for: other.number).get().add(folder / "", UInt32(IN_DELETE)).watch == watch)
    try folder.write("a", "")
    unlink(folder / "a")
    turn()
    #expect(one.names == ["a"] && other.names == ["a"])
    #expect(one.wakes == 1 && other.wakes == 1)

    try inotify.adding(for: one.number).get().remove(watch)
    try folder.write("b", "")
    unlink(folder / "b")
    turn()
    #expect(one.names == ["a"] && other.names == ["a", "b"])
  }

  @Test("ends a watch with its last user, and none before")
  func lastUser() throws {
    let (one, other) = (user(), user())
    for each in [one, other] { _ = try inotify.adding(for: each.number).get().add(folder / "", UInt32(IN_CREATE)) }
    inotify.leave(one.number)
    inotify.leave(one.number)
    try folder.write("a", "")
    turn()
    #expect(one.names == [] && other.names == ["a"])
    #expect(watchCount() == 1)
    inotify.leave(other.number)
    #expect(waits { watchCount() == 0 })
  }

  /// How many watches this process has of the test's folder (proc(5), fdinfo).
  private func watchCount() -> Int {
    var status = stat()
    guard stat(folder / "", &status) == 0, let directory = opendir("/proc/self/fdinfo") else { return -1 }
    defer { closedir(directory) }
    var count = 0
    while let entry = readdir(directory) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      guard let file = fopen("/proc/self/fdinfo/\(name)", "r") else { continue }
      defer { fclose(file) }
      var line = [CChar](repeating: 0, count: 512)
      while fgets(&line, Int32(line.count), file) != nil {
        let text = String(decoding: line.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
        if text.hasPrefix("inotify wd:"), text.contains(" ino:\(String(status.st_ino, radix: 16)) ") { count += 1 }
      }
    }
    return count
  }

  private func waits(_ condition: () -> Bool) -> Bool {
    let deadline = monotonicNanoseconds() + 60_000_000_000
    while monotonicNanoseconds() < deadline {
      if condition() { return true }
      usleep(1000)
    }
    return false
  }

  /// Runs `during` when the kernel has added a watch, before the caller knows. Used on the test's thread only.
  private final class Hook: @unchecked Sendable {
    var during: () -> Void = {}
    var isFull = false

    var calls: InotifyCalls {
      var calls = InotifyCalls()
      calls.open = { [self] in
        guard isFull else { return inotify_init1(Int32(IN_NONBLOCK | IN_CLOEXEC)) }
        errno = EMFILE
        return -1
      }
      calls.add = { [self] in
        let watch = inotify_add_watch($0, $1, $2)
        during()
        return watch
      }
      return calls
    }
  }

  @Test("reports events that come while a watch is being added")
  func during() throws {
    let hook = Hook()
    inotify.calls = hook.calls
    hook.during = { [folder, inotify] in
      close(creat(folder / "early", 0o600))
      inotify.readNow()  // as the lane does while a queue adds
    }
    let user = user()
    #expect(try inotify.adding(for: user.number).get().add(folder / "", UInt32(IN_CREATE)).hadEvents)
    #expect(user.names == [])
    close(creat(folder / "late", 0o600))
    turn()
    #expect(user.names == ["late"])
  }

  @Test("keeps a watch that its last user drops while another adds it")
  func droppedDuringAdd() throws {
    let hook = Hook()
    inotify.calls = hook.calls
    let (one, other) = (user(), user())
    let adding = try inotify.adding(for: one.number).get()
    let watch = try adding.add(folder / "", UInt32(IN_CREATE)).watch
    hook.during = { adding.remove(watch) }
    _ = try inotify.adding(for: other.number).get().add(folder / "", UInt32(IN_CREATE))
    try folder.write("a", "")
    turn()
    #expect(one.names == [] && other.names == ["a"])
  }

  @Test("polls each second where the kernel refuses an instance, names its limit once, and watches as soon as it may")
  func instances() throws {
    let hook = Hook()
    hook.isFull = true
    inotify.calls = hook.calls
    var refusals: [InotifyRefusal] = []
    var restored = 0
    inotify.refuses = { refusals.append($0) }
    inotify.watchesAgain = { restored += 1 }
    let users = [user(), user(), user()]
    for user in users {
      guard case .failure(let refusal) = inotify.adding(for: user.number) else {
        Issue.record("there is an instance")
        return
      }
      inotify.startPolling(user.number, refusal)
    }
    #expect(refusals.map(\.limit) == [.instances])
    #expect(refusals.first?.limit?.rawValue == "fs.inotify.max_user_instances")
    pass(.milliseconds(999))
    #expect(users.map(\.polls) == [0, 0, 0])
    pass(.milliseconds(1))
    #expect(users.map(\.polls) == [1, 1, 1])
    hook.isFull = false
    pass(.seconds(1))
    for user in users {
      _ = try inotify.adding(for: user.number).get().add(folder / "", UInt32(IN_CREATE))
      inotify.stopPolling(user.number)
    }
    try folder.write("a", "")
    turn()
    #expect(users.map(\.names) == [["a"], ["a"], ["a"]])
    pass(.seconds(59))
    #expect(users.map(\.polls) == [2, 2, 2] && restored == 0)
    pass(.seconds(1))
    #expect(restored == 1)
    inotify.startPolling(users[0].number, refusals[0])
    #expect(refusals.count == 2)
  }

  @Test("tells the limit of watches from that of instances, and from that of open files")
  func limits() {
    #expect(InotifyRefusal(adding: SystemError("inotify_add_watch", ENOSPC)).limit == .watches)
    #expect(InotifyRefusal.Limit.watches.rawValue == "fs.inotify.max_user_watches")
    #expect(InotifyRefusal(adding: SystemError("inotify_add_watch", EACCES)).limit == nil)
    // Other descriptors open all the same, so it is not the limit of open files.
    #expect(InotifyRefusal(opening: SystemError("inotify_init1", EMFILE)).limit == .instances)
    #expect(InotifyRefusal(opening: SystemError("inotify_init1", ENOMEM)).limit == nil)
  }
}
