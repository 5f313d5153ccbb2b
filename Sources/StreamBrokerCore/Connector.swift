// What a scheme must provide: one type of this kind, with its grammar. For a scheme of Baudway's own that is a folder
// under Schemes/, a line in the list of schemes, and a table in EndpointSchemes.swift. A scheme of another package
// needs the type only: Tests/Library/foo-scheme is one. Opening never blocks a lane: blocking calls go through
// `Poller.offload`, and `done` is called on the lane.

import ByteStreams

/// What a scheme must provide. A connector is made for one URL, and opens it any number of times. It is a value without
/// an open descriptor; all waiting is done on the lane that `open` is called on.
public protocol Connector: Sendable {
  /// The scheme's name and the form of its URLs.
  static var grammar: SchemeGrammar { get }

  /// Whether bytes that arrive before anybody reads are stale (serial and Bluetooth links) and may be discarded.
  static var isLine: Bool { get }

  /// Reads the settings of a URL of this scheme, which `EndpointURL` has already checked. Throws problems that only
  /// this scheme can detect.
  init(_ url: EndpointURL) throws(URLProblem)

  /// If only one program can have the endpoint open: a name that is the same for all URLs of that endpoint. Otherwise
  /// nil. May block.
  var realDevice: String? { get }

  /// A path as `NodeWatch` takes it: when it appears, opening may work. Nil if there is none.
  var node: String? { get }

  /// Calls `changed` on the lane of `poller` each time opening may have become possible, until the watch is cancelled.
  /// Nil if nothing can report this. The default watches `node`. `cause` is the error of the failed opening, if it had
  /// one. A change between that failure and the start of the watch may be reported, too.
  func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)?

  /// For openings in several steps, each with its own timeout and error (switching an adapter on, pairing, look-ups):
  /// the longest duration of all steps together, if no pairing is needed and each attempt to connect takes
  /// `connectTimeout` at most. The gateway does not cut these steps short. Nil, the default, if connecting is the only
  /// step, which the caller limits.
  func longestOpening(connectTimeout: Duration) -> Duration?

  /// Starts to open a stream on the lane of `poller`. `done` is called there once, before `open` returns or later,
  /// unless the opening is cancelled first. The receiver owns the stream: it sets the delegate and the waits.
  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening
}

extension Connector {
  /// First part of the URL: "tty".
  public static var scheme: String { grammar.scheme }
  public static var isLine: Bool { false }
  public var node: String? { nil }
  public var realDevice: String? { nil }
  public func longestOpening(connectTimeout: Duration) -> Duration? { nil }

  public func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    node.map { NodeWatch(path: $0, on: poller) { changed(.appeared) } }
  }
}

/// What an opening does besides connecting, and where it reports its progress.
public struct OpenRequest {
  /// Bytes that the device sent before the opening are discarded, where they can be told apart.
  public var discardsInput: Bool
  /// The longest time of each attempt to connect, for connectors with several steps (`longestOpening`).
  public var connectTimeout = Duration.seconds(10)
  /// Called at the start of each step, on the lane of the opening. Nil: nobody asks, and no step is described.
  public var report: ((OpeningStep) -> Void)?
  /// Called for messages that the endpoint sends for people, beside its bytes: a program's standard error, a device's
  /// refusal of a write. On the stream's lane, during the opening and as long as the stream is open. Must be quick and
  /// must not block.
  public var remark: @Sendable (EndpointRemark) -> Void = { _ in }
  /// Learns from where sockets connect.
  package var dial: (any DialObserver)?

  /// Connects within 10 s at most, and reports to nobody.
  public init(discardsInput: Bool = false) { self.discardsInput = discardsInput }
}

/// A step of an opening that begins. Not every opening has each of them; their order is that of the cases.
public enum OpeningStep: Hashable, Sendable {
  /// Finds the Bluetooth adapter, and switches it on.
  case adapter(String?)
  /// Scans for a Bluetooth device: "a device named 'GoPro'".
  case scan(String)
  /// Connects to an address: "127.0.0.1:4001", "00:0A:3A:22:68:73 channel 3".
  case connect(String)
  /// Encrypts: a TLS handshake, or encryption and pairing of a Bluetooth link.
  case secure(String)
  /// Looks up what the opening needs: a host's addresses, a service's channel, a device's characteristics.
  case lookUp(String)
  /// Opens a file, starts a program, asks for a WebSocket: "/dev/ttyUSB0".
  case open(String)
}

extension OpeningStep: CustomStringConvertible {
  public var description: String {
    switch self {
    case .adapter(let name?): "getting adapter \(name) ready"
    case .adapter(nil): "getting an adapter ready"
    case .scan(let wanted): "scanning for \(wanted)"
    case .connect(let address): "connecting to \(address)"
    case .secure(let peer): "securing the link to \(peer)"
    case .lookUp(let name): "looking up \(name)"
    case .open(let name): "opening \(name)"
    }
  }
}

/// Why opening may work now.
public enum DeviceNews: Sendable {
  /// The device appeared or changed.
  case appeared
  /// Another program has closed the device, or is about to close it.
  case freed
}

/// Reports that a device may be available now. Lives on a lane.
public protocol DeviceWatch: AnyObject {
  /// No callback is called afterwards. Safe to call twice.
  func cancel()

  /// The owner of the watch is about to open the device: events until `attemptFailed` may be caused by that.
  func attemptBegins()

  /// The device could not be opened.
  func attemptFailed(_ cause: SystemError?)
}

extension DeviceWatch {
  public func attemptBegins() {}
  public func attemptFailed(_ cause: SystemError?) {}
}

/// A message for people that an endpoint sends beside its bytes.
public struct EndpointRemark: Hashable, Sendable {
  /// One line of text, without its end. It comes from the endpoint and may hold anything.
  public let line: String
  /// Whether the line is logged as a warning: something was lost or does not work.
  public let isWarning: Bool

  /// A line as the endpoint sent it.
  public init(_ line: String, isWarning: Bool = false) {
    self.line = line
    self.isWarning = isWarning
  }
}

/// An opening in progress.
public protocol Opening: AnyObject {
  /// Cancels the opening: `done` is not called, and anything already opened is closed. Does nothing once it is over.
  func cancel()
}

/// For connectors that finish before `open` returns.
public final class CompletedOpening: Opening {
  /// An opening that is over.
  public init() {}
  public func cancel() {}
}

/// Why a stream could not be opened.
public struct OpenFailure: Error, Hashable, Sendable, CustomStringConvertible {
  /// What was tried, and on what: "connect 127.0.0.1:4001".
  public let attempt: String
  /// The system call that failed, if one did.
  public let cause: SystemError?
  /// Text in addition to the cause or instead of it, such as what to do.
  public let advice: String?

  /// `attempt` names what was tried and on what: "open /dev/ttyUSB0".
  public init(_ attempt: String, _ cause: SystemError?, advice: String? = nil) {
    self.attempt = attempt
    self.cause = cause
    self.advice = advice
  }

  public var description: String {
    var text = attempt
    if let cause { text += ": \(cause.text) (\(cause.name))" }
    if let advice { text += cause == nil ? ": \(advice)" : "; \(advice)" }
    return text
  }
}
