// Expands references in a scalar: `${NAME}` and `${NAME:-default}` from the environment, and `file:path` for secrets.
// `$${` is a literal `${`.

import ByteStreams
import Glibc
import StreamBroker

struct Expansion {
  let environment: ConfigEnvironment
  /// Bytes that variables may still add: a file of references to one long variable must not fill memory.
  private var allowance = 1 << 20

  struct Fault: Error { let message: String }

  init(_ environment: ConfigEnvironment) { self.environment = environment }

  mutating func expand(_ text: String) throws(Fault) -> String {
    var result = ""
    var rest = text[...]
    while let dollar = rest.firstIndex(of: "$") {
      result += rest[..<dollar]
      rest = rest[dollar...]
      if rest.hasPrefix("$${") {
        result += "${"
        rest = rest.dropFirst(3)
      } else if rest.hasPrefix("${") {
        guard let close = rest.firstIndex(of: "}") else { throw Fault(message: "'${' without '}'") }
        let value = try value(of: rest[rest.index(rest.startIndex, offsetBy: 2)..<close])
        allowance -= value.utf8.count
        if allowance < 0 { throw Fault(message: "environment variables add more than 1MiB") }
        result += value
        rest = rest[close...].dropFirst()
      } else {
        result += "$"
        rest = rest.dropFirst()
      }
    }
    return result + rest
  }

  /// The first `$NAME` or `$(NAME)` in `text`, as shells and make write variables, and how to write it here. Such a
  /// text is not expanded: passwords and hashes contain dollars, too.
  static func shellVariable(in text: String) -> (offset: Int, written: String, meant: String)? {
    let scalars = Array(text.unicodeScalars)
    for (offset, scalar) in scalars.enumerated() where scalar == "$" {
      let isBracketed = offset + 1 < scalars.count && scalars[offset + 1] == "("
      let rest = scalars[(offset + (isBracketed ? 2 : 1))...]
      let name = rest.prefix { $0.isASCII && ($0 == "_" || $0.properties.isAlphabetic || ("0"..."9").contains($0)) }
      guard let first = name.first, !("0"..."9").contains(first) else { continue }
      if isBracketed, rest.dropFirst(name.count).first != ")" { continue }
      let text = name.reduce(into: "") { $0.unicodeScalars.append($1) }
      return (offset, isBracketed ? "$(\(text))" : "$\(text)", "${\(text)}")
    }
    return nil
  }

  private func value(of reference: Substring) throws(Fault) -> String {
    let parts = reference.firstRange(of: ":-").map {
      (reference[..<$0.lowerBound], String(reference[$0.upperBound...]))
    }
    let (name, standard) = parts ?? (reference, nil)
    let isName =
      name.allSatisfy { $0.isASCII && ($0.isLetter || $0.isNumber || $0 == "_") } && !(name.first?.isNumber ?? true)
    guard isName else {
      throw Fault(message: "\(Suggestion.quote(String(name))) is not a variable name; a literal '${' is written '$${'")
    }
    let value = environment.variables[String(name)]
    // As in a shell, `:-` also replaces an empty variable.
    if let standard { return value.flatMap { $0.isEmpty ? nil : $0 } ?? standard }
    guard let value else {
      throw Fault(message: "the environment has no \(name); set it, or give a default: ${\(name):-default}")
    }
    return value
  }

  /// The path of the file that `text` names; nil when `text` is the secret itself.
  func secretFile(_ text: String) -> String? {
    guard text.hasPrefix("file:") else { return nil }
    let name = String(text.dropFirst("file:".count))
    return name.hasPrefix("/") ? name : "\(environment.directory)/\(name)"
  }

  /// The secret: `text` itself, or the content of the file that it names, without one line end.
  func secret(_ text: String) throws(Fault) -> String {
    guard let path = secretFile(text) else { return text }
    let name = String(text.dropFirst("file:".count))
    if name.isEmpty { throw Fault(message: "'file:' without a path") }
    let bytes: [UInt8]
    do throws(SystemError) {
      bytes = try environment.content(path, 64 << 10).get()
    } catch {
      let advice =
        name.hasPrefix("~")
        ? "; '~' is not expanded here, write the whole path"
        : error.errno == ENXIO ? "; it is a FIFO, a socket or a device" : ""
      throw Fault(
        message: "cannot read the secret's file \(Suggestion.quote(name)): \(error.text) (\(error.name))\(advice)")
    }
    guard var secret = String(validating: bytes, as: UTF8.self) else {
      throw Fault(message: "the secret's file \(Suggestion.quote(name)) is not UTF-8")
    }
    if secret.hasSuffix("\r\n") || secret.hasSuffix("\n") { secret.removeLast() }
    if secret.isEmpty { throw Fault(message: "the secret's file \(Suggestion.quote(name)) is empty") }
    return secret
  }
}
