// A program that we started, until it is reaped. A pidfd in the lane's epoll set reports its end. It has a process
// group of its own, which is ended with it.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import Synchronization

/// A child from before its start until a lane takes it. If no lane does, it is killed and reaped.
final class ChildParcel: Sendable {
  struct Child: Sendable {
    let pid: pid_t
    /// Nil if the child has already ended and its number is free again: if SIGCHLD is ignored, nothing has to be
    /// reaped.
    let pidfd: DescriptorParcel?
    /// Its entry among the programs: code that ends this process can also end the child, from before it exists until it
    /// is reaped.
    let closing: PendingCleanups.Token
  }

  private let content: Mutex<Child?>
  private let programs: PendingCleanups

  /// Takes over the child that `spawn` starts: the leader of its process group, which no other code waits for. Throws
  /// ECANCELED if all `programs` were given up.
  init(among programs: PendingCleanups, _ spawn: () throws(SystemError) -> pid_t) throws(SystemError) {
    let start = ProgramStart()
    let closing = programs.begin { start.giveUp() }
    do throws(SystemError) {
      let pid = try Orphans.shared.starting { () throws(SystemError) in try start.run(spawn) }
      ProgramGuard.shared.add(pid)
      let pidfd = linux_pidfd(pid)
      guard pidfd >= 0 || errno == ESRCH else {
        let error = SystemError("pidfd_open")
        ExecProcess.killAndReap(pid)
        throw error
      }
      let parcel = pidfd < 0 ? nil : DescriptorParcel(Descriptor(owning: pidfd))
      content = Mutex(Child(pid: pid, pidfd: parcel, closing: closing))
    } catch {
      programs.end(closing)
      throw error
    }
    self.programs = programs
  }

  func take() -> Child? { content.withLock { $0.take() } }

  deinit {
    guard let child = take() else { return }
    ExecProcess.killAndReap(child.pid)
    programs.end(child.closing)
  }
}

/// The start of a program, which `giveUp` may interrupt at any time.
private final class ProgramStart: Sendable {
  private enum State { case before, started(pid_t), givenUp }
  // Held during the start: the process number is known only at the end of it.
  private let state = Mutex(State.before)

  func run(_ spawn: () throws(SystemError) -> pid_t) throws(SystemError) -> pid_t {
    try state.withLock { state throws(SystemError) in
      guard case .before = state else { throw SystemError("posix_spawn", ECANCELED) }
      let pid = try spawn()
      state = .started(pid)
      return pid
    }
  }

  /// A start takes a millisecond, unless the program's file system hangs. After a second this stops waiting for it.
  func giveUp() {
    for _ in 0..<100 {
      let isSeen: Void? = state.withLockIfAvailable { state in
        if case .started(let pid) = state { ExecProcess.signal(pid, SIGKILL) } else { state = .givenUp }
      }
      if isSeen != nil { return }
      usleep(10_000)
    }
  }
}

/// Its poller keeps it until the program has ended, even if nothing else does.
final class ExecProcess: PollHandler {
  /// How it ended; nil while it runs.
  private(set) var end: ProgramEnd?
  /// Called on the lane when the program has ended.
  var hasEnded: () -> Void = {}

  private let program: String
  private let pid: pid_t
  private let pidfd: Descriptor?
  // The pidfd's number, or -1.
  private let raw: Int32
  private let poller: Poller
  private var killing: Timers.Token?
  private var isTerminated = false
  // Other processes of its group may still run.
  private var leavesOthers = false
  // Ends when no process of its group is left.
  private let closing: PendingCleanups.Token
  private var isClosed = false
  // How often the kernel may still be asked how the program ended, if other code has reaped it.
  private var looksLeft = 100

  // From SIGTERM to SIGKILL.
  static let timeout = Duration.seconds(5)
  private static let look = Duration.seconds(1)
  private static let firstLook = Duration.milliseconds(5)

