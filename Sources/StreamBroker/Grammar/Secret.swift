// A password, token or key: kept, compared, and never printed. Whoever needs the text says `reveal()`.

public struct Secret: Hashable, Sendable, CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
  private let text: String

  public init(_ text: String) { self.text = text }

  public func reveal() -> String { text }

  public var description: String { "***" }
  public var debugDescription: String { "***" }
  public var customMirror: Mirror { Mirror(self, children: [:]) }
}
