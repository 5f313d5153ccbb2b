// Network hosts in a URL. Part of URLParser; looks up no names.

import Glibc

extension URLParser {
  /// In lower case, except the zone: it is the name of a network interface, and enP2p1s0 is not enp2p1s0.
  func address(_ text: String) -> String {
    let text = text.replacing("%25", with: "%")
    let zone = text.firstIndex(of: "%") ?? text.endIndex
    return text[..<zone].lowercased() + text[zone...]
  }

  /// Checks scalars, because a `Character` can begin with a letter and contain a slash.
  private func isName(_ text: some StringProtocol) -> Bool {
    text.unicodeScalars.allSatisfy { scalar in
      switch scalar {
      case "a"..."z", "A"..."Z", "0"..."9", "-", ".", "_": return true
      default: break
      }
      return switch scalar.properties.generalCategory {
      case .uppercaseLetter, .lowercaseLetter, .titlecaseLetter, .modifierLetter, .otherLetter, .decimalNumber,
        .nonspacingMark, .spacingMark:
        true
      default: false
      }
    }
  }

  mutating func checkHost(_ host: String, _ isListening: Bool, at offset: Int, _ grammar: SchemeGrammar) {
    let isName = host.utf8.count <= 253 && isName(host)
    var address = in_addr()
    if host.isEmpty {
      report("needs a host, as in \(grammar.example)", at: offset)
    } else if !isName || host.hasPrefix("-") || host.hasPrefix(".") || host.contains("..") {
      report("\(Suggestion.quote(host)) is not a host name or an address", at: offset)
    } else if host.allSatisfy({ $0.isASCII && ($0.isNumber || $0 == ".") }), inet_pton(AF_INET, host, &address) != 1 {
      report("\(Suggestion.quote(host)) is not an IPv4 address", at: offset)
    } else if isListening, inet_pton(AF_INET, host, &address) != 1 {
      report(
        "\(Suggestion.quote(host)) is not an address; expected one such as 127.0.0.1 or [::1], localhost, or none",
        at: offset)
    }
  }

  /// fe80::/10 without a zone (RFC 4007): the kernel refuses it with EINVAL.
  func lacksInterface(_ host: String) -> Bool {
    var address = in6_addr()
    guard inet_pton(AF_INET6, host, &address) == 1 else { return false }
    return withUnsafeBytes(of: address) { $0[0] == 0xFE && $0[1] & 0xC0 == 0x80 }
  }

  func isIPv6(_ host: String) -> Bool {
    let parts = host.split(separator: "%", maxSplits: 1, omittingEmptySubsequences: false)
    var address = in6_addr()
    let zoneIsGood = parts.count < 2 || !parts[1].isEmpty && isName(parts[1])
    return zoneIsGood && inet_pton(AF_INET6, String(parts[0]), &address) == 1
  }
}
