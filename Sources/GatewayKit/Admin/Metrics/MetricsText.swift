// Metrics as text: Prometheus' own format, and OpenMetrics 1.0. Names and units follow Prometheus' rules; every family
// has its help and its type, and all its samples together.

/// The format that a client asks for.
enum MetricsFormat: Equatable, Sendable {
  case prometheus, openMetrics

  var contentType: String {
    switch self {
    case .prometheus: "text/plain; version=0.0.4; charset=utf-8"
    case .openMetrics: "application/openmetrics-text; version=1.0.0; charset=utf-8"
    }
  }

  /// From the elements of Accept: OpenMetrics for a client that wants it at least as much as plain text.
  init(accept: [String]) {
    func quality(_ types: Set<String>) -> Double {
      accept.map { element in
        let parts = element.split(separator: ";").map { $0.filter { $0 != " " }.lowercased() }
        guard let type = parts.first, types.contains(type) else { return 0 }
        guard let quality = parts.dropFirst().first(where: { $0.hasPrefix("q=") }) else { return 1 }
        return Double(quality.dropFirst(2)) ?? 0
      }.max() ?? 0
    }
    let wanted = quality(["application/openmetrics-text"])
    self = wanted > 0 && wanted >= quality(["text/plain"]) ? .openMetrics : .prometheus
  }
}

/// A family of samples of one name.
struct MetricFamily: Sendable {
  enum Kind: String, Sendable { case gauge, counter, info }

  /// Without `_total` and `_info`.
  let name: String
  let kind: Kind
  let help: String

  init(_ name: String, _ kind: Kind, _ help: String) {
    self.name = name
    self.kind = kind
    self.help = help
  }

  private var unit: String? { ["bytes", "seconds"].first { name.hasSuffix("_\($0)") } }

  private var sampleName: String {
    switch kind {
    case .gauge: name
    case .counter: name + "_total"
    case .info: name + "_info"
    }
  }

  /// The lines before the samples.
  func head(_ format: MetricsFormat) -> String {
    switch format {
    case .prometheus:
      // It has no type for information.
      let type = kind == .info ? Kind.gauge : kind
      return "# HELP \(sampleName) \(Self.escaped(help))\n# TYPE \(sampleName) \(type.rawValue)\n"
    case .openMetrics:
      let unit = unit.map { "# UNIT \(name) \($0)\n" } ?? ""
      return "# TYPE \(name) \(kind.rawValue)\n\(unit)# HELP \(name) \(Self.escaped(help, quotes: true))\n"
    }
  }

  func sample(_ labels: KeyValuePairs<String, String>, _ value: MetricValue) -> String {
    let pairs = labels.map { "\($0)=\"\(Self.escaped($1, quotes: true))\"" }
    return sampleName + (pairs.isEmpty ? "" : "{\(pairs.joined(separator: ","))}") + " \(value.text)\n"
  }

  private static func escaped(_ text: String, quotes: Bool = false) -> String {
    // Names and words hardly ever need it, and each sample has some.
    let isPlain = text.utf8.allSatisfy {
      $0 != UInt8(ascii: "\\") && $0 != UInt8(ascii: "\n") && $0 != UInt8(ascii: "\"")
    }
    if isPlain { return text }
    var escaped = ""
    for scalar in text.unicodeScalars {
      switch scalar {
      case "\\": escaped += "\\\\"
      case "\n": escaped += "\\n"
      case "\"" where quotes: escaped += "\\\""
      default: escaped.unicodeScalars.append(scalar)
      }
    }
    return escaped
  }

  /// The last line of OpenMetrics.
  static func end(_ format: MetricsFormat) -> String { format == .openMetrics ? "# EOF\n" : "" }
}

enum MetricValue: Sendable, ExpressibleByBooleanLiteral {
  case count(UInt64)
  case decimal(Double)

  init(_ number: Int) { self = .count(UInt64(max(0, number))) }
  init(_ number: UInt64) { self = .count(number) }
  init(_ isTrue: Bool) { self = .count(isTrue ? 1 : 0) }
  init(booleanLiteral isTrue: Bool) { self.init(isTrue) }

  var text: String {
    switch self {
    case .count(let number): String(number)
    case .decimal(let number): "\(number)"
    }
  }
}
