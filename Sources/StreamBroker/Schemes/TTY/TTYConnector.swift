// Serial ports: tty:///dev/ttyUSB0?baud=115200, and any other terminal device. Opening, closing and every ioctl run on a
// queue of the port's own, for a driver may take seconds over each; a lane only reads and writes.

import ByteStreams
import Glibc

public struct TTYConnector: Connector {
  public static let scheme = "tty"
  public static let isLine = true

  private let place: Place
  private let settings: TTYSettings
  private let device: DeviceQueue
  private let calls: any TTYCalls
  private let locks: UUCPLocks?

  /// Which port is meant.
  private enum Place: Sendable {
    case path(String)
    /// Found each time anew: it may come back under another number.
    case usb(USBIdentity, USBPorts)
  }

  public init(_ url: EndpointURL) throws(URLProblem) { self.init(url, usb: USBPorts()) }

  init(_ url: EndpointURL, usb: USBPorts, locks: UUCPLocks? = .system) {
    if url.host == "usb", let identity = USBIdentity(path: url.path) {
      place = .usb(identity, usb)
    } else {
      place = .path(url.path)
    }
    settings = TTYSettings(url)
    device = DeviceQueue.of(url.place)
    calls = SystemTTYCalls()
    self.locks = locks
  }

  /// A port made of recorded calls, on a queue of its own.
  init(_ path: String, _ settings: TTYSettings, calls: any TTYCalls) {
    place = .path(path)
    self.settings = settings
    device = DeviceQueue(path)
    self.calls = calls
    locks = nil
  }

  /// Of a port that is found by identity, any that comes: sysfs itself tells nobody what appears in it.
  public var node: String? {
    switch place {
    case .path(let path): path
    case .usb(_, let ports): "\(ports.dev)/tty*"
    }
  }

  public func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    PortWatch(node, { [self] in releasePlace }, after: cause, on: poller, changed)
  }

  private var releasePlace: ReleasePlace? {
    guard let path = try? path() else { return nil }
    return ReleasePlace(
      node: path, lockFolder: locks?.folder,
      locks: UUCPLocks.names(of: path, leadingTo: FileSystem.realPath(path) ?? path))
  }

  /// The path without symbolic links. Nil while there is no such port, or several.
  public var realDevice: String? {
    (try? path()).flatMap { FileSystem.realPath($0) }.map { "tty://\($0)" }
  }

  private var usb: USBPorts {
    if case .usb(_, let ports) = place { ports } else { USBPorts() }
  }

  private func path() throws(OpenFailure) -> String {
    switch place {
    case .path(let path): path
    case .usb(let identity, let ports): try ports.find(identity)
    }
  }

  private struct Opened: Sendable {
    let port: TTYPort
    let content: TTYPort.Opened
    /// What its adapter says of itself.
    let facts: DeviceFacts
  }

  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    device.open(name, on: poller) { [self] () -> Result<Opened, OpenFailure> in
      do throws(OpenFailure) {
        let path = try path()
        let port = TTYPort(path, settings, calls: calls, locks: locks)
        return port.open(discardingInput: discardingInput).map {
          Opened(port: port, content: $0, facts: usb.facts(of: path))
        }
      } catch {
        return .failure(error)
      }
    } undo: {
      $0.content.close()
    } _: { result in
      done(
        result.map { opened in
          let stream = TTYLine.stream(over: opened.content, of: opened.port, on: poller, device: device)
          if !opened.facts.isEmpty { stream.metadata = StreamMetadata(opened.facts) }
          return stream
        })
    }
  }

  /// For errors.
  private var name: String {
    switch place {
    case .path(let path): path
    case .usb(let identity, _): identity.url
    }
  }
}
