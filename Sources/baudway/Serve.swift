// `baudway serve`: the gateway in the foreground, until a signal ends it.

import ArgumentParser
import CLinux
import Dispatch
import GatewayKit
import Glibc
import StreamBroker
import Synchronization

struct Serve: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Runs the gateway in the foreground.",
    discussion: """
      Logs to standard error. SIGHUP reads the configuration again, as `baudway reload` does, and as --watch does by itself; \
      SIGTERM or SIGINT ends in order, at most five seconds later (programs of exec: have five more), and a second one at once, \
      programs too.
      """)

  @OptionGroup var file: ConfigArgument
  @Flag(help: "Read the configuration again whenever its file changes.")
  var watch = false

  @Flag(help: "As root, take a configuration that its group or anybody may write.")
  var unsafePermissions = false

  func run() throws {
    _ = linux_report_crashes(Version.text)  // where that is not possible, there is no line
    let handover = Handover.take()
    let refusesWritable = geteuid() == 0 && !unsafePermissions
    let config = try file.load(refusingWritable: refusesWritable)
    if geteuid() == 0 { for doubt in ConfigFile.doubts(path: file.config) { say(doubt) } }
    raiseDescriptorLimit()
    try require(.serving(config))
    // Whoever reads the log may go before us; no device is to lose its clients for that.
    signal(SIGPIPE, SIG_IGN)
    // Ignored by whoever started us, the kernel would reap our programs, and nobody would know how they ended.
    signal(SIGCHLD, SIG_DFL)
    let log = StatusLog(config.log)
    let board = StatusBoard()
    let manager = serviceManager(of: config)
    let status = StatusSink([log.observe, board.observe] + (manager.map { [$0.observe] } ?? []))
    if let problem = handover.problem { say("baudway: \(problem)") }
    let inherited = InheritedSockets(handover, for: config.routes, tell: { status.tell($0) })
    let gateway: Gateway
    do {
      gateway = try Gateway(
        status: status, board: board, inherited: inherited, bonds: Gateway.bondsPath(environment()))
    } catch {
      say("baudway: \(error)")
      throw ExitCode(EX_OSERR)
    }
    let signals = Signals(gateway, log: log)
    gateway.start(
      config,
      from: ConfigSource(path: file.config, environment: environment(), refusesWritable: refusesWritable))
    if watch { gateway.watchSource() }
    manager?.watch(gateway)
    withExtendedLifetime(signals) { dispatchMain() }
  }

  /// What tells systemd how we are, where it wants to know.
  private func serviceManager(of config: Config) -> ServiceManager? {
    let environment = environment()
    let manager = ServiceManager(environment: environment, config: config)
    if manager == nil, let address = environment["NOTIFY_SOCKET"] {
      say("baudway: NOTIFY_SOCKET is no address of a socket, so nobody is notified: \(address)")
    }
    // Not for the programs that endpoints may run: they would speak in our name.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] { unsetenv(name) }
    return manager
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
    for number in [SIGTERM, SIGINT] {
      on(number) {
        guard stops.count.add(1, ordering: .relaxed).newValue == 1 else {
          gateway.killPrograms()
          PortLocks.letGoOfAll()
          _exit(0)
        }
        gateway.stop {
          log.flush()
          PortLocks.letGoOfAll()
          exit(0)
        }
      }
    }
    on(SIGHUP) { gateway.reload() }
  }

  private func on(_ number: Int32, _ handler: @escaping @Sendable () -> Void) {
    let source = DispatchSource.makeSignalSource(signal: number, queue: .main)
    source.setEventHandler(handler: DispatchWorkItem(block: handler))
    source.activate()
    sources.append(source)
  }
}
