// Answers of the control socket as commands read them; what is written there stands in GatewayCore+Control.swift.

extension ControlRequest {
  /// The request as a line of the protocol.
  public var line: String {
    switch self {
    case .health: "health"
    case .status: "status"
    case .reload: "reload"
    case .kick(let route, let sessions):
      JSONValue.object([
        "request": .text("kick"), "route": .text(route), "all": sessions == nil ? .bool(true) : nil,
        "sessions": sessions.map { .array($0.map { .integer($0) }) },
      ]).description
    }
  }
}

extension Snapshot {
  /// The answer to `status`; nil when it is not one.
  public static func read(_ answer: [UInt8]) -> Snapshot? { (try? JSONReader.read(answer)).flatMap { Snapshot($0) } }
}

/// The answer to `reload`.
public enum ReloadAnswer: Hashable, Sendable {
  /// What changed, in lines for people.
  case carriedOut([String])
  /// The same, but files of certificates are of no use, each with what is wrong; what was shown before is shown still.
  case incomplete([String], faults: [String])
  /// Mistakes of the file.
  case refused([String])
  case failed(String)

  public init(_ answer: [UInt8]) {
    guard let json = try? JSONReader.read(answer), let isCarriedOut = json["reloaded"]?.flag else {
      self = .failed(fault(answer))
      return
    }
    if isCarriedOut {
      let faults = Self.texts(json["certificate-faults"])
      self = faults.isEmpty ? .carriedOut(Self.lines(json)) : .incomplete(Self.lines(json), faults: faults)
    } else {
      self = .refused(Self.texts(json["problems"]))
    }
  }

  private static func texts(_ json: JSONValue?) -> [String] { (json?.array ?? []).compactMap(\.text) }

  private static func lines(_ json: JSONValue) -> [String] {
    var lines = texts(json["added"]).map { "added    \($0)" } + texts(json["removed"]).map { "removed  \($0)" }
    for change in json["changed"]?.array ?? [] {
      lines.append("changed  \(change["route"]?.text ?? ""): \(texts(change["keys"]).joined(separator: ", "))")
    }
    lines += texts(json["settings"]).map { "changed  \($0)" }
    let untouched = Figures.count(Int(clamping: json["untouched"]?.integer ?? 0), "route")
    return lines.isEmpty ? ["nothing changed, \(untouched)"] : lines + ["\(untouched) untouched"]
  }
}

/// The answer to `kick`.
public enum KickAnswer: Hashable, Sendable {
  case ended([UInt64])
  case failed(String)

  public init(_ answer: [UInt8]) {
    if let numbers = (try? JSONReader.read(answer))?["kicked"]?.array {
      self = .ended(numbers.compactMap(\.integer))
    } else {
      self = .failed(fault(answer))
    }
  }
}

private func fault(_ answer: [UInt8]) -> String {
  (try? JSONReader.read(answer))?["error"]?.text ?? "the gateway answers in a way this version does not understand"
}
