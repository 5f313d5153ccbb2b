// Recognises configurations of ser2net, which people try unchanged, and names the command that converts them. Uses
// nothing of the file. Knows both forms: YAML with `connection:` (ser2net 4), and lines with colons (before).

import StreamBroker

enum Ser2net {
  /// The place of the first connection, with what to do; nil when the file is something else.
  static func remark(_ tree: Result<YAMLNode?, YAMLFault>, _ bytes: [UInt8], file: String) -> YAMLFault? {
    let place =
      if case .success(let root?) = tree, case .mapping(let entries) = root.content {
        entries.first(where: isConnection)?.key.location
      } else {
        firstLine(bytes) ?? (isFailure(tree) ? firstKey(bytes) : nil)
      }
    let name = file.utf8.count <= 100 && !file.unicodeScalars.contains(where: Suggestion.isControl) ? file : "FILE"
    return place.map {
      YAMLFault(
        "this is a configuration of ser2net; 'baudway import \(name)' makes one of Baudway from it", at: $0)
    }
  }

  private static func isFailure(_ tree: Result<YAMLNode?, YAMLFault>) -> Bool {
    if case .failure = tree { true } else { false }
  }

  /// `connection: &name { accepter: …, connector: … }`, or `connections: { name: { … } }`.
  private static func isConnection(_ entry: YAMLNode.Entry) -> Bool {
    guard case .scalar(let key) = entry.key.content, case .mapping(let entries) = entry.value.content else {
      return false
    }
    switch key.text {
    case "connection": return entries.contains(where: isEnd)
    case "connections":
      return entries.contains {
        if case .mapping(let inner) = $0.value.content { inner.contains(where: isEnd) } else { false }
      }
    default: return false
    }
  }

  private static func isEnd(_ entry: YAMLNode.Entry) -> Bool {
    guard case .scalar(let key) = entry.key.content else { return false }
    return ["accepter", "connector"].contains(key.text)
  }

  /// `3001:raw:600:/dev/ttyS0:9600 8DATABITS NONE 1STOPBIT`
  private static func firstLine(_ bytes: [UInt8]) -> ConfigProblem.SourceLocation? {
    place(in: bytes) { line in
      guard line.allSatisfy({ $0 < 0x7F && ($0 > 0x1F || [0x09, 0x0D].contains($0)) }) else { return false }
      let parts = line.split(separator: UInt8(ascii: ":"), maxSplits: 4, omittingEmptySubsequences: false).map {
        String(decoding: $0, as: UTF8.self)
      }
      return parts.count >= 4 && ["raw", "rawlp", "telnet", "off"].contains(parts[1]) && UInt32(parts[2]) != nil
        && parts[3].hasPrefix("/dev/")
    }
  }

  /// In a file with a mistake in its YAML, or several documents.
  private static func firstKey(_ bytes: [UInt8]) -> ConfigProblem.SourceLocation? {
    place(in: bytes) { $0.starts(with: "connection:".utf8) || $0.starts(with: "connections:".utf8) }
  }

  private static func place(
    in bytes: [UInt8], where isOne: (ArraySlice<UInt8>) -> Bool
  ) -> ConfigProblem.SourceLocation? {
    bytes.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false).enumerated()
      .first { $0.element.count < 512 && isOne($0.element) }
      .map { ConfigProblem.SourceLocation(line: $0.offset + 1, column: 1) }
  }
}
