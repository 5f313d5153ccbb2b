// An LE device and what to reach on it: an L2CAP channel, or its attributes (ATT).

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBrokerCore

struct LETarget: Hashable, ConnectTarget {
  let device: LEAddress
  /// Nil for ATT.
  let psm: UInt16?
  /// The address of the adapter to use.
  let adapter: BluetoothAddress
  var security: BluetoothTarget.Security?
  var isToBeSecured: Bool { (security ?? .low) != .low }

  // The longest message we accept, in bytes. The kernel assembles it before we see a byte.
  private static let receiveMTU: UInt16 = 2048
  // In bytes. Notifications have no flow control: what we do not read in time waits here, and is dropped when this is
  // full.
  private static let receiveBuffer: Int32 = 1 << 20

  var description: String { psm.map { "channel \($0) of \(device)" } ?? "\(device)" }

  /// Makes a socket that is ready to connect. May block.
  func prepare() -> Result<DescriptorParcel, OpenFailure> {
    do throws(SystemError) {
      let raw = bluetooth_le_socket(adapter.bytes, psm ?? 0)
      guard raw >= 0 else { throw SystemError("socket") }
      let socket = Descriptor(owning: raw)
      if psm == nil {
        // The kernel reduces the size to its own limit.
        try SocketOptions.set(raw, SOL_SOCKET, SO_RCVBUF, Self.receiveBuffer)
      } else if bluetooth_set_receive_mtu(raw, Self.receiveMTU) != 0 {
        throw SystemError("setsockopt")
      }
      if let security, bluetooth_set_security(raw, security.rawValue) != 0 { throw SystemError("setsockopt") }
      return .success(DescriptorParcel(socket))
    } catch {
      return .failure(failure(error))
    }
  }

  /// connect(2) of a non-blocking socket. Returns whether it is connected already.
  func connect(_ raw: Int32) throws(SystemError) -> Bool {
    guard bluetooth_le_connect(raw, device.address.bytes, device.isRandom ? 1 : 0, psm ?? 0) != 0 else { return true }
    guard errno == EINPROGRESS else { throw SystemError("connect") }
    return false
  }

  func failure(_ fault: ConnectFlow.Fault) -> OpenFailure {
    switch fault {
    case .system(let error): failure(error)
    case .silent(let time): silence(after: time)
    case .adapterIsGone, .adapterIsOff, .neverSecured: fault.failure("connect to \(self)")
    }
  }

  func failure(_ error: SystemError) -> OpenFailure {
    OpenFailure("connect to \(self)", error, advice: advice(error.errno))
  }

  /// The kernel tries to connect to a device for 40 s; our default timeout is shorter.
  private func silence(after time: Duration) -> OpenFailure {
    OpenFailure(
      "connect to \(self)", SystemError("connect", ETIMEDOUT),
      advice:
        "no answer within \(time): the device is off, out of range or connected to another host, or its address is not "
        + (device.isRandom ? "random: then set address-type=public" : "public: then set address-type=random"))
  }

  private func advice(_ number: Int32) -> String? {
    switch number {
    case EHOSTUNREACH, ENODEV, ENETDOWN, EADDRNOTAVAIL, ECONNABORTED: "no Bluetooth adapter is present and switched on"
    case ECONNREFUSED:
      psm.map { "nothing listens on channel \($0) there, or the device could not be reached" }
        ?? "the device could not be reached, or accepts no connection now"
    case EBUSY:
      "this machine is connected to the device already: another program, or bluetoothd; 'bluetoothctl disconnect \(device)' disconnects it"
    case EACCES, EPERM:
      "the device or this machine refused to pair, or the pairing is too weak for the requested security; pair it once, for example by "
        + "'bluetoothctl pair \(device)'"
    case ECONNRESET: "the device hung up"
    case ETIMEDOUT: "the device went out of range while it was being connected"
    default: nil
    }
  }
}
