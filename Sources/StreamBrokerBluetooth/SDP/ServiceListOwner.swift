// Finds out which program keeps this machine's service list: bluetoothd, another gateway, or this one.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBrokerCore

enum ServiceListOwner {
  /// Where bluetoothd accepts records if it was started with `--compat`.
  static let daemonPath = "/run/sdp"
  private static let psm: UInt16 = 1  // Bluetooth Core, SDP, section 2
  private static let queue: Int32 = 8

  /// A connection to bluetoothd's list, or a socket of our own. May block.
  static func find(mayOpenOwn: Bool) -> Result<SDPServer.Owner, OpenFailure> {
    do throws(OpenFailure) {
      if let socket = try connect(daemonPath) { return .success(.daemon(socket)) }
      guard mayOpenOwn else { throw OpenFailure("register the service", SystemError("connect", ENOENT)) }
      return .success(try listen())
    } catch {
      return .failure(error)
    }
  }

  /// Nil if nothing listens there.
  static func connect(_ path: String) throws(OpenFailure) -> DescriptorParcel? {
    do throws(SystemError) {
      let raw = Glibc.socket(
        AF_UNIX, Int32(SOCK_STREAM.rawValue) | Int32(SOCK_CLOEXEC.rawValue) | Int32(SOCK_NONBLOCK.rawValue), 0)
      guard raw >= 0 else { throw SystemError("socket") }
      let socket = DescriptorParcel(Descriptor(owning: raw))
      guard try UnixAddress.path(path).withSockaddr({ Glibc.connect(raw, $0, $1) }) == 0 else {
        throw SystemError("connect")
      }
      return socket
    } catch {
      if error.errno == ENOENT || error.errno == ECONNREFUSED { return nil }
      throw OpenFailure(
        "register the service with bluetoothd: connect \(path)", error,
        advice: error.errno == EACCES
          ? "bluetoothd admits only root: give the gateway's group access to that file" : nil)
    }
  }

  /// While this exists, the bound PSM is no sign of bluetoothd.
  final class Hold: Sendable {
    fileprivate init() {}
    deinit { BluetoothDaemon.leaveSDP() }
  }

  private static func listen() throws(OpenFailure) -> SDPServer.Owner {
    do throws(SystemError) {
      let raw = bluetooth_l2cap_socket()
      guard raw >= 0 else { throw SystemError("socket") }
      let socket = DescriptorParcel(Descriptor(owning: raw))
      return try owner(for: socket) { bluetooth_l2cap_listen(raw, psm, queue) == 0 }
    } catch {
      throw OpenFailure("list the service", error, advice: advice(error.errno))
    }
  }

  /// `bind` binds that socket, and sets errno. If the PSM is taken, the mark shows whether a gateway has it. The mark
  /// is checked before and after, since it may disappear with the PSM meanwhile.
  static func owner(
    for socket: DescriptorParcel, marking mark: UnixAddress = BluetoothDaemon.mark,
    tries: Int = BluetoothDaemon.mostTries, _ bind: () -> Bool
  ) throws(SystemError) -> SDPServer.Owner {
    let wasOurs = BluetoothDaemon.isSDPOurs(mark)
    var error = SystemError("bind", EADDRINUSE)
    let isTaken = BluetoothDaemon.takeSDP(mark, tries: tries) {
      if bind() { return true }
      error = SystemError("bind")
      return false
    }
    if isTaken { return .own(socket, Hold()) }
    guard error.errno == EADDRINUSE, wasOurs || BluetoothDaemon.isSDPOurs(mark) else { throw error }
    return .gateway
  }

  static let another =
    "another gateway on this machine keeps the service list; until it ends, set the channel on the client"

  static func advice(_ number: Int32) -> String? {
    switch number {
    case EADDRINUSE:
      "bluetoothd keeps this machine's service list; start it with --compat, or stop it; until then, set the channel "
        + "on the client"
    case EACCES, EPERM:
      "keeping the service list (PSM 1) needs CAP_NET_BIND_SERVICE, or bluetoothd with --compat; until then, set the channel "
        + "on the client"
    default: nil
    }
  }
}
