// unix:///path.sock: a stream socket of this machine. The path is looked up on a queue, since it may lie in a file system
// that hangs; connecting itself is over at once.

import ByteStreams
import CLinux
import Glibc

public struct UnixConnector: Connector {
  public static let scheme = "unix"
  public static let isLine = false

  private let path: String
  private let device: DeviceQueue

  public init(_ url: EndpointURL) throws(URLProblem) {
    path = url.path
    device = DeviceQueue.of("unix \(url.path)")
  }

  public var node: String? { path }

  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = UnixOpening(path, device, on: poller, done)
    opening.attempt()
    return opening
  }
}

private final class UnixOpening: Opening {
  private let path: String
  private let device: DeviceQueue
  private let poller: Poller
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var underWay: (any Opening)?
  private var pause: Timers.Token?

  // Waiting behind a path that hangs, before newcomers are refused at once.
  private static let mostAttempts = 1024
  // While the server's queue is full connect(2) does not wait: it has to be called again.
  private static let retry = Duration.milliseconds(20)

  init(
    _ path: String, _ device: DeviceQueue, on poller: Poller,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.path = path
    self.device = device
    self.poller = poller
    self.done = done
  }

  func attempt() {
    let path = path
    underWay = device.open(path, most: Self.mostAttempts, on: poller) {
      Self.connected(to: path)
    } undo: {
      _ = $0.take()
    } _: { [self] in
      finish($0)
    }
  }

  private func finish(_ result: Result<DescriptorParcel, OpenFailure>) {
    if case .failure(let failure) = result, failure.cause?.errno == EAGAIN {
      pause = poller.timers.after(Self.retry) { [self] in attempt() }
      return
    }
    done?(result.map { DescriptorStream($0.take()!, kind: .socket, on: poller) })  // nobody else has seen the parcel
    done = nil
  }

  func cancel() {
    done = nil
    underWay?.cancel()
    poller.timers.cancel(pause)
  }

  private static func connected(to path: String) -> Result<DescriptorParcel, OpenFailure> {
    let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    guard raw >= 0 else { return .failure(OpenFailure("connect \(path)", SystemError("socket"))) }
    let socket = DescriptorParcel(Descriptor(owning: raw))
    do throws(SystemError) {
      let answer = try UnixAddress.path(path).withSockaddr { connect(raw, $0, $1) }
      guard answer == 0 else { throw SystemError("connect") }
    } catch {
      return .failure(OpenFailure("connect \(path)", error, advice: advice(error)))
    }
    return .success(socket)
  }

  private static func advice(_ error: SystemError) -> String? {
    switch error.errno {
    case ENOENT: "nobody listens there yet"
    case ECONNREFUSED: "its server has gone and left the socket behind"
    case EACCES: "we may not write to it"
    case EPROTOTYPE: "this is no stream socket"
    default: nil
    }
  }
}
