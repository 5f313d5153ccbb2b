// What --version and the log say.

public enum Version {
  public static let text = "0.1.0"
}
