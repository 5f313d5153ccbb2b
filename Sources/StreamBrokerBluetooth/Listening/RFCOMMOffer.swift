// rfcomm://?channel=3&name=gps: what others find here and connect to, and the sockets for that.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBroker

/// A listener's URL, read.
public struct RFCOMMOffer: Hashable, Sendable {
  /// Nil for one that is free, which the host chooses.
  public internal(set) var channel: UInt8?
  let uuid: BluetoothUUID
  let name: String
  /// By name or address; nil for all.
  let adapter: String?
  let security: BluetoothTarget.Security?
  let isDiscoverable: Bool

  /// The kernel lets in only those who are paired, or pair now.
  var asksToPair: Bool { security == .medium || security == .high }

  // Clients that may wait for accept(2).
  private static let queue: Int32 = 16

  /// `url` has passed the grammar of listeners. `name` is what others read where it names none.
  public init(_ url: EndpointURL, name: String) {
    channel = url.integer("channel").map { UInt8(clamping: $0) }
    uuid = url.string("uuid").flatMap { BluetoothUUID($0) } ?? BluetoothUUID(0x1101)
    self.name = url.string("name") ?? name
    adapter = url.string("adapter")
    security = BluetoothTarget.Security(named: url.string("security"))
    isDiscoverable = url.flag("discoverable") ?? false
  }

  /// A socket that listens, on the adapter of that address or on all, and its channel. May block.
  func listen(on adapter: BluetoothAddress?) -> Result<(DescriptorParcel, Int), OpenFailure> {
    do throws(SystemError) {
      let raw = bluetooth_rfcomm_socket()
      guard raw >= 0 else { throw SystemError("socket") }
      let socket = Descriptor(owning: raw)
      // Inherited by all that are accepted.
      if let security, bluetooth_set_security(raw, security.rawValue) != 0 { throw SystemError("setsockopt") }
      let answer =
        if let adapter { bluetooth_rfcomm_listen(raw, adapter.bytes, channel ?? 0, Self.queue) } else {
          bluetooth_rfcomm_listen(raw, nil, channel ?? 0, Self.queue)
        }
      guard answer == 0 else { throw SystemError("bind") }
      return .success((DescriptorParcel(socket), Int(bluetooth_rfcomm_channel(raw))))
    } catch {
      let advice: String? =
        switch error.errno {
        case EADDRINUSE: "another program listens on that channel"
        case EAFNOSUPPORT, EPROTONOSUPPORT: BluetoothTarget.missing
        default: nil
        }
      let place = channel.map { "channel \($0)" } ?? "a channel"
      return .failure(OpenFailure("listen on \(place)", error, advice: advice))
    }
  }
}

/// A client who came to such a socket.
public struct RFCOMMClient: ~Copyable, Sendable {
  private let descriptor: Descriptor

  /// Takes over what accept(2) gave out.
  public init(_ descriptor: consuming Descriptor) { self.descriptor = descriptor }

  /// Nil when he has gone.
  public static func address(of socket: Int32) -> BluetoothAddress? {
    var bytes = [UInt8](repeating: 0, count: 6)
    return bluetooth_rfcomm_peer(socket, &bytes) == 0 ? BluetoothAddress(bytes) : nil
  }

  /// Takes over the socket; lives on the lane of `poller` until it is closed.
  public consuming func stream(on poller: Poller) -> any ByteStream {
    BluetoothStream(descriptor, hangsUpInOrder: true, on: poller)
  }
}
