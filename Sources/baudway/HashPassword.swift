// `baudway hash-password`: a password from the terminal, unseen, or from standard input becomes what stands under `users`.

import ArgumentParser
import GatewayKit
import Glibc

struct HashPassword: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Makes the hash of a password, for users in the configuration.",
    discussion: """
      Asks twice at a terminal, without showing what is typed; else the password is the first line of standard input. Prints one \
      line, which stands in quotes in the file (users: { ada: { password: "$y$…" } }) or alone in one beside it (file:NAME).
      """)

  enum Method: String, CaseIterable, ExpressibleByArgument {
    case yescrypt, bcrypt
    case sha512 = "sha-512"

    var prefix: String {
      switch self {
      case .yescrypt: "$y$"
      case .bcrypt: "$2b$"
      case .sha512: "$6$"
      }
    }

    /// libcrypt would take a number beyond it for the nearest, or for none.
    var costs: ClosedRange<UInt> {
      switch self {
      case .yescrypt: 1...11
      case .bcrypt: 4...31
      case .sha512: 1000...999_999_999
      }
    }
  }

  @Option(name: .shortAndLong, help: "yescrypt, bcrypt or sha-512.")
  var method = Method.yescrypt
  @Option(
    name: .shortAndLong,
    help: """
      How hard it is to compute; more is slower. yescrypt has 1 to 11, bcrypt 4 to 31, sha-512 1000 to 999999999 rounds. \
      Without it the method's own.
      """)
  var cost: UInt?

  // bcrypt leaves out all behind it.
  private static let bcryptLimit = 72

  func validate() throws {
    guard let cost, !method.costs.contains(cost) else { return }
    let (least, most) = (method.costs.lowerBound, method.costs.upperBound)
    throw ValidationError("\(method.rawValue) has costs from \(least) to \(most), not \(cost)")
  }

  func run() throws {
    let password = try isatty(STDIN_FILENO) == 1 ? asked() : piped()
    if method == .bcrypt, password.utf8.count > Self.bcryptLimit {
      throw failure("bcrypt takes \(Self.bcryptLimit) bytes at most", EX_DATAERR)
    }
    guard let hash = CryptHash.make(password, prefix: method.prefix, cost: cost ?? 0) else {
      throw failure("libcrypt makes no hash by \(method.rawValue)", EX_USAGE)
    }
    try put((hash + "\n").utf8)
  }

  private func failure(_ text: String, _ code: Int32) -> ExitCode {
    say("baudway: \(text)")
    return ExitCode(code)
  }

  private func checked(_ bytes: [UInt8]) throws -> String {
    guard let text = String(validating: bytes, as: UTF8.self), !bytes.contains(0) else {
      throw failure("a password is UTF-8, without NUL", EX_DATAERR)
    }
    if text.isEmpty { throw failure("an empty password", EX_DATAERR) }
    if bytes.count > CryptHash.longestPassword {
      throw failure("a password has \(CryptHash.longestPassword) bytes at most", EX_DATAERR)
    }
    return text
  }

  // MARK: - Where it comes from

  private func piped() throws -> String {
    guard var bytes = line() else { throw failure("cannot read standard input", EX_IOERR) }
    if bytes.last == UInt8(ascii: "\r") { bytes.removeLast() }
    return try checked(bytes)
  }

  private func asked() throws -> String {
    let one = try typed("Password: ")
    let text = try checked(one)
    guard try typed("Once more: ") == one else { throw failure("the two are not the same", EX_DATAERR) }
    return text
  }

  /// A line from the terminal that is not shown. Ctrl-C leaves the terminal as it was: its signal is off meanwhile.
  private func typed(_ prompt: String) throws -> [UInt8] {
    var before = termios()
    guard tcgetattr(STDIN_FILENO, &before) == 0 else { throw failure("the terminal does not answer", EX_IOERR) }
    var silent = before
    silent.c_lflag &= ~tcflag_t(ECHO | ISIG)
    // It ends a line, so that it is read at once.
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

  /// The next line of standard input, without its end, as far as a password may be long. Nil when it can't be read, or `other` is
  /// in it.
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
