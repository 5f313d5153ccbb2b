// Serial ports: tty:///dev/ttyUSB0?baud=115200, and any other terminal device. Opening, closing and every ioctl run on a
// queue of the port's own, for a driver may take seconds over each; a lane only reads and writes.

import ByteStreams
import Glibc

public struct TTYConnector: Connector {
  public static let scheme = "tty"
  public static let isLine = true

  private let port: TTYPort
  private let device: DeviceQueue

  public init(_ url: EndpointURL) throws(URLProblem) {
    if url.host == "usb" {
      throw URLProblem(
        message: "tty://usb/… is not in this build; use a path that keeps its name, such as /dev/serial/by-id/…",
        offset: 0, suggestion: nil, beside: nil)
    }
    self.init(TTYPort(url.path, TTYSettings(url)), device: DeviceQueue.of("tty \(url.path)"))
  }

  init(_ port: TTYPort, device: DeviceQueue) {
    self.port = port
    self.device = device
  }

  public var node: String? { port.path }

  /// The path without symbolic links. Nil while there is no such port.
  public var realDevice: String? {
    guard let resolved = realpath(port.path, nil) else { return nil }
    defer { free(resolved) }
    return "tty://" + String(cString: resolved)
  }

  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let port = port
    let queue = device.queue
    return device.open(port.path, on: poller) {
      port.open(discardingInput: discardingInput)
    } undo: {
      _ = $0.descriptor.take()
    } _: { result in
      done(
        result.map { opened in
          let tty = opened.descriptor.take()!  // nobody else has seen the parcel
          return TTYLine.stream(over: tty, of: port, opened.line, on: poller, queue: queue)
        })
    }
  }
}
