// What --version and the log say, and messages about what this version lacks.

public enum Version {
  public static let text = "0.1.0"
  /// "Baudway 0.1.0"
  public static let name = "Baudway \(text)"
}
