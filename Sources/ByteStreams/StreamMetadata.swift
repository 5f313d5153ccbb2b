// What is known of the device at the other end of a stream, beside its bytes. Some of it is there when the stream opens, some comes a
// little later, when the device has been asked.

/// Texts are the device's own: they may hold anything, but no more than `mostText` characters.
public struct DeviceFacts: Hashable, Sendable {
  /// What it calls itself.
  public var name: String?
  public var manufacturer: String?
  public var model: String?
  public var serialNumber: String?
  public var firmware: String?
  /// Of a radio link, in dBm: when it came up, or when it was asked for last.
  public var signalStrength: Int?
  /// The most bytes of one message of the link, where there is such a thing.
  public var mtu: Int?
  /// Messages of the device's that nobody took in time and the kernel has thrown away.
  public var lostMessages: Int?

  public init() {}

  /// What `more` tells counts, the rest stays.
  public mutating func add(_ more: DeviceFacts) {
    name = more.name ?? name
    manufacturer = more.manufacturer ?? manufacturer
    model = more.model ?? model
    serialNumber = more.serialNumber ?? serialNumber
    firmware = more.firmware ?? firmware
    signalStrength = more.signalStrength ?? signalStrength
    mtu = more.mtu ?? mtu
    lostMessages = more.lostMessages ?? lostMessages
  }

  public var isEmpty: Bool { self == DeviceFacts() }

  public static let mostText = 128

  /// A text of a device's as it is kept: without the zeros and blanks that fill it up, and cut. Nil when nothing is left.
  public static func text(_ bytes: some Sequence<UInt8>) -> String? {
    let whole = String(decoding: Array(bytes.prefix { $0 != 0 }.prefix(4 * mostText)), as: UTF8.self)
    let begin = whole.unicodeScalars.drop { $0 == " " }
    var kept = String.UnicodeScalarView(begin.prefix(mostText))
    while kept.last == " " { kept.removeLast() }
    return kept.isEmpty ? nil : String(kept)
  }
}

/// Lives on the lane of its stream.
public final class StreamMetadata {
  public private(set) var facts: DeviceFacts
  /// Called when more is known, in a turn of the stream's. One listener: who opened the stream.
  public var changed: (() -> Void)?
  /// Asks for what changes by itself, such as the strength of a signal, and calls back soon, once, whether there is an answer or not.
  /// Nil where nothing does.
  public var refresh: ((_ done: @escaping () -> Void) -> Void)?

  public init(_ facts: DeviceFacts = DeviceFacts()) { self.facts = facts }

  public func update(_ change: (inout DeviceFacts) -> Void) {
    let before = facts
    change(&facts)
    if facts != before { changed?() }
  }

  /// The same for what changes all the time: nobody is told.
  public func note(_ change: (inout DeviceFacts) -> Void) { change(&facts) }
}
