// Serial ports: tty:///dev/ttyUSB0?baud=115200, and any other terminal device. Opening, closing and every ioctl run on a
// queue of the port's own, for a driver may take seconds over each; a lane only reads and writes.

import ByteStreams
import Dispatch
import Glibc
import Synchronization

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
    let opening = TTYOpening()
    let port = port
    let device = device
    guard device.admit() else {
      let advice = "earlier attempts still hang in the driver; it takes no other before they end"
      done(.failure(OpenFailure("open \(port.path)", nil, advice: advice)))
      return opening
    }
    poller.offload(to: device.queue) { () -> Result<TTYPort.Opened, OpenFailure> in
      defer { device.leave() }
      // Given up while it waited behind another: the port is left in peace.
      if opening.isCancelled { return .failure(OpenFailure("open \(port.path)", SystemError("open", ECANCELED))) }
      return port.open(discardingInput: discardingInput)
    } then: { result in
      if opening.isCancelled {
        if case .success(let opened) = result { device.queue.async { _ = opened.descriptor.take() } }
        return
      }
      done(
        result.map { opened in
          let tty = opened.descriptor.take()!  // nobody else has seen the parcel
          return TTYLine.stream(over: tty, of: port, opened.line, on: poller, queue: device.queue)
        })
    }
    return opening
  }
}

/// An attempt. Asked from the port's queue as well, whether it still matters.
final class TTYOpening: Opening, Sendable {
  private let wasCancelled = Atomic<Bool>(false)

  var isCancelled: Bool { wasCancelled.load(ordering: .relaxed) }

  func cancel() { wasCancelled.store(true, ordering: .relaxed) }
}
