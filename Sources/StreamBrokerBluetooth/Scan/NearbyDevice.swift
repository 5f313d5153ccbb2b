// A device that was heard nearby, and the URLs by which it can be opened. Values only. What it says of itself may hold anything.

import ByteStreams
import StreamBroker

public struct NearbyDevice: Hashable, Sendable {
  public let address: BluetoothAddress
  public let kind: AddressKind
  /// As it was last told; whoever shows it looks after control characters.
  public private(set) var name: String?
  /// Signal strength when it was last heard, in dBm.
  public private(set) var strength: Int?
  /// In the order of their numbers, at most `mostServices`.
  public private(set) var services: [BluetoothUUID] = []
  /// Class of device (Assigned Numbers, section 2.8), of a Classic one.
  public private(set) var deviceClass: UInt32?
  private var isNameComplete = false

  /// Who says something else each time must not fill memory.
  static let mostServices = 64
  /// Not known: mgmt's value for it.
  private static let noStrength: Int8 = 127

  init(_ found: FoundDevice) {
    address = found.address
    kind = found.kind
    _ = take(found)
  }

  /// Adds what it says now; true when there is more than how strong it is.
  mutating func take(_ found: FoundDevice) -> Bool {
    let before = self
    let told = found.advertisement
    if let name = told.name, told.isNameComplete || !isNameComplete {
      self.name = name
      isNameComplete = told.isNameComplete
    }
    let new = told.services.subtracting(services)
    if !new.isEmpty, services.count < Self.mostServices {
      let sorted = (services + new).sorted { $0.bytes.lexicographicallyPrecedes($1.bytes) }
      services = Array(sorted.prefix(Self.mostServices))
    }
    deviceClass = told.deviceClass ?? deviceClass
    let hasMore = self != before
    if found.strength != Self.noStrength { strength = Int(found.strength) }
    return hasMore
  }

  /// What of it a stream to it may tell.
  var facts: DeviceFacts {
    var facts = DeviceFacts()
    facts.name = name.flatMap { DeviceFacts.text($0.utf8) }
    facts.signalStrength = strength
    return facts
  }

  public func offers(_ service: BluetoothUUID) -> Bool { services.contains(service) }

  // MARK: - How to open it

  public struct Way: Hashable, Sendable {
    /// To be pasted.
    public let url: String
    /// "Serial Port", "Nordic UART"; nil where nothing is known but the service's number.
    public let service: String?
    /// It says that it has the service; else only its kind makes it likely.
    public let isSure: Bool
  }

  private static let serialPort = BluetoothUUID(0x1101)

  /// What people call a service that carries bytes; nil for one that is not known as such.
  public static func name(of service: BluetoothUUID) -> String? {
    service == serialPort ? "Serial Port" : SerialServices.name(of: service)
  }

  /// The best first; empty for what is no serial device, as far as can be told. With `service`, by that one alone; with `adapter`
  /// ("hci0", or an address), through it and no other.
  public func ways(to service: BluetoothUUID? = nil, by adapter: String? = nil) -> [Way] {
    let ways = kind == .classic ? classic(service) : lowEnergy(service)
    guard let adapter else { return ways }
    return ways.map { way in
      Way(
        url: way.url + (way.url.contains("?") ? "&" : "?") + "adapter=\(adapter)", service: way.service,
        isSure: way.isSure)
    }
  }

  private func classic(_ wanted: BluetoothUUID?) -> [Way] {
    let place = "rfcomm://\(address)"
    if let wanted {
      let url = wanted == Self.serialPort ? place : "\(place)?uuid=\(wanted)"
      return [Way(url: url, service: Self.name(of: wanted), isSure: offers(wanted))]
    }
    var ways: [Way] = []
    if offers(Self.serialPort) {
      ways.append(Way(url: place, service: Self.name(of: Self.serialPort), isSure: true))
    } else if isLikelySerial {
      ways.append(Way(url: place, service: Self.name(of: Self.serialPort), isSure: false))
    }
    // UUIDs of one's own are mostly those of serial protocols.
    return ways + services.filter { !$0.isAssigned }.map { Way(url: "\(place)?uuid=\($0)", service: nil, isSure: true) }
  }

  /// Of devices that do not list their services: all but those whose class says that they are something else (Assigned
  /// Numbers, section 2.8.1). Serial adapters are "uncategorized", and many call themselves computers, phones or networks.
  private var isLikelySerial: Bool {
    guard services.allSatisfy({ !$0.isAssigned }) else { return false }
    let somethingElse: Set<UInt32> = [4, 5, 6, 7, 8, 9]  // audio, peripheral, imaging, wearable, toy, health
    return !somethingElse.contains((deviceClass ?? 0) >> 8 & 0x1F)
  }

  private func lowEnergy(_ wanted: BluetoothUUID?) -> [Way] {
    if let wanted { return [way(wanted, isSure: offers(wanted))] }
    let known = services.filter { SerialServices.name(of: $0) != nil }
    let others = services.filter { SerialServices.name(of: $0) == nil && !$0.isAssigned }
    return known.map { way($0, isSure: true) } + others.map { way($0, isSure: false) }
  }

  private func way(_ service: BluetoothUUID, isSure: Bool) -> Way {
    Way(url: url(service), service: Self.name(of: service), isSure: isSure)
  }

  private func url(_ service: BluetoothUUID) -> String {
    let place = "ble://\(service)/\(address)"
    guard kind == .leRandom else { return place }
    // Of random addresses, only those that begin with 11 stay (Bluetooth Core, Vol 6, Part B, section 1.3.2): the others mean nobody
    // in a quarter of an hour, a name does.
    if address.bytes[0] >> 6 != 3, let name, isNameComplete {
      let byName = "ble://\(service)?name=\(escaped(name))"
      if let url = try? EndpointURL(byName), url.string("name") == name { return byName }
    }
    return "\(place)?address-type=random"
  }

  /// All but letters and digits, so that it means the same in a URL, a shell and a configuration.
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
  /// One of Bluetooth's own numbers, in whatever length it was said.
  var isAssigned: Bool { shortest.count < 16 }
}
