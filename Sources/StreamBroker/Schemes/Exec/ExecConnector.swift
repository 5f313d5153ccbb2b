// exec:/usr/bin/prog?arg=-v: a program's standard input and output, without a shell. Each opening starts it, each close ends
// it. It gets no descriptor of ours but these, none of our signal settings, and of our environment what ExecEnvironment lists.

import ByteStreams
import CLinux
import Glibc

public struct ExecConnector: RemarkingConnector {
  public static let scheme = "exec"
  public static let isLine = false

  private let path: String
  private let arguments: [String]
  private let hasTerminal: Bool
  private let device: DeviceQueue
  private var hear: @Sendable (EndpointRemark) -> Void = { _ in }
  // Starting one takes a millisecond; as many may wait for it as clients come at a time.
  private static let mostAttempts = 1024

  public init(_ url: EndpointURL) throws(URLProblem) {
    path = url.path
    arguments = url.strings("arg")
    hasTerminal = url.flag("pty") ?? false
    device = DeviceQueue.of("exec \(url.path)")
  }

  public var node: String? { path }

  public func telling(_ hear: @escaping @Sendable (EndpointRemark) -> Void) -> any Connector {
    var connector = self
    connector.hear = hear
    return connector
  }

  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let programs = poller.programs
    return device.open(path, most: Self.mostAttempts, on: poller) { [self] () -> Result<Started, OpenFailure> in
      do throws(SystemError) {
        let guardFailure = startGuard()
        var started = hasTerminal ? try startInTerminal(programs) : try start(programs)
        started.guardFailure = guardFailure
        return .success(started)
      } catch {
        return .failure(OpenFailure("start \(path)", error, advice: Self.advice(error)))
      }
    } undo: { _ in  // what nobody takes ends with its parcels
    } _: { result in
      done(result.flatMap { stream(over: $0, on: poller) })
    }
  }

  // MARK: - Starting, on the queue

  /// A program at work, on its way to the lane.
  private struct Started: Sendable {
    let child: ChildParcel
    /// Our end of its socket, or the master of its terminal.
    let stream: DescriptorParcel
    /// What it says on standard error; none in a terminal, where that goes to the terminal too.
    let errors: DescriptorParcel?
    /// Why nobody ends it when this process is killed.
    var guardFailure: SystemError?
  }

  private func startGuard() -> SystemError? {
    do throws(SystemError) {
      try ProgramGuard.shared.start()
      return nil
    } catch {
      return error
    }
  }

  private func start(_ programs: Closings) throws(SystemError) -> Started {
    var ends: [Int32] = [-1, -1]
    guard linux_socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), &ends) == 0 else { throw SystemError("socketpair") }
    let ours = DescriptorParcel(Descriptor(owning: ends[0]))
    let its = Descriptor(owning: ends[1])
    // For a program standard input and output block.
    guard fcntl(its.raw, F_SETFL, 0) == 0 else { throw SystemError("fcntl") }
    guard linux_pipe(&ends) == 0 else { throw SystemError("pipe2") }
    let errors = DescriptorParcel(Descriptor(owning: ends[0]))
    let itsErrors = Descriptor(owning: ends[1])
    let child = try spawn(stream: its.raw, errors: itsErrors.raw, terminal: nil, among: programs)
    return Started(child: child, stream: ours, errors: errors)
  }

  private func startInTerminal(_ programs: Closings) throws(SystemError) -> Started {
    var name = [CChar](repeating: 0, count: 64)
    let raw = linux_open_pty(&name, name.count)
    guard raw >= 0 else { throw SystemError("posix_openpt") }
    let master = DescriptorParcel(Descriptor(owning: raw))
    var size = winsize(ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0)  // with none, many programs draw nothing
    _ = ioctl(raw, UInt(TIOCSWINSZ), &size)
    // It is opened by name in the child, whose failure could be the program's just as well.
    guard access(name, R_OK | W_OK) == 0 else { throw SystemError("open") }
    let child = try spawn(stream: -1, errors: -1, terminal: name, among: programs)
    return Started(child: child, stream: master, errors: nil)
  }

  private func spawn(
    stream: Int32, errors: Int32, terminal: [CChar]?, among programs: Closings
  ) throws(SystemError) -> ChildParcel {
    var arguments = ([path] + arguments).map { strdup($0) }
    var environment = ExecEnvironment.of(hasTerminal: hasTerminal).map { strdup("\($0.name)=\($0.value)") }
    defer { for text in arguments + environment { free(text) } }
    arguments.append(nil)
    environment.append(nil)
    return try ChildParcel(among: programs) { () throws(SystemError) in
      var pid: pid_t = 0
      guard linux_spawn(&pid, path, arguments, environment, stream, errors, terminal) == 0 else {
        throw SystemError("posix_spawn")
      }
      return pid
    }
  }

  private static func advice(_ error: SystemError) -> String? {
    guard error.call == "posix_spawn" else { return nil }
    return switch error.errno {
    case ENOENT: "no such program here, or none that its first line (#!) names"
    case EACCES: "it is no file that we may execute"
    case ENOEXEC: "it is no program; a script needs a first line such as #!/bin/sh"
    default: nil
    }
  }

  // MARK: - The stream, on the lane

  private func stream(over started: Started, on poller: Poller) -> Result<any ByteStream, OpenFailure> {
    if let failure = started.guardFailure {
      hear(EndpointRemark("runs without a guard, and goes on if the gateway is killed: \(failure)", isWarning: true))
    }
    do throws(SystemError) {
      let process = try ExecProcess(path, started.child, on: poller)
      let descriptor = started.stream.take()!  // nobody else has seen the parcels
      let raw = descriptor.raw
      guard let errors = started.errors?.take() else {
        return .success(ExecStream(PtyClientStream(descriptor, on: poller), socket: nil, process, nil, on: poller))
      }
      let listener: ExecErrors
      do throws(SystemError) {
        listener = try ExecErrors(errors, on: poller, hear)
      } catch {
        process.terminate()
        throw error
      }
      let socket = DescriptorStream(descriptor, kind: .socket, on: poller)
      return .success(ExecStream(socket, socket: raw, process, listener, on: poller))
    } catch {
      return .failure(OpenFailure("start \(path)", error))
    }
  }
}

/// What of the gateway's environment a program gets: where it is and how it speaks. Not secrets that the configuration
/// reads from there, and nothing that speaks of the gateway's own service (NOTIFY_SOCKET, LISTEN_FDS).
enum ExecEnvironment {
  static let names = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_NUMERIC",
    "LC_TIME", "LC_COLLATE", "LC_MONETARY", "LC_MESSAGES",
  ]

  static func of(hasTerminal: Bool) -> [(name: String, value: String)] {
    var list = names.compactMap { name in getenv(name).map { (name: name, value: String(cString: $0)) } }
    if !list.contains(where: { $0.name == "PATH" }) {
      list.append(("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))
    }
    if hasTerminal { list.append(("TERM", "vt100")) }
    return list
  }
}
