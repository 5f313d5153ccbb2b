// Serial ports: tty:///dev/ttyUSB0?baud=115200, and any other terminal device. Opening, closing and every ioctl run on
// the port's own queue, because a driver may take seconds for each. A lane only reads and writes.

import ByteStreams
import Glibc

/// Opens serial ports and other terminals: `tty:///dev/ttyUSB0?baud=115200`, `tty://usb/0403:6001`. Locks the port by
/// TIOCEXCL, flock(2) and a UUCP lock file, unless the URL has `exclusive=no`.
public struct TTYConnector: Connector {
  public static let grammar = EndpointSchemes.tty
  public static let isLine = true

  private let source: Source
  private let settings: TTYSettings
  private let device: DeviceQueue
  private let calls: any TTYCalls
  private let locks: UUCPLocks?

  /// The port to open.
  private enum Source: Sendable {
    case path(String)
    /// Searched at each opening: the port may come back under another number.
    case usb(USBIdentity, USBPorts)
  }

  public init(_ url: EndpointURL) throws(URLProblem) { self.init(url, usb: USBPorts()) }

  init(_ url: EndpointURL, usb: USBPorts, locks: UUCPLocks? = .system) {
    if url.host == "usb", let identity = USBIdentity(path: url.path) {
      source = .usb(identity, usb)
    } else {
      source = .path(url.path)
    }
    settings = TTYSettings(url)
    device = DeviceQueue.of(url.target)
    calls = SystemTTYCalls()
    self.locks = locks
  }

  /// A port with recorded calls, on a queue of its own.
  init(_ path: String, _ settings: TTYSettings, calls: any TTYCalls) {
    source = .path(path)
    self.settings = settings
    device = DeviceQueue(path)
    self.calls = calls
    locks = nil
  }

  /// For a port that is found by identity, any new tty: sysfs itself does not report changes.
  public var node: String? {
    switch source {
    case .path(let path): path
    case .usb(_, let ports): "\(ports.dev)/tty*"
    }
  }

  public func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    PortWatch(node, { [self] in releaseSigns }, after: cause, on: poller, changed)
  }

  private var releaseSigns: ReleaseSigns? {
    guard let path = try? path() else { return nil }
    return ReleaseSigns(
      node: path, lockFolder: locks?.folder,
      locks: UUCPLocks.names(of: path, leadingTo: FileSystem.realPath(path) ?? path))
  }

  /// The path without symbolic links. Nil if there is no such port, or several.
  public var realDevice: String? {
    (try? path()).flatMap { FileSystem.realPath($0) }.map { "tty://\($0)" }
  }

  private var usb: USBPorts {
    if case .usb(_, let ports) = source { ports } else { USBPorts() }
  }

  private func path() throws(OpenFailure) -> String {
    switch source {
    case .path(let path): path
    case .usb(let identity, let ports): try ports.find(identity)
    }
  }

  private struct Opened: Sendable {
    let port: TTYPort
    let content: TTYPort.Opened
    /// What its adapter reports about itself.
    let facts: DeviceFacts
  }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    request.report?(.open(name))
    let discardsInput = request.discardsInput
    return device.open(name, on: poller) { [self] () -> Result<Opened, OpenFailure> in
      do throws(OpenFailure) {
        let path = try path()
        let port = TTYPort(path, settings, calls: calls, locks: locks)
        return port.open(discardingInput: discardsInput).map {
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
          stream.metadata = StreamMetadata(opened.facts)
          watchHolders(of: opened.port.path, stream, on: poller)
          return stream
        })
    }
  }

  /// Programs that take no lock, such as a getty, may have the port open: looks for them now, and when `status` asks.
  private func watchHolders(of path: String, _ stream: any ByteStream, on poller: Poller) {
    guard let metadata = stream.metadata else { return }
    let look = { [weak metadata] (done: @escaping () -> Void) in
      poller.offload(to: PortHolders.queue) {
        PortHolders.others(of: path)
      } then: { holders in
        metadata?.update { $0.sharedWith = holders }
        done()
      }
    }
    metadata.refresh = look
    look {}
  }

  /// For errors.
  private var name: String {
    switch source {
    case .path(let path): path
    case .usb(let identity, _): identity.url
    }
  }
}
