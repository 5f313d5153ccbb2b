// A password, token or key: kept, compared, and never printed. Code that needs the text calls `reveal()`.

/// A password, token or key. Descriptions, interpolation and mirrors show `***`.
public struct Secret: Hashable, Sendable, CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
  private let text: String

  /// Keeps `text`.
  public init(_ text: String) { self.text = text }

  /// The text itself.
  public func reveal() -> String { text }

  public var description: String { "***" }
  public var debugDescription: String { "***" }
  public var customMirror: Mirror { Mirror(self, children: [:]) }
}
