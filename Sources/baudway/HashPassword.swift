// `baudway hash-password`: makes the hash for `users` from a password, typed unseen or read from standard input.

import CommandArguments
import GatewayKit
import Glibc

struct HashPassword: Command {
  static let help = CommandHelp(
    "hash-password", "Makes the hash of a password, for users in the configuration.",
    discussion: """
      At a terminal, asks twice and does not show what you type; otherwise reads the first line of standard input. Prints one \
      line: put it in quotes in the configuration (users: { ada: { password: "$y$…" } }), or alone in another file (file:NAME).
      """)

  enum Method: String, CaseIterable, ParameterValue {
    case yescrypt, bcrypt
    case sha512 = "sha-512"

    var prefix: String {
      switch self {
      case .yescrypt: "$y$"
      case .bcrypt: "$2b$"
      case .sha512: "$6$"
      }
    }

    /// The accepted costs. For others, libcrypt would use the nearest one, or none.
    var costs: ClosedRange<UInt> {
      switch self {
      case .yescrypt: 1...11
      case .bcrypt: 4...31
      case .sha512: 1000...999_999_999
      }
    }
  }

  @Option(short: "m", help: "yescrypt, bcrypt or sha-512.")
  var method = Method.yescrypt
  @Option(
    short: "c",
    help: """
      The cost of computing the hash; higher is slower. yescrypt: 1 to 11, bcrypt: 4 to 31, sha-512: 1000 to 999999999 rounds. \
      Default: the method's own.
      """)
  var cost: UInt?

  // bcrypt ignores all bytes after these.
  private static let bcryptLimit = 72

  func validate() throws {
    guard let cost, !method.costs.contains(cost) else { return }
    let (least, most) = (method.costs.lowerBound, method.costs.upperBound)
    throw UsageError("\(method.rawValue) takes a cost from \(least) to \(most), not \(cost)")
  }

  func run() throws {
    let password = try isatty(STDIN_FILENO) == 1 ? asked() : piped()
    if method == .bcrypt, password.utf8.count > Self.bcryptLimit {
      throw failure("the password is too long: at most \(Self.bcryptLimit) bytes for bcrypt", EX_DATAERR)
    }
    guard let hash = CryptHash.make(password, prefix: method.prefix, cost: cost ?? 0) else {
      throw failure("libcrypt does not support \(method.rawValue)", EX_USAGE)
    }
    try put((hash + "\n").utf8)
  }

  private func failure(_ text: String, _ code: Int32) -> ExitCode {
    say("baudway: \(text)")
    return ExitCode(code)
  }

  private func checked(_ bytes: [UInt8]) throws -> String {
    guard let text = String(validating: bytes, as: UTF8.self), !bytes.contains(0) else {
      throw failure("a password must be UTF-8, without NUL", EX_DATAERR)
    }
    if text.isEmpty { throw failure("the password is empty", EX_DATAERR) }
    if bytes.count > CryptHash.longestPassword {
      throw failure("the password is too long: at most \(CryptHash.longestPassword) bytes", EX_DATAERR)
    }
    return text
  }

  // MARK: - Reading the password

  private func piped() throws -> String {
    guard var bytes = line() else { throw failure("cannot read standard input", EX_IOERR) }
    if bytes.last == UInt8(ascii: "\r") { bytes.removeLast() }
    return try checked(bytes)
  }

  private func asked() throws -> String {
    let one = try typed("Password: ")
    let text = try checked(one)
    guard try typed("Once more: ") == one else { throw failure("the two passwords differ", EX_DATAERR) }
    return text
  }

  /// Reads a line from the terminal without showing it. Ctrl-C makes no signal meanwhile, so the terminal is always
  /// restored.
  private func typed(_ prompt: String) throws -> [UInt8] {
    var before = termios()
    guard tcgetattr(STDIN_FILENO, &before) == 0 else { throw failure("the terminal does not answer", EX_IOERR) }
    var silent = before
    silent.c_lflag &= ~tcflag_t(ECHO | ISIG)
    // Ctrl-C ends a line here, so that it is read at once.
    let controlC: UInt8 = 3
    withUnsafeMutableBytes(of: &silent.c_cc) { $0[Int(VEOL)] = controlC }
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent)
    defer {
      tcsetattr(STDIN_FILENO, TCSAFLUSH, &before)
      say("")
    }
    _ = write(STDERR_FILENO, prompt, strlen(prompt))
    guard let bytes = line(endedBy: controlC) else { throw failure("no password was typed", EX_NOINPUT) }
    return bytes
  }

  /// The next line of standard input without its end, read up to the longest password and one byte. Nil when it can't
  /// be read, or `other` is in it.
  private func line(endedBy other: UInt8? = nil) -> [UInt8]? {
    var bytes: [UInt8] = []
    var byte: UInt8 = 0
    while bytes.count <= CryptHash.longestPassword {
      switch read(STDIN_FILENO, &byte, 1) {
      case 0: return bytes
      case 1 where byte == UInt8(ascii: "\n"): return bytes
      case 1 where byte == other: return nil
      case 1: bytes.append(byte)
      default: if errno != EINTR { return nil }
      }
    }
    return bytes
  }
}
