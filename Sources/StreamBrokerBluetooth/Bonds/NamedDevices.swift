// The devices that endpoints name, by either transport, and which of them an opening connects to now.

struct NamedDevices {
  private struct Opening: Hashable {
    let device: PairedAddress
    let adapter: UInt16
  }

  // The latest last.
  private var devices: [PairedAddress] = []
  private var openings: [Opening: Int] = [:]
  private static let most = 1024

  func contains(_ device: PairedAddress) -> Bool { devices.contains(device.withoutTransport) }

  func isBeingOpened(_ device: PairedAddress, at adapter: UInt16) -> Bool {
    openings[Opening(device: device, adapter: adapter)] != nil
  }

  mutating func name(_ device: PairedAddress) {
    devices.removeAll { $0 == device.withoutTransport }
    devices.append(device.withoutTransport)
    if devices.count > Self.most { devices.removeFirst() }
  }

  mutating func enter(_ device: PairedAddress, at adapter: UInt16) {
    name(device)
    openings[Opening(device: device, adapter: adapter), default: 0] += 1
  }

  /// Call it once for each `enter`.
  mutating func leave(_ device: PairedAddress, at adapter: UInt16) {
    let opening = Opening(device: device, adapter: adapter)
    let count = (openings[opening] ?? 0) - 1
    openings[opening] = count > 0 ? count : nil
  }
}
