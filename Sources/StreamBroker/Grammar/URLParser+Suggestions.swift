// What may have been meant by a text that is no URL. Offered only if it is one, of a scheme that is wanted there.

extension URLParser {
  /// The first of these texts that is a URL. None that has a secret: it may be what stood for a variable.
  func firstGood(_ texts: [String?]) -> String? {
    texts.lazy.compactMap { $0 }.first {
      guard let url = EndpointURL.parse($0, schemes: schemes, built: built, reveal: reveal).url else { return false }
      return !url.settings.contains { if case .secret = $0.value { true } else { false } }
    }
  }

  /// For a text without a scheme: a serial port's name, or a host and a port.
  func urlWithScheme() -> String? {
    let name = text.hasPrefix("/dev/") ? text : text.hasPrefix("tty") ? "/dev/\(text)" : nil
    let isNetwork = scalars.lastIndex(of: ":").map { isDigits($0 + 1..<scalars.count) } ?? false
    return firstGood([name.map { PortNotation.url($0) ?? "tty://\($0)" }, isNetwork ? "tcp://\(text)" : nil])
  }

  /// For a text whose scheme is not followed by two slashes: `tcp:4001`, `tcp:://host:4001`, `tty:/dev/ttyS0`.
  func urlWithSlashes(_ grammar: SchemeGrammar, after start: Int) -> String? {
    let rest = string(start..<scalars.count)
    let bare = String(rest.drop { $0 == ":" || $0 == "/" })
    switch grammar.path {
    case .file, .device: return rest.hasPrefix("/") ? firstGood(["\(grammar.scheme):///\(bare)"]) : nil
    default: return firstGood(["\(grammar.scheme)://\(bare)", "\(grammar.scheme)://:\(bare)"])
    }
  }
}

/// How other programs name a serial port together with its settings: `/dev/ttyUSB0:9600`, `/dev/ttyUSB0,115200,8N1`.
public enum PortNotation {
  /// What `path` means as a URL; nil when there is no bit rate at its end. Names of udev's have colons and numbers, too, but
  /// short ones.
  public static func url(_ path: String) -> String? {
    var parts = path.split(omittingEmptySubsequences: false) { $0 == ":" || $0 == "," }
    if parts.count > 2, parts.last?.lowercased() == "8n1" { parts.removeLast() }
    guard parts.count > 1, let rate = parts.last, rate.utf8.count > 2, let baud = UInt32(rate), baud > 0 else {
      return nil
    }
    // As it was written, up to the rate.
    let name = path[..<path.index(before: rate.startIndex)]
    return "tty://\(name)?baud=\(baud)"
  }
}
