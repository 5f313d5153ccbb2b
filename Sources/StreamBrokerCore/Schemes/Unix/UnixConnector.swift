// unix:///path.sock: a stream socket of this machine. The path is looked up on a queue, because its file system may
// hang; connecting itself takes no time.

import ByteStreams
import CLinux
import Glibc

/// Connects to stream sockets of this machine: `unix:///run/app.sock` (unix(7)).
public struct UnixConnector: Connector {
  public static let grammar = EndpointSchemes.unix
  public static let isLine = false

  private let path: String
  private let device: DeviceQueue

  public init(_ url: EndpointURL) throws(URLProblem) {
    path = url.path
    device = DeviceQueue.of("unix \(url.path)")
  }

  public var node: String? { path }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    request.report?(.connect(path))
    let opening = UnixOpening(path, device, on: poller, request.dial, done)
    opening.attempt()
    return opening
  }
}

private final class UnixOpening: Opening {
  private let path: String
  private let device: DeviceQueue
  private let poller: Poller
  private let dial: (any DialObserver)?
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var underWay: (any Opening)?
  private var pause: Timers.Token?

  // Openings that may wait for a path that hangs, before further ones are refused at once.
  private static let mostAttempts = 1024
  // While the server is not ready, connect(2) does not wait: it must be called again.
  private static let retry = Duration.milliseconds(20)
  // A program makes its socket with bind(2), which is seen at once, and listens on it a moment later. Nanoseconds.
  private static let longestStart: Int64 = 1_000_000_000

  init(
    _ path: String, _ device: DeviceQueue, on poller: Poller, _ dial: (any DialObserver)?,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.path = path
    self.device = device
    self.poller = poller
    self.dial = dial
    self.done = done
  }

  func attempt() {
    let (path, dial) = (path, dial)
    underWay = device.open(path, most: Self.mostAttempts, on: poller) {
      Self.connected(to: path, dial)
    } undo: {
      _ = $0?.take()
    } _: { [self] in
      finish($0)
    }
  }

  private func finish(_ result: Result<DescriptorParcel?, OpenFailure>) {
    if case .success(nil) = result {
      pause = poller.timers.after(Self.retry) { [self] in attempt() }
      return
    }
    done?(result.map { DescriptorStream($0!.take()!, kind: .socket, on: poller) })  // no other code has seen the parcel
    done = nil
  }

  func cancel() {
    done = nil
    underWay?.cancel()
    poller.timers.cancel(pause)
  }

  /// Nil while the server is not ready: its queue is full, or its socket is new and it does not listen yet.
  private static func connected(
    to path: String, _ dial: (any DialObserver)?
  ) -> Result<DescriptorParcel?, OpenFailure> {
    let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    guard raw >= 0 else { return .failure(OpenFailure("connect \(path)", SystemError("socket"))) }
    let socket = DescriptorParcel(Descriptor(owning: raw))
    if let dial {
      let number = dial.willConnect(to: 0)
      dial.connects(number, to: 0) { ConnectionEnds(naming: raw) }
    }
    do throws(SystemError) {
      let answer = try UnixAddress.path(path).withSockaddr { connect(raw, $0, $1) }
      guard answer == 0 else { throw SystemError("connect") }
    } catch {
      if error.errno == EAGAIN || error.errno == ECONNREFUSED && isNewSocket(path) { return .success(nil) }
      return .failure(OpenFailure("connect \(path)", error, advice: advice(error)))
    }
    return .success(socket)
  }

  private static func isNewSocket(_ path: String) -> Bool {
    var file = stat()
    var now = timespec()
    guard stat(path, &file) == 0, file.st_mode & S_IFMT == S_IFSOCK else { return false }
    clock_gettime(CLOCK_REALTIME, &now)
    // Its owner may have set any time.
    let (seconds, overflow) = now.tv_sec.subtractingReportingOverflow(file.st_mtim.tv_sec)
    guard !overflow, -2...2 ~= seconds else { return false }
    let age = Int64(seconds) * 1_000_000_000 + Int64(now.tv_nsec - file.st_mtim.tv_nsec)
    return age < longestStart && age > -longestStart
  }

  private static func advice(_ error: SystemError) -> String? {
    switch error.errno {
    case ENOENT: "no program listens there yet"
    case ECONNREFUSED: "no program listens there any more; this is a leftover socket, or no socket at all"
    case EACCES, EPERM: "the gateway's user may not write to it, or not reach its folder"
    case EPROTOTYPE: "this is not a stream socket"
    case ENOTDIR: "a part of this path is a file, not a folder"
    case ELOOP: "symbolic links lead in a circle"
    case ENAMETOOLONG: "a socket's path has \(UnixAddress.mostBytes) bytes at most; use a shorter one"
    case EMFILE, ENFILE: "the limit of open files is reached; raise LimitNOFILE= or fs.file-max"
    default: nil
    }
  }
}
