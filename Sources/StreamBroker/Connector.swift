// What a scheme must provide: a folder under Schemes/ with one type of this kind, and one line in Schemes.swift.
// Opening never blocks a lane: what can block goes through `Poller.offload`, and `done` comes back on the lane.

import ByteStreams

public protocol Connector: Sendable {
  /// First part of the URL: "tty".
  static var scheme: String { get }

  /// Whether what comes out of it before somebody listens is stale (serial and Bluetooth links) and may be discarded.
  static var isLine: Bool { get }

  /// Takes the settings out of a URL of this scheme that `EndpointURL` has checked. Throws what only this scheme knows
  /// to be wrong.
  init(_ url: EndpointURL) throws(URLProblem)

  /// Another name of what only one can have open, the same for all URLs that lead there; nil where there is none. May block.
  var realDevice: String? { get }

  /// A path whose appearing means that opening may work now, as `NodeWatch` takes it; nil where there is none.
  var node: String? { get }

  /// Calls `changed` on the lane of `poller` each time opening may have become possible, until it is cancelled. Nil where nothing
  /// tells. By itself it watches `node`. `cause` is of the failure that it is waited after, where it has one: what became possible
  /// since then, before the watch saw anything, may be told, too.
  func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)?

  /// Starts to open a stream on the lane of `poller`. `done` is called there once, later or at once, unless the opening is
  /// cancelled before. With `discardingInput` what the device said before is thrown away. The stream belongs to
  /// the receiver, who sets its delegate and waits.
  func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening
}

extension Connector {
  public var node: String? { nil }
  public var realDevice: String? { nil }

  public func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    node.map { NodeWatch(path: $0, on: poller) { changed(.appeared) } }
  }
}

/// Why opening may work now.
public enum DeviceNews: Sendable {
  /// It came, or has changed.
  case appeared
  /// Another program has closed it, or is about to.
  case freed
}

/// What tells that a device may be there now. Lives on a lane.
public protocol DeviceWatch: AnyObject {
  /// No call comes afterwards. Safe to call twice.
  func cancel()

  /// The device is about to be opened by whoever has made the watch: what happens to it until `tryFailed` may be its own doing.
  func tryBegins()

  /// It could not be opened.
  func tryFailed(_ cause: SystemError?)
}

extension DeviceWatch {
  public func tryBegins() {}
  public func tryFailed(_ cause: SystemError?) {}
}

/// A connector whose endpoints say something to people beside their bytes, such as a program on standard error.
public protocol RemarkingConnector: Connector {
  /// The same connector, whose endpoints tell `hear` each line, on their lanes. It must be quick, and must not block.
  func telling(_ hear: @escaping @Sendable (EndpointRemark) -> Void) -> any Connector
}

public struct EndpointRemark: Hashable, Sendable {
  public let line: String
  /// Something was lost.
  public let isWarning: Bool

  public init(_ line: String, isWarning: Bool = false) {
    self.line = line
    self.isWarning = isWarning
  }
}

/// A connector whose openings take several steps, each with a time and an error of its own (switching an adapter on, pairing, looking
/// things up). Whoever opens does not cut them short: his time is for the step of connecting, and given here.
public protocol SteppedConnector: Connector {
  /// How long each of its connections takes at most to come about.
  var connectPatience: Duration { get set }

  /// What the steps beside connecting take at most, all together, while nobody has to pair.
  var otherSteps: Duration { get }
}

/// An attempt under way.
public protocol Opening: AnyObject {
  /// Gives the attempt up: `done` is not called, and what was opened is closed. Does nothing when it is over.
  func cancel()
}

/// For connectors that are done at once.
public final class DoneAtOnce: Opening {
  public init() {}
  public func cancel() {}
}

/// Why a stream could not be opened.
public struct OpenFailure: Error, Hashable, Sendable, CustomStringConvertible {
  /// What was tried, and on what: "connect 127.0.0.1:4001".
  public let attempt: String
  public let cause: SystemError?
  /// What there is to say beside or instead of the cause, such as what to do about it.
  public let advice: String?

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
