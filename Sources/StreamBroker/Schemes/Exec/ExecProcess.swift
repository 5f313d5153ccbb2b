// A program that we have started, from its start to its reaping: told of by a pidfd in the lane's set. It lives in a process
// group of its own, which ends with it.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import Synchronization

/// A child on its way to the lane that will wait for it. If nobody takes it, it is killed and reaped.
final class ChildParcel: Sendable {
  private let content: Mutex<pid_t?>

  /// Takes over a child that nobody else waits for, the leader of its group.
  init(_ pid: pid_t) { content = Mutex(pid) }

  func take() -> pid_t? { content.withLock { $0.take() } }

  deinit {
    if let pid = take() { ExecProcess.killAndReap(pid) }
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
  // From its start until nobody of its group is left: whoever ends the process can end it as well, whatever it is doing.
  private var closing: Closings.Token?

  // Who was asked to end has so long to do it.
  static let patience = Duration.seconds(5)
  private static let look = Duration.seconds(1)

  /// When this fails, the child is killed.
  init(_ program: String, _ child: ChildParcel, on poller: Poller) throws(SystemError) {
    let pid = child.take()!  // nobody else has seen the parcel
    let raw = linux_pidfd(pid)
    guard raw >= 0 else {
      let error = SystemError("pidfd_open")
      Self.killAndReap(pid)
      throw error
    }
    self.program = program
    self.pid = pid
    self.poller = poller
    pidfd = Descriptor(owning: raw)
    try poller.add(raw, handler: self, for: .readable)
    closing = poller.programs.begin { Self.signal(pid, SIGKILL) }
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
  private static func signal(_ pid: pid_t, _ number: Int32) {
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

  private func closed() {
    if let closing { poller.programs.end(closing) }
  }
}
