// Answers of the control socket, as commands read them. GatewayCore+Control.swift writes them.

import StreamBroker

extension ControlRequest {
  /// The request as a line of the protocol.
  package var line: String {
    switch self {
    case .health: "health"
    case .status: "status"
    case .reload: "reload"
    case .kick(let route, let sessions):
      JSONValue.object([
        "request": .text("kick"), "route": .text(route), "all": sessions == nil ? .bool(true) : nil,
        "sessions": sessions.map { .array($0.map { .integer($0) }) },
      ]).description
    case .capture(let route, let format):
      JSONValue.object([
        "request": .text("capture"), "route": .text(route), "format": .text(format.rawValue),
      ]).description
    case .link(let route, let action):
      JSONValue.object([
        "request": .text(action.name), "route": .text(route), "recipe": action.recipe.map { .text($0.text) },
      ]).description
    }
  }
}

extension Snapshot {
  /// The answer to `status`; nil if it is not a valid one.
  package static func read(_ answer: [UInt8]) -> Snapshot? { (try? JSONReader.read(answer)).flatMap { Snapshot($0) } }
}

/// The answer to `reload`.
package enum ReloadAnswer: Hashable, Sendable {
  /// The changes, as lines to show.
  case carriedOut([String])
  /// The same, but some certificate files can't be used: `faults` has the reason for each. Their old content stays in
  /// use.
  case incomplete([String], faults: [String])
  /// The errors in the configuration.
  case refused([String])
  case failed(String)

  package init(_ answer: [UInt8]) {
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
package enum KickAnswer: Hashable, Sendable {
  case ended([UInt64])
  case failed(String)

  package init(_ answer: [UInt8]) {
    if let numbers = (try? JSONReader.read(answer))?["kicked"]?.array {
      self = .ended(numbers.compactMap(\.integer))
    } else {
      self = .failed(fault(answer))
    }
  }
}

/// The answer to `reset`, `release` and `reopen`.
package enum LinkAnswer: Hashable, Sendable {
  /// The recipe's name, or the state of the link.
  case done(String)
  /// Nothing was done at the port, or not all.
  case refused(String)
  case failed(String)

  package init(_ answer: [UInt8], to action: LinkAction) {
    let json = (try? JSONReader.read(answer)) ?? .null
    switch action.isDone(json) {
    case true?: self = .done(action.result(json))
    case false?: self = .refused(json["error"]?.text ?? "")
    case nil: self = .failed(fault(answer))
    }
  }
}

private func fault(_ answer: [UInt8]) -> String {
  (try? JSONReader.read(answer))?["error"]?.text
    ?? "this version does not understand the gateway's answer; use the gateway's version of baudway"
}
