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
    /// Nil for one that has ended already and whose number is nobody's: where SIGCHLD is ignored nothing has to be reaped.
    let pidfd: DescriptorParcel?
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
      let pid = try start.run(spawn)
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
  private let pidfd: Descriptor?
  // Its number, or -1.
  private let raw: Int32
  private let poller: Poller
  private var killing: Timers.Token?
  private var isTerminated = false
  // Others of its group may live on.
  private var leavesOthers = false
  // Until nobody of its group is left.
  private let closing: Closings.Token
  private var isClosed = false
  // How often the kernel may be asked how it ended, when another has reaped it.
  private var looksLeft = 100

  // Who was asked to end has so long to do it.
  static let patience = Duration.seconds(5)
  private static let look = Duration.seconds(1)

  /// When this fails, the child is killed.
  init(_ program: String, _ child: ChildParcel, on poller: Poller) throws(SystemError) {
    let child = child.take()!  // nobody else has seen the parcel
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

  // The lane has stopped, or would not take it.
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

  /// For one that nobody waits for any more. A death by SIGKILL takes a moment, or longer where a driver hangs.
  static func killAndReap(_ pid: pid_t) {
    signal(pid, SIGKILL)
    ProgramGuard.shared.remove(pid)
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
    switch linux_reap(pid, &status, &signal) {
    case 0: return
    case 1: finish(signal == 0 ? .exited(status: status) : .killed(signal: signal))
    default: askHowItEnded()
    }
  }

  /// Another part of this process waits for all children, or SIGCHLD is ignored. Newer kernels know it all the same.
  private func askHowItEnded() {
    var status: Int32 = 0
    var signal: Int32 = 0
    let answer = linux_pidfd_end(raw, &status, &signal)
    looksLeft -= 1
    if answer == 0 && looksLeft > 0 { return }  // the poller asks again at once
    finish(answer != 1 ? .unknown : signal == 0 ? .exited(status: status) : .killed(signal: signal))
  }

  private func finish(_ how: ProgramEnd.How) {
    if raw >= 0 { poller.remove(raw) }
    poller.timers.cancel(killing)
    end = ProgramEnd(program: program, how: how)
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

  private func closed() {
    guard !isClosed else { return }
    isClosed = true
    ProgramGuard.shared.remove(pid)
    poller.programs.end(closing)
  }
}
