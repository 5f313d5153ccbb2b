// exec:/usr/bin/prog?arg=-v: a program's standard input and output, without a shell. Each opening starts the program,
// each close ends it. It inherits no other descriptors of ours, no signal settings, and only the environment that
// ExecEnvironment lists.

import ByteStreams
import CLinux
import Glibc

/// Starts programs, whose standard input and output are the stream: `exec:/usr/bin/prog?arg=-v`. No shell reads the
/// arguments. Closing the stream ends the program and its process group.
public struct ExecConnector: Connector {
  public static let grammar = EndpointSchemes.exec
  public static let isLine = false

  private let path: String
  private let arguments: [String]
  private let hasTerminal: Bool
  private let device: DeviceQueue
  // Starting a program takes a millisecond, so the limit is the number of clients that may connect at the same time.
  private static let mostAttempts = 1024

  public init(_ url: EndpointURL) throws(URLProblem) {
    path = url.path
    arguments = url.strings("arg")
    hasTerminal = url.flag("pty") ?? false
    device = DeviceQueue.of("exec \(url.path)")
  }

  public var node: String? { path }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    request.report?(.open(path))
    let (programs, remark) = (poller.programs, request.remark)
    return device.open(path, most: Self.mostAttempts, on: poller) { [self] () -> Result<Started, OpenFailure> in
      do throws(SystemError) {
        let guardFailure = startGuard()
        var started = hasTerminal ? try startInTerminal(programs) : try start(programs)
        started.guardFailure = guardFailure
        return .success(started)
      } catch {
        return .failure(OpenFailure("start \(path)", error, advice: Self.advice(error)))
      }
    } undo: { _ in  // without a receiver, the program ends with its parcels
    } _: { result in
      done(result.flatMap { stream(over: $0, on: poller, remark) })
    }
  }

  // MARK: - Starting, on the queue

  /// A running program, on its way to the lane.
  private struct Started: Sendable {
    let child: ChildParcel
    /// Our end of its socket, or the master of its terminal.
    let stream: DescriptorParcel
    /// The program's standard error; nil with a terminal, which gets that output, too.
    let errors: DescriptorParcel?
    /// Why no guard ends the program if this process is killed; nil if one does.
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

  private func start(_ programs: PendingCleanups) throws(SystemError) -> Started {
    var ends: [Int32] = [-1, -1]
    guard linux_socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), &ends) == 0 else { throw SystemError("socketpair") }
    let ours = DescriptorParcel(Descriptor(owning: ends[0]))
    let its = Descriptor(owning: ends[1])
    // Programs expect blocking standard input and output.
    guard fcntl(its.raw, F_SETFL, 0) == 0 else { throw SystemError("fcntl") }
    guard linux_pipe(&ends) == 0 else { throw SystemError("pipe2") }
    let errors = DescriptorParcel(Descriptor(owning: ends[0]))
    let itsErrors = Descriptor(owning: ends[1])
    let child = try spawn(stream: its.raw, errors: itsErrors.raw, terminal: nil, among: programs)
    return Started(child: child, stream: ours, errors: errors)
  }

  private func startInTerminal(_ programs: PendingCleanups) throws(SystemError) -> Started {
    var name = [CChar](repeating: 0, count: 64)
    let raw = linux_open_pty(&name, name.count)
    guard raw >= 0 else { throw SystemError("posix_openpt") }
    let master = DescriptorParcel(Descriptor(owning: raw))
    var size = winsize(ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0)  // without it, many programs draw nothing
    _ = ioctl(raw, UInt(TIOCSWINSZ), &size)
    // Checked here: the child opens it by name, and a failure there would look like the program's own.
    guard access(name, R_OK | W_OK) == 0 else { throw SystemError("open") }
    let child = try spawn(stream: -1, errors: -1, terminal: name, among: programs)
    return Started(child: child, stream: master, errors: nil)
  }

  private func spawn(
    stream: Int32, errors: Int32, terminal: [CChar]?, among programs: PendingCleanups
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
    case ENOENT: "there is no such program, or no such interpreter as its first line (#!) names"
    case EACCES: "the gateway's user may not execute this file"
    case ENOEXEC: "it is not a program; a script needs a first line such as #!/bin/sh"
    default: nil
    }
  }

  // MARK: - The stream, on the lane

  private func stream(
    over started: Started, on poller: Poller, _ remark: @escaping @Sendable (EndpointRemark) -> Void
  ) -> Result<any ByteStream, OpenFailure> {
    if let failure = started.guardFailure {
      remark(
        EndpointRemark("runs without a guard, and keeps running if the gateway is killed: \(failure)", isWarning: true))
    }
    do throws(SystemError) {
      let process = try ExecProcess(path, started.child, on: poller)
      let descriptor = started.stream.take()!  // no other code has seen the parcels
      let raw = descriptor.raw
      guard let errors = started.errors?.take() else {
        return .success(ExecStream(PtyClientStream(descriptor, on: poller), socket: nil, process, nil, on: poller))
      }
      let listener: ExecErrors
      do throws(SystemError) {
        listener = try ExecErrors(errors, on: poller, remark)
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

/// The part of the gateway's environment that a program gets: paths, user, time zone and locale. No secrets that the
/// configuration reads from the environment, and no variables of the gateway's own service (NOTIFY_SOCKET, LISTEN_FDS).
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
