// Bluetooth sockets: how they are made (off the lane, since the kernel may load a module first) and how they connect
// (on the lane, without waiting).

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBrokerCore

/// What a socket connects to, and how.
struct BluetoothTarget: Hashable, ConnectTarget {
  enum Service: Hashable, Sendable {
    case rfcomm(channel: UInt8)
    case sdp
  }
  enum Security: UInt8, Sendable {
    case low = 1
    case medium, high  // BT_SECURITY_MEDIUM, _HIGH

    /// By its name in a URL. Nil: the kernel's default applies, and the device may ask for more.
    init?(named name: String?) {
      switch name {
      case "low": self = .low
      case "medium": self = .medium
      case "high": self = .high
      default: return nil
      }
    }
  }
  let device: BluetoothAddress
  let service: Service
  /// The adapter to bind to; nil: the kernel chooses.
  var adapter: BluetoothAddress?
  var security: Security?
  /// Service lists are read unencrypted.
  var isToBeSecured: Bool { service != .sdp && (security ?? .low) != .low }

  var description: String {
    switch service {
    case .rfcomm(let channel): "channel \(channel) of \(device)"
    case .sdp: "the service list of \(device)"
    }
  }

  // Bluetooth Core, SDP, section 2: the well-known PSM.
  private static let sdpPSM: UInt16 = 1

  /// Makes a socket that is ready to connect. May block.
  func prepare() -> Result<DescriptorParcel, OpenFailure> {
    do throws(SystemError) {
      let raw = isStream ? bluetooth_rfcomm_socket() : bluetooth_l2cap_socket()
      guard raw >= 0 else { throw SystemError("socket") }
      let socket = Descriptor(owning: raw)
      if let bytes = adapter?.bytes {
        let answer = isStream ? bluetooth_rfcomm_bind(raw, bytes) : bluetooth_l2cap_bind(raw, bytes)
        guard answer == 0 else { throw SystemError("bind") }
      }
      if let security, isStream, bluetooth_set_security(raw, security.rawValue) != 0 { throw SystemError("setsockopt") }
      return .success(DescriptorParcel(socket))
    } catch {
      return .failure(failure(error))
    }
  }

  private var isStream: Bool { service != .sdp }

  /// connect(2) of a non-blocking socket. Returns whether it is connected already.
  func connect(_ raw: Int32) throws(SystemError) -> Bool {
    let answer =
      switch service {
      case .rfcomm(let channel): bluetooth_rfcomm_connect(raw, device.bytes, channel)
      case .sdp: bluetooth_l2cap_connect(raw, device.bytes, Self.sdpPSM)
      }
    guard answer != 0 else { return true }
    guard errno == EINPROGRESS else { throw SystemError("connect") }
    return false
  }

  func failure(_ fault: ConnectFlow.Fault) -> OpenFailure {
    switch fault {
    case .system(let error): failure(error)
    case .silent(let time):
      OpenFailure("connect to \(self)", SystemError("connect", ETIMEDOUT), advice: "no answer within \(time)")
    case .adapterIsGone, .adapterIsOff, .neverSecured: fault.failure("connect to \(self)")
    }
  }

  func failure(_ error: SystemError) -> OpenFailure {
    OpenFailure("connect to \(self)", error, advice: advice(error.errno))
  }

  /// Advice if the kernel does not provide such sockets.
  static let missing =
    "this kernel has no Bluetooth, or this process may not use it: a container needs the host's network, a systemd unit "
    + "RestrictAddressFamilies=AF_BLUETOOTH"

  /// What to do about an error. Shown for a first attempt; the gateway retries by itself.
  func advice(_ number: Int32) -> String? {
    switch number {
    case EAFNOSUPPORT, EPROTONOSUPPORT: Self.missing
    case EHOSTUNREACH, ENODEV, ENETDOWN, EADDRNOTAVAIL: "no Bluetooth adapter is present and switched on"
    case EHOSTDOWN:
      "the device does not answer: it is off, out of range, connected to another host, or has another address"
    case ECONNREFUSED:
      switch service {
      case .rfcomm(let channel):
        "nothing listens on channel \(channel) there now; a URL without a channel looks it up at each attempt"
      case .sdp: "the device has no list of services; give the channel, as in rfcomm://\(device):1"
      }
    case EBUSY: "this machine has that channel open already: another program, or a connection that is just ending"
    case EACCES, EPERM:
      "the device or this machine refused to pair, or the pairing is too weak for the requested security; pair it once, for example by "
        + "'bluetoothctl pair \(device)'"
    case ECONNRESET:
      "the device hung up; if it asks for a PIN, pair it once, for example by 'bluetoothctl pair \(device)'"
    case ETIMEDOUT: "the device went out of range while it was being connected"
    default: nil
    }
  }
}

/// A socket that connects; lives on the lane.
final class BluetoothConnect: PollHandler {
  private let poller: Poller
  private let raw: Int32
  private var descriptor: Descriptor?
  private var isInPoller = false
  private var done: ((Result<DescriptorParcel, SystemError>) -> Void)?

  private let dial: (Int32) throws(SystemError) -> Bool

  /// `dial` is connect(2), and returns whether it is connected already.
  init(_ socket: DescriptorParcel, on poller: Poller, dialling dial: @escaping (Int32) throws(SystemError) -> Bool) {
    self.dial = dial
    self.poller = poller
    descriptor = socket.take()
    raw = descriptor?.raw ?? -1
  }

  /// `done` is called once, later or at once, unless the connect is cancelled before.
  func start(_ done: @escaping (Result<DescriptorParcel, SystemError>) -> Void) {
    self.done = done
    guard raw >= 0 else { return finish(SystemError("connect", EBADF)) }
    do throws(SystemError) {
      if try dial(raw) { return finish(nil) }
      // Not earlier: a socket that has not begun to connect counts as hung up.
      try poller.add(raw, handler: self, for: .writable)
      isInPoller = true
    } catch {
      finish(error)
    }
  }

  func ready(_ events: PollEvents) {
    let error = SocketOptions.takeError(of: raw, "connect")
    finish(error ?? (events.isDisjoint(with: .hangUp) ? nil : SystemError("connect", ECONNRESET)))
  }

  private func finish(_ error: SystemError?) {
    guard let done else { return }
    let socket = take()
    if let socket, error == nil { return done(.success(socket)) }
    done(.failure(error ?? SystemError("connect", EBADF)))
  }

  /// Returns the socket if it is still connecting.
  @discardableResult
  func cancel() -> DescriptorParcel? { take() }

  private func take() -> DescriptorParcel? {
    done = nil
    if isInPoller { poller.remove(raw) }
    isInPoller = false
    guard let descriptor = descriptor.take() else { return nil }
    return DescriptorParcel(descriptor)
  }
}
