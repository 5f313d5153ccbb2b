// A word as a shell takes it, for what people are to paste.

enum ShellWord {
  /// As it stands where no shell makes anything else of it, else between single quotes (POSIX shell, section 2.2.2).
  static func quoted(_ text: String) -> String {
    let plain = text.unicodeScalars.allSatisfy { scalar in
      scalar.isASCII && (scalar.properties.isAlphabetic || "0123456789-_./:,+@%".unicodeScalars.contains(scalar))
    }
    return plain && !text.isEmpty ? text : "'" + text.replacing("'", with: #"'\''"#) + "'"
  }
}
