// A device that a scan found, and the URLs that open it. Values only. Texts from the device may contain anything.

import ByteStreams
import StreamBrokerCore

/// A Bluetooth device in range.
public struct NearbyDevice: Hashable, Sendable {
  /// The device's address, as URLs have it.
  public let address: BluetoothAddress
  /// Classic, or Low Energy with a public or a random address. A device that speaks both is found twice.
  public let kind: AddressKind
  /// As received last. Code that shows it must handle control characters.
  public private(set) var name: String?
  /// Signal strength as received last, in dBm.
  public private(set) var strength: Int?
  /// Sorted by number, at most `mostServices`.
  public private(set) var services: [BluetoothUUID] = []
  /// Class of device (Assigned Numbers, section 2.8), for a Classic one.
  public private(set) var deviceClass: UInt32?
  private var isNameComplete = false

  /// A device that sends something else each time must not fill memory.
  static let mostServices = 64
  /// mgmt's value for "unknown".
  private static let noStrength: Int8 = 127

  init(_ found: FoundDevice) {
    address = found.address
    kind = found.kind
    _ = take(found)
  }

  /// Adds new data. Returns whether more than the signal strength has changed.
  mutating func take(_ found: FoundDevice) -> Bool {
    let before = self
    let reported = found.advertisement
    if let name = reported.name, reported.isNameComplete || !isNameComplete {
      self.name = name
      isNameComplete = reported.isNameComplete
    }
    let new = reported.services.subtracting(services)
    if !new.isEmpty, services.count < Self.mostServices {
      let sorted = (services + new).sorted { $0.bytes.lexicographicallyPrecedes($1.bytes) }
      services = Array(sorted.prefix(Self.mostServices))
    }
    deviceClass = reported.deviceClass ?? deviceClass
    let hasMore = self != before
    if found.strength != Self.noStrength { strength = Int(found.strength) }
    return hasMore
  }

  /// What a stream to the device reports about it.
  var facts: DeviceFacts {
    var facts = DeviceFacts()
    facts.name = name.flatMap { DeviceFacts.text($0.utf8) }
    facts.signalStrength = strength
    return facts
  }

  /// Whether it advertises the service. Not all devices list their services.
  public func offers(_ service: BluetoothUUID) -> Bool { services.contains(service) }

  // MARK: - URLs

  /// A URL that may open the device.
  public struct Candidate: Hashable, Sendable {
    /// Ready to paste.
    public let url: String
    /// "Serial Port", "Nordic UART"; nil if only the service's number is known.
    public let service: String?
    /// The device advertises the service; otherwise it is only likely.
    public let isSure: Bool
  }

  private static let serialPort = BluetoothUUID(0x1101)

  /// The common name of a service that carries bytes; nil if it is not known as one.
  public static func name(of service: BluetoothUUID) -> String? {
    service == serialPort ? "Serial Port" : SerialService.name(of: service)
  }

  /// The best first; empty if this is no serial device, as far as we know. With `service`, only by that one; with
  /// `adapter` ("hci0", or an address), only through that one.
  public func candidates(to service: BluetoothUUID? = nil, by adapter: String? = nil) -> [Candidate] {
    let candidates = kind == .classic ? classic(service) : lowEnergy(service)
    guard let adapter else { return candidates }
    return candidates.map { candidate in
      Candidate(
        url: candidate.url + (candidate.url.contains("?") ? "&" : "?") + "adapter=\(adapter)",
        service: candidate.service,
        isSure: candidate.isSure)
    }
  }

  private func classic(_ wanted: BluetoothUUID?) -> [Candidate] {
    let url = "rfcomm://\(address)"
    if let wanted {
      let url = wanted == Self.serialPort ? url : "\(url)?uuid=\(wanted)"
      return [Candidate(url: url, service: Self.name(of: wanted), isSure: offers(wanted))]
    }
    var candidates: [Candidate] = []
    if offers(Self.serialPort) {
      candidates.append(Candidate(url: url, service: Self.name(of: Self.serialPort), isSure: true))
    } else if isLikelySerial {
      candidates.append(Candidate(url: url, service: Self.name(of: Self.serialPort), isSure: false))
    }
    // UUIDs that are not assigned are mostly those of serial protocols.
    return candidates
      + services.filter { !$0.isAssigned }.map { Candidate(url: "\(url)?uuid=\($0)", service: nil, isSure: true) }
  }

  /// For devices that do not list their services: true unless their class is another kind of device (Assigned Numbers,
  /// section 2.8.1). Serial adapters are "uncategorized", and many report that they are computers, phones or networks.
  private var isLikelySerial: Bool {
    guard services.allSatisfy({ !$0.isAssigned }) else { return false }
    let somethingElse: Set<UInt32> = [4, 5, 6, 7, 8, 9]  // audio, peripheral, imaging, wearable, toy, health
    return !somethingElse.contains((deviceClass ?? 0) >> 8 & 0x1F)
  }

  private func lowEnergy(_ wanted: BluetoothUUID?) -> [Candidate] {
    if let wanted { return [candidate(wanted, isSure: offers(wanted))] }
    let known = services.filter { SerialService.name(of: $0) != nil }
    let others = services.filter { SerialService.name(of: $0) == nil && !$0.isAssigned }
    return known.map { candidate($0, isSure: true) } + others.map { candidate($0, isSure: false) }
  }

  private func candidate(_ service: BluetoothUUID, isSure: Bool) -> Candidate {
    Candidate(url: url(service), service: Self.name(of: service), isSure: isSure)
  }

  private func url(_ service: BluetoothUUID) -> String {
    let url = "ble://\(service)/\(address)"
    guard kind == .leRandom else { return url }
    // Random addresses are lasting only if they begin with bits 11 (Bluetooth Core, Vol 6, Part B, section 1.3.2). The
    // others change within a quarter of an hour, so the URL has the name instead.
    if address.bytes[0] >> 6 != 3, let name, isNameComplete {
      let byName = "ble://\(service)?name=\(escaped(name))"
      if let url = try? EndpointURL(byName), url.string("name") == name { return byName }
    }
    return "\(url)?address-type=random"
  }

  /// Escapes all but letters and digits: the result means the same in a URL, a shell and a configuration.
  private func escaped(_ text: String) -> String {
    text.utf8.map { byte in
      let isPlain =
        byte < 0x80 && (Character(Unicode.Scalar(byte)).isLetter || Character(Unicode.Scalar(byte)).isNumber)
      let digits = String(byte, radix: 16, uppercase: true)
      return isPlain ? String(Unicode.Scalar(byte)) : "%" + (digits.count < 2 ? "0" : "") + digits
    }.joined()
  }
}

extension BluetoothUUID {
  /// Whether it is one of Bluetooth's own numbers, in whatever length it was given.
  var isAssigned: Bool { shortest.count < 16 }
}
