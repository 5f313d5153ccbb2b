// When a stream opens its endpoint again, as a value.

/// Whether a stream of `connect` opens its endpoint again.
public struct Reconnect: Hashable, Sendable {
  enum Kind: Hashable, Sendable { case never, whenLost, always }

  let kind: Kind
  /// The shortest and the longest pause between two tries. Pauses double from one to the other; a device that appears
  /// is opened at once.
  let pauses: ClosedRange<Duration>
  /// Whether a write waits while the link is lost; otherwise its bytes are dropped.
  let holdsOutput: Bool

  private init(_ kind: Kind, _ pauses: ClosedRange<Duration>, holdsOutput: Bool) {
    self.kind = kind
    self.pauses = pauses
    self.holdsOutput = holdsOutput
  }

  /// The stream ends when the endpoint ends or the link breaks.
  public static let never = Reconnect(.never, usualPauses, holdsOutput: true)

  /// The first opening must succeed. Later the endpoint is opened again after it ended or broke.
  public static let whenLost = Reconnect(.whenLost, usualPauses, holdsOutput: true)

  /// The first opening is tried again, too, whatever its error: `connect` returns when the endpoint is open, or fails at
  /// its timeout. A wrong URL is an error at once.
  public static let always = Reconnect(.always, usualPauses, holdsOutput: true)

  /// The same policy with other pauses between tries, and for what is written while the link is lost: it waits
  /// (`holdingOutput`), or it is dropped and `write` returns at once.
  public func pausing(_ pauses: ClosedRange<Duration>, holdingOutput: Bool = true) -> Reconnect {
    Reconnect(kind, pauses, holdsOutput: holdingOutput)
  }

  /// Those of the gateway's `device.retry`.
  private static let usualPauses = Duration.milliseconds(250) ... .seconds(30)
}
