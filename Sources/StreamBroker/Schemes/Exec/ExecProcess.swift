// A program that we have started, from its start to its reaping: told of by a pidfd in the lane's set. It lives in a process
// group of its own, which ends with it.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import Synchronization

/// A child from before its start until a lane waits for it. If nobody takes it, it is killed and reaped.
final class ChildParcel: Sendable {
  struct Child: Sendable {
    let pid: pid_t
    /// Among the programs: whoever ends the process can end it as well, from before it is there until it is reaped.
    let closing: Closings.Token
  }

  private let content: Mutex<Child?>
  private let programs: Closings

  /// Takes over what `spawn` starts: a child that nobody else waits for, the leader of its group. Throws ECANCELED when all
  /// `programs` were given up.
  init(among programs: Closings, _ spawn: () throws(SystemError) -> pid_t) throws(SystemError) {
    let start = ProgramStart()
    let closing = programs.begin { start.giveUp() }
    do throws(SystemError) {
      content = Mutex(Child(pid: try start.run(spawn), closing: closing))
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

/// The moment at which a program is started, for those who end it at once.
private final class ProgramStart: Sendable {
  private enum State { case before, started(pid_t), givenUp }
  // Held while it is being started: its number comes with the end of that.
  private let state = Mutex(State.before)

  func run(_ spawn: () throws(SystemError) -> pid_t) throws(SystemError) -> pid_t {
    try state.withLock { state throws(SystemError) in
      guard case .before = state else { throw SystemError("posix_spawn", ECANCELED) }
      let pid = try spawn()
      state = .started(pid)
      return pid
    }
  }

  /// A start takes a millisecond, unless the program's file system hangs: then it is left alone after a second.
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

/// Kept by its poller until the program has ended, whoever else has forgotten it.
final class ExecProcess: PollHandler {
  /// How it ended; nil while it runs.
  private(set) var end: ProgramEnd?
  /// Called on the lane when it has ended.
  var hasEnded: () -> Void = {}

  private let program: String
  private let pid: pid_t
  private let pidfd: Descriptor
  private let poller: Poller
  private var killing: Timers.Token?
  private var isTerminated = false
  // Others of its group may live on.
  private var leavesOthers = false
  // Until nobody of its group is left.
  private let closing: Closings.Token

  // Who was asked to end has so long to do it.
  static let patience = Duration.seconds(5)
  private static let look = Duration.seconds(1)

  /// When this fails, the child is killed.
  init(_ program: String, _ child: ChildParcel, on poller: Poller) throws(SystemError) {
    let child = child.take()!  // nobody else has seen the parcel
    let raw = linux_pidfd(child.pid)
    guard raw >= 0 else {
      let error = SystemError("pidfd_open")
      Self.killAndReap(child.pid)
      poller.programs.end(child.closing)
      throw error
    }
    self.program = program
    self.poller = poller
    pid = child.pid
    closing = child.closing
    pidfd = Descriptor(owning: raw)
    try poller.add(raw, handler: self, for: .readable)
  }

  // The lane has stopped, or would not take it.
  deinit {
    if end == nil {
      Self.killAndReap(pid)
    } else if leavesOthers {
      kill(-pid, SIGKILL)
    }
    closed()
  }

  /// For one that nobody waits for any more. A death by SIGKILL takes a moment, or longer where a driver hangs.
  static func killAndReap(_ pid: pid_t) {
    signal(pid, SIGKILL)
    DispatchQueue(label: "reap \(pid)").async {
      while waitpid(pid, nil, 0) < 0, errno == EINTR {}
    }
  }

  /// To one that is not reaped, so that its number and its group's are nobody else's.
  static func signal(_ pid: pid_t, _ number: Int32) {
    if getpgid(pid) != pid { kill(pid, number) }  // it has joined another group of its session
    kill(-pid, number)
  }

  /// Asks the program and all it has started to end, and kills them when they have not within five seconds.
  func terminate() {
    guard !isTerminated, end == nil else { return }
    isTerminated = true
    Self.signal(pid, SIGTERM)
    Self.signal(pid, SIGCONT)  // one that is stopped hears nothing else
    killing = poller.timers.after(Self.patience) { [self] in Self.signal(pid, SIGKILL) }
  }

  func ready(_ events: PollEvents) {
    // While the program is not reaped, its group's number is nobody else's.
    if !isTerminated { kill(-pid, SIGTERM) }
    var status: Int32 = 0
    var signal: Int32 = 0
    guard linux_reap(pid, &status, &signal) != 0 else { return }
    poller.remove(pidfd.raw)
    poller.timers.cancel(killing)
    end = ProgramEnd(program: program, how: signal == 0 ? .exited(status: status) : .killed(signal: signal))
    endOthers(looksLeft: 5)
    hasEnded()
    hasEnded = {}
  }

  /// What the program has started and left behind. A group's number stays taken while it has members, and Linux hands out the
  /// others first: within a second it comes round to nobody else.
  private func endOthers(looksLeft: Int) {
    leavesOthers = kill(-pid, 0) == 0 || errno == EPERM
    guard leavesOthers else { return closed() }
    guard looksLeft > 0 else {
      kill(-pid, SIGKILL)
      leavesOthers = false
      return closed()
    }
    poller.timers.after(Self.look) { [self] in endOthers(looksLeft: looksLeft - 1) }
  }

  private func closed() { poller.programs.end(closing) }
}