  /// If this throws, the child is killed.
  init(_ program: String, _ child: ChildParcel, on poller: Poller) throws(SystemError) {
    let child = child.take()!  // no other code has seen the parcel
    self.program = program
    self.poller = poller
    pid = child.pid
    closing = child.closing
    let pidfd = child.pidfd?.take()
    switch pidfd {
    case .some(let descriptor): raw = descriptor.raw
    case .none: raw = -1
    }
    self.pidfd = consume pidfd
    if raw >= 0 {
      try poller.add(raw, handler: self, for: .readable)
    } else {
      poller.timers.after(.zero) { [self] in finish(.unknown) }
    }
  }

  // The lane has stopped, or did not accept it.
  deinit {
    if end == nil {
      Self.killAndReap(pid)
      isClosed = true
      poller.programs.end(closing)
    } else {
      if leavesOthers { kill(-pid, SIGKILL) }
      closed()
    }
  }

  /// For a program that nothing waits for any more. Death by SIGKILL takes a moment, or longer if a driver hangs.
  static func killAndReap(_ pid: pid_t) {
    signal(pid, SIGKILL)
    ProgramGuard.shared.remove(pid)
    DispatchQueue(label: "reap \(pid)").async {
      while waitpid(pid, nil, 0) < 0, errno == EINTR {}
      Orphans.shared.isReaped(pid)
    }
  }

  /// Call it only before the program is reaped: until then its number and its group's belong to nothing else.
  static func signal(_ pid: pid_t, _ number: Int32) {
    if getpgid(pid) != pid { kill(pid, number) }  // the program has joined another group of its session
    kill(-pid, number)
  }

  /// Asks the program and all it has started to end, and kills them after five seconds.
  func terminate() {
    guard !isTerminated, end == nil else { return }
    isTerminated = true
    Self.signal(pid, SIGTERM)
    Self.signal(pid, SIGCONT)  // a stopped program handles SIGTERM only after this
    killing = poller.timers.after(Self.timeout) { [self] in Self.signal(pid, SIGKILL) }
  }

  func ready(_ events: PollEvents) {
    // Until the program is reaped, its group's number belongs to nothing else.
    if !isTerminated { kill(-pid, SIGTERM) }
    var status: Int32 = 0
    var signal: Int32 = 0
    switch linux_reap(pid, &status, &signal) {
    case 0: return
    case 1: finish(signal == 0 ? .exited(status: status) : .killed(signal: signal))
    default: askHowItEnded()
    }
  }

  /// Other code in this process waits for all children, or SIGCHLD is ignored. Newer kernels still report how it ended.
  private func askHowItEnded() {
    var status: Int32 = 0
    var signal: Int32 = 0
    let answer = linux_pidfd_end(raw, &status, &signal)
    looksLeft -= 1
    if answer == 0 && looksLeft > 0 { return }  // the poller asks again at once
    finish(answer != 1 ? .unknown : signal == 0 ? .exited(status: status) : .killed(signal: signal))
  }

  private func finish(_ how: ProgramEnd.How) {
    Orphans.shared.isReaped(pid)
    if raw >= 0 { poller.remove(raw) }
    poller.timers.cancel(killing)
    end = ProgramEnd(program: program, how: how)
    endOthers(after: .zero)
    hasEnded()
    hasEnded = {}
  }

  /// Ends the processes that the program started and left running. A group's number stays taken while it has members.
  /// After that Linux hands out the other numbers first, so it is not reused within a second.
  /// `waited` is how long they had to end.
  private func endOthers(after waited: Duration) {
    leavesOthers = kill(-pid, 0) == 0 || errno == EPERM
    guard leavesOthers else { return closed() }
    guard waited < Self.timeout else {
      kill(-pid, SIGKILL)
      leavesOthers = false
      return closed()
    }
    // Most end at once: look soon, then less often.
    let pause = min(max(waited, Self.firstLook), Self.look)
    poller.timers.after(pause) { [self] in endOthers(after: waited + pause) }
  }

  private func closed() {
    guard !isClosed else { return }
    isClosed = true
    ProgramGuard.shared.remove(pid)
    poller.programs.end(closing)
  }
}
