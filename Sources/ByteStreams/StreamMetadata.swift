// What is known about the device at the other end of a stream, besides its bytes. Some facts are known when the stream
// opens; others come a little later, when the device has answered.

/// What a device reports about itself. Each fact is nil until it is known. Texts come from the device: they may hold
/// anything, but no more than 128 characters.
public struct DeviceFacts: Hashable, Sendable {
  /// The device's name for itself.
  public var name: String?
  /// Its manufacturer.
  public var manufacturer: String?
  /// Its model.
  public var model: String?
  /// Its serial number.
  public var serialNumber: String?
  /// The version of its firmware.
  public var firmware: String?
  /// Signal strength of a radio link in dBm, at the last query.
  public var signalStrength: Int?
  /// The longest message of the link in bytes, if the link has messages.
  public var mtu: Int?
  /// Messages of the device that nobody read in time, so that the kernel dropped them.
  public var lostMessages: Int?
  /// Other programs that have a serial port open, so that bytes for us go to them: "agetty (pid 812)".
  package var sharedWith: String?

  /// No fact is known.
  public init() {}

  /// Facts in `more` replace ours, the rest stays.
  package mutating func add(_ more: DeviceFacts) {
    name = more.name ?? name
    manufacturer = more.manufacturer ?? manufacturer
    model = more.model ?? model
    serialNumber = more.serialNumber ?? serialNumber
    firmware = more.firmware ?? firmware
    signalStrength = more.signalStrength ?? signalStrength
    mtu = more.mtu ?? mtu
    lostMessages = more.lostMessages ?? lostMessages
    sharedWith = more.sharedWith ?? sharedWith
  }

  /// No fact is known.
  public var isEmpty: Bool { self == DeviceFacts() }

  package static let mostText = 128

  /// A text of the device as it is kept: without the zeros and spaces that pad it, and cut. Nil if nothing is left.
  package static func text(_ bytes: some Sequence<UInt8>) -> String? {
    let whole = String(decoding: Array(bytes.prefix { $0 != 0 }.prefix(4 * mostText)), as: UTF8.self)
    let begin = whole.unicodeScalars.drop { $0 == " " }
    var kept = String.UnicodeScalarView(begin.prefix(mostText))
    while kept.last == " " { kept.removeLast() }
    return kept.isEmpty ? nil : String(kept)
  }
}

/// The facts about the device of a stream: `stream.metadata`. Lives on the lane of its stream.
public final class StreamMetadata {
  /// What is known now.
  public private(set) var facts: DeviceFacts
  /// Called when the facts have changed, in a turn of the stream. One listener: the code that opened the stream.
  public var changed: (() -> Void)?
  /// Queries facts that change, such as the signal strength, and calls `done` soon, once, with or without an answer.
  /// Nil if no fact changes.
  public var refresh: ((_ done: @escaping () -> Void) -> Void)?

  /// Facts that are known at the opening.
  public init(_ facts: DeviceFacts = DeviceFacts()) { self.facts = facts }

  /// Changes the facts, and calls `changed` if they differ from before. For the stream or connector that finds them
  /// out.
  public func update(_ change: (inout DeviceFacts) -> Void) {
    let before = facts
    change(&facts)
    if facts != before { changed?() }
  }

  /// The same for facts that change all the time: does not call `changed`.
  public func note(_ change: (inout DeviceFacts) -> Void) { change(&facts) }
}
