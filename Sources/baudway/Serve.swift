// `baudway serve`: the gateway in the foreground, until a signal ends it.

import ArgumentParser
import Dispatch
import GatewayKit
import Glibc
import Synchronization

struct Serve: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Runs the gateway in the foreground.",
    discussion: """
      Logs to standard error. SIGHUP reads the routes of the configuration again; SIGTERM or SIGINT ends in order, at most five \
      seconds later, and a second one at once.
      """)

  @OptionGroup var file: ConfigArgument

  func run() throws {
    let config = try file.load()
    raiseDescriptorLimit()
    // Whoever reads the log may go before us; no device is to lose its clients for that.
    signal(SIGPIPE, SIG_IGN)
    let log = StatusLog(config.log)
    let board = StatusBoard()
    let manager = serviceManager(of: config)
    let status = StatusSink([log.observe, board.observe] + (manager.map { [$0.observe] } ?? []))
    let gateway: Gateway
    do {
      gateway = try Gateway(status: status, board: board)
    } catch {
      say("baudway: \(error)")
      throw ExitCode(EX_OSERR)
    }
    let signals = Signals(gateway, file: file, status: status, log: log)
    gateway.start(
      config, control: ControlAddress(config.control.socket, configPath: file.config, environment: environment()))
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

  /// As many clients as the system allows us: the soft limit is for programs that use select(2).
  private func raiseDescriptorLimit() {
    var limit = rlimit()
    guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return }
    limit.rlim_cur = limit.rlim_max
    setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
  }
}

private final class Stops: Sendable {
  let count = Atomic<Int>(0)
}

/// What the process does on signals. Handlers run on the main queue; the gateway works on its lanes. Reading the
/// configuration may block (a pipe, a network's file system) and has a queue of its own: ending must not wait for it.
private final class Signals {
  private var sources: [any DispatchSourceSignal] = []

  init(_ gateway: Gateway, file: ConfigArgument, status: StatusSink, log: StatusLog) {
    let stops = Stops()
    for number in [SIGTERM, SIGINT] {
      on(number) {
        guard stops.count.add(1, ordering: .relaxed).newValue == 1 else { _exit(0) }
        gateway.stop {
          log.flush()
          exit(0)
        }
      }
    }
    on(SIGHUP, DispatchQueue(label: "baudway.reload")) {
      status.tell(.reloading)
      do {
        gateway.reload(try ConfigFile.load(path: file.config, environment: environment()))
      } catch {
        status.tell(.reloadFailed(problems: "\(error)".split(separator: "\n").map(String.init)))
      }
    }
  }

  private func on(_ number: Int32, _ queue: DispatchQueue = .main, _ handler: @escaping @Sendable () -> Void) {
    let source = DispatchSource.makeSignalSource(signal: number, queue: queue)
    source.setEventHandler(handler: DispatchWorkItem(block: handler))
    source.activate()
    sources.append(source)
  }
}
