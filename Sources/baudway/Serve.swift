// `baudway serve`: runs the gateway in the foreground until a signal ends it.

import CommandArguments
import CLinux
import Dispatch
import GatewayKit
import Glibc
import StreamBroker
import Synchronization

struct Serve: Command {
  static let help = CommandHelp(
    "serve", "Runs the gateway in the foreground.",
    discussion: """
      Logs to standard error. SIGHUP reads the configuration again, like `baudway reload`; --watch does so when the file changes. \
      If the terminal in which the gateway was started is gone, SIGHUP ends it. \
      SIGTERM or SIGINT ends all sessions, and the gateway within five seconds (programs of exec: get five more, and so do \
      Bluetooth connections that are being made). A second signal ends the gateway and these programs at once.
      """)

  let file = ConfigFileArgument()
  @Flag(help: "Read the configuration again whenever its file changes.")
  var watch

  @Flag(help: "As root, accept a configuration that its group or others may write.")
  var unsafePermissions

  func run() throws {
    _ = linux_report_crashes(Version.text)  // if that fails, crashes are not reported
    let handover = ListenFDs.take()
    let refusesWritable = geteuid() == 0 && !unsafePermissions
    let path = try file.path()
    let (config, warnings) = try file.load(path, refusingWritable: refusesWritable)
    if geteuid() == 0 { for doubt in ConfigFile.doubts(path: path) { say(doubt) } }
    raiseDescriptorLimit()
    try require(.serving(config))
    // The reader of the log may end before us; no device must lose its clients by that.
    signal(SIGPIPE, SIG_IGN)
    // If our parent ignored SIGCHLD, the kernel would reap our programs, and how they ended would be unknown.
    signal(SIGCHLD, SIG_DFL)
    let log = StatusLog(config.log)
    let board = StatusBoard()
    let manager = serviceManager(of: config)
    let status = StatusSink([log.observe, board.observe] + (manager.map { [$0.observe] } ?? []))
    for warning in warnings { status.publish(.configurationDoubtful(warning)) }
    if let problem = handover.problem { say("baudway: \(problem)") }
    let inherited = InheritedSockets(handover, for: config.routes, admin: config.admin, report: { status.publish($0) })
    let gateway: Gateway
    do {
      gateway = try Gateway(
        status: status, board: board, inherited: inherited, bonds: Gateway.bondsPath(environment()),
        stateFolder: Gateway.stateFolder(environment()))
    } catch {
      say("baudway: \(error)")
      throw ExitCode(EX_OSERR)
    }
    let signals = Signals(gateway, log: log)
    gateway.start(
      config,
      from: ConfigSource(path: path, environment: environment(), refusesWritable: refusesWritable))
    if watch { gateway.watchSource() }
    manager?.watch(gateway)
    withExtendedLifetime(signals) { dispatchMain() }
  }

  /// Notifies systemd, if it asks for that.
  private func serviceManager(of config: Config) -> ServiceManager? {
    let environment = environment()
    let manager = ServiceManager(environment: environment, config: config)
    if manager == nil, let address = environment["NOTIFY_SOCKET"] {
      say("baudway: NOTIFY_SOCKET is not a socket address, so no notifications are sent: \(address)")
    }
    // Removed for the programs that endpoints may run: they would notify systemd in our name.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] { unsetenv(name) }
    return manager
  }
}

/// The terminal in which the process was started. The kernel sends SIGHUP when it is gone: a window was closed, a
/// connection of SSH has ended.
private struct ControllingTerminal: Sendable {
  /// False for a service, and after nohup(1): then no terminal ends the gateway.
  private let counts: Bool

  init() {
    counts = linux_ignores(SIGHUP) == 0 && Self.isThere
  }

  var isGone: Bool { counts && !Self.isThere }

  private static var isThere: Bool {
    let raw = open("/dev/tty", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    if raw >= 0 { close(raw) }
    return raw >= 0
  }
}

private final class Stops: Sendable {
  let count = Atomic<Int>(0)
}

/// What the process does on signals. Handlers run on the main queue; the gateway works on its lanes.
private final class Signals {
  private var sources: [any DispatchSourceSignal] = []

  init(_ gateway: Gateway, log: StatusLog) {
    let stops = Stops()
    let stop: @Sendable () -> Void = {
      gateway.stop {
        log.flush()
        PortLocks.letGoOfAll()
        exit(0)
      }
    }
    for number in [SIGTERM, SIGINT] {
      on(number) {
        guard stops.count.add(1, ordering: .relaxed).newValue == 1 else {
          gateway.killPrograms()
          PortLocks.letGoOfAll()
          _exit(0)
        }
        stop()
      }
    }
    let terminal = ControllingTerminal()
    let stopIfTerminalIsGone: @Sendable () -> Void = {
      guard terminal.isGone else { return }
      if stops.count.add(1, ordering: .relaxed).newValue == 1 { stop() }
    }
    on(SIGHUP) {
      guard !terminal.isGone else { return stopIfTerminalIsGone() }
      // A shell whose window is being closed passes SIGHUP on to a job in the background while the terminal is still
      // there, and the kernel sends such a job none of its own. So look again when the reload is over.
      gateway.reload { _ in DispatchQueue.main.async(execute: stopIfTerminalIsGone) }
    }
    guard getpid() == 1 else { return }
    on(SIGCHLD) { Orphans.shared.reap() }
    Orphans.shared.reap()
  }

  private func on(_ number: Int32, _ handler: @escaping @Sendable () -> Void) {
    let source = DispatchSource.makeSignalSource(signal: number, queue: .main)
    source.setEventHandler(handler: DispatchWorkItem(block: handler))
    source.activate()
    sources.append(source)
  }
}
