// What a host tells of what it offers, and what it is given by the kernel for that.

import ByteStreams
import StreamBroker

/// What has become of an offer.
public enum RFCOMMNews: Sendable {
  /// Others can connect, on that channel. The socket, which listens, is whose it is told to; nil when it is the one he has.
  case listens(DescriptorParcel?, channel: Int)
  /// Nobody can connect for now. It is tried again by itself, and at once when an adapter comes.
  case waits(OpenFailure)
  /// What keeps some from finding or reaching it; empty when nothing does any more.
  case limited([OpenFailure])
}

/// What the kernel gives a host. Both may block.
struct HostSockets: Sendable {
  var management: @Sendable () -> Result<DescriptorParcel, OpenFailure> = { ManagementSocket.open() }
  /// For an offer, on the adapter of that address or on all: a socket that listens, and its channel.
  var channel: @Sendable (RFCOMMOffer, BluetoothAddress?) -> Result<(DescriptorParcel, Int), OpenFailure> = {
    $0.listen(on: $1)
  }
}
