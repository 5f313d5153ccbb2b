// Quotes a word for a shell, for URLs that you paste.

enum ShellWord {
  /// Unchanged if no shell would change it, else in single quotes (POSIX shell, section 2.2.2).
  static func quoted(_ text: String) -> String {
    let plain = text.unicodeScalars.allSatisfy { scalar in
      scalar.isASCII && (scalar.properties.isAlphabetic || "0123456789-_./:,+@%".unicodeScalars.contains(scalar))
    }
    return plain && !text.isEmpty ? text : "'" + text.replacing("'", with: #"'\''"#) + "'"
  }
}
