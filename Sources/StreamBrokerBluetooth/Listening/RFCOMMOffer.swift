// rfcomm://?channel=3&name=gps: what others find here and connect to, the sockets for that, and the news about it.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBrokerCore

/// A listener's URL, parsed.
package struct RFCOMMOffer: Hashable, Sendable {
  /// Nil: the host chooses a free one.
  package internal(set) var channel: UInt8?
  let uuid: BluetoothUUID
  let name: String
  /// By name or address; nil for all.
  let adapter: String?
  let security: BluetoothTarget.Security?
  let isDiscoverable: Bool

  /// The kernel accepts only devices that are paired, or pair now.
  var asksToPair: Bool { security == .medium || security == .high }

  // Clients that may wait for accept(2).
  private static let queue: Int32 = 16

  /// `url` has passed the grammar of listeners. `name` is published if the URL has none.
  package init(_ url: EndpointURL, name: String) {
    channel = url.integer("channel").map { UInt8(clamping: $0) }
    uuid = url.string("uuid").flatMap { BluetoothUUID($0) } ?? BluetoothUUID(0x1101)
    self.name = url.string("name") ?? name
    adapter = url.string("adapter")
    security = BluetoothTarget.Security(named: url.string("security"))
    isDiscoverable = url.flag("discoverable") ?? false
  }

  /// A listening socket, on the adapter of that address or on all, and its channel. May block.
  func listen(on adapter: BluetoothAddress?) -> Result<(DescriptorParcel, Int), OpenFailure> {
    do throws(SystemError) {
      let raw = bluetooth_rfcomm_socket()
      guard raw >= 0 else { throw SystemError("socket") }
      let socket = Descriptor(owning: raw)
      // Accepted sockets inherit it.
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
      let channel = channel.map { "channel \($0)" } ?? "a channel"
      return .failure(OpenFailure("listen on \(channel)", error, advice: advice))
    }
  }
}

/// News about an offer.
package enum RFCOMMNews: Sendable {
  /// Others can connect, on that channel. The receiver owns the socket, which listens; nil: the socket that it has
  /// already.
  case listens(DescriptorParcel?, channel: Int)
  /// Nobody can connect for now. The host retries by itself, and at once when an adapter appears.
  case waits(OpenFailure)
  /// Why some devices can't find or reach it; empty when nothing prevents that any more.
  case limited([OpenFailure])
}

/// How a host gets sockets from the kernel. Both may block.
struct HostSockets: Sendable {
  var management: @Sendable () -> Result<DescriptorParcel, OpenFailure> = { ManagementSocket.open() }
  /// For an offer, on the adapter of that address or on all: a listening socket and its channel.
  var channel: @Sendable (RFCOMMOffer, BluetoothAddress?) -> Result<(DescriptorParcel, Int), OpenFailure> = {
    $0.listen(on: $1)
  }
}

/// A client that connected to such a socket.
package struct RFCOMMClient: ~Copyable, Sendable {
  private let descriptor: Descriptor

  /// Takes over the descriptor from accept(2).
  package init(_ descriptor: consuming Descriptor) { self.descriptor = descriptor }

  /// Nil when the client has gone.
  package static func address(of socket: Int32) -> BluetoothAddress? {
    var bytes = [UInt8](repeating: 0, count: 6)
    return bluetooth_rfcomm_peer(socket, &bytes) == 0 ? BluetoothAddress(bytes) : nil
  }

  /// Takes over the socket. The stream lives on the lane of `poller` until it is closed.
  package consuming func stream(on poller: Poller) -> any ByteStream {
    BluetoothStream(descriptor, hangsUpInOrder: true, on: poller)
  }
}
