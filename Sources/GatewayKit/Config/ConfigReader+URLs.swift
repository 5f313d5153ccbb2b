// URLs in the config file: alone, or as `url:` with their parameters as keys beside it.

import StreamBroker

extension ConfigReader {
  private typealias Beside = (
    name: String, value: String, key: ConfigProblem.SourceLocation, location: ConfigProblem.SourceLocation,
    isExpanded: Bool
  )

  /// The texts for which the URL parser asked for secrets.
  private final class SecretTexts {
    var texts: Set<String> = []
  }

  mutating func readURL(
    _ node: YAMLNode, _ schemes: [SchemeGrammar], built: Set<String>?, at spot: Spot
  ) -> ConfigURL? {
    guard let (urlNode, beside) = parts(of: node, schemes, at: spot) else { return nil }
    guard case .scalar(let scalar) = urlNode.content, !urlNode.isNull else {
      report("expected a URL, such as \(schemes[0].example), not \(urlNode.kind)", at: urlNode.location, spot.path)
      return nil
    }
    guard let text = text(of: scalar, at: urlNode.location, spot.path) else { return nil }
    let secrets = SecretTexts()
    let parsed = EndpointURL.parse(
      text, beside: beside.map { ($0.name, $0.value) }, schemes: schemes, built: built
    ) { [expansion] text in
      secrets.texts.insert(text)
      do throws(Expansion.Fault) { return .success(try expansion.secret(text)) } catch {
        return .failure(ValueFault(error.message))
      }
    }
    let isExpanded = text != scalar.text || beside.contains(where: \.isExpanded)
    for secret in secrets.texts.sorted() { noteSecret(secret, isExpanded: isExpanded, at: urlNode.location, spot.path) }
    report(parsed, beside, column: text == scalar.text ? scalar.firstColumn : nil, at: urlNode.location, spot)
    // A relative path starts in the folder of the config file, not in the working directory.
    let folder = expansion.environment.directory
    return parsed.url.map {
      ConfigURL(url: $0.resolvingPaths(from: folder), location: urlNode.location, path: spot.path)
    }
  }

  /// The node of the URL, and the parameters beside it.
  private mutating func parts(
    of node: YAMLNode, _ schemes: [SchemeGrammar], at spot: Spot
  ) -> (url: YAMLNode, beside: [Beside])? {
    guard case .mapping = node.content else { return (node, []) }
    let sample = "url: \(schemes[0].example)"
    let all = entries(of: node, at: spot, sample: sample)
    guard let url = all.first(where: { $0.name == "url" }) else {
      report("needs 'url', such as '\(sample)'", at: node.location, spot.path)
      return nil
    }
    return (url.value, readBeside(all.filter { $0.name != "url" }, schemes, at: spot))
  }

  /// The URL's text, with its variables expanded. Nil for a text that is clearly no URL, which is reported.
  private mutating func text(
    of scalar: YAMLNode.Scalar, at location: ConfigProblem.SourceLocation, _ path: String
  ) -> String? {
    // A text that continues in the next line has no column.
    if scalar.isPlain, scalar.firstColumn == nil, scalar.text.contains(" - ") {
      report(
        "'- ' continues the URL of the line before; write each item of a list in a line of its own, all in the same "
          + "column", at: location, path)
      return nil
    }
    // Spaces within a URL are left to the URL parser, which may know the intended URL.
    if scalar.isPlain, Typography.unquoted(scalar.text) != nil {
      _ = reportTypography(scalar.text, column: scalar.firstColumn, at: location, path)
      return nil
    }
    if let variable = Expansion.shellVariable(in: String(scalar.text.prefix { $0 != "?" })) {
      let column = (scalar.firstColumn ?? location.column - variable.offset) + variable.offset
      report(
        "'\(Suggestion.plain(variable.written))' is not expanded; a variable is written "
          + "\(Suggestion.plain(variable.meant)), and a literal '$' is written %24",
        at: location.moved(to: column), path)
      return nil
    }
    guard let text = expand(scalar, at: location, path) else { return nil }
    if scalar.isPlain, let advice = numberAdvice(text) {
      report(advice, at: location, path)
      return nil
    }
    return text
  }

  /// Reports what the URL parser found. `column` is where the text of the URL begins; nil if an offset in it is no
  /// column of the file.
  private mutating func report(
    _ parsed: (url: EndpointURL?, problems: [URLProblem]), _ beside: [Beside], column: Int?,
    at location: ConfigProblem.SourceLocation, _ spot: Spot
  ) {
    func place(of offset: Int) -> ConfigProblem.SourceLocation {
      column.map { location.moved(to: $0 + offset) } ?? location
    }
    for problem in parsed.problems {
      let own = problem.beside.map { $0.isValue ? beside[$0.index].location : beside[$0.index].key }
      let home = problem.unknown.flatMap { advice(onUnknown: $0, spot) }
      report(
        home ?? problem.message, at: own ?? place(of: problem.offset), spot.path,
        suggestion: home == nil ? problem.suggestion : nil)
    }
    for warning in parsed.url?.warnings ?? [] { warn(warning.message, at: place(of: warning.offset), spot.path) }
  }

  /// The parameters beside `url:`; a list gives a repeatable one several values.
  private mutating func readBeside(
    _ entries: [Entry], _ schemes: [SchemeGrammar], at spot: Spot
  ) -> [Beside] {
    var beside: [Beside] = []
    for entry in entries {
      if schemes.allSatisfy({ $0.parameter(entry.name) == nil }), let home = advice(onUnknown: entry.name, spot) {
        report(home, at: entry.location, spot.path)
        continue
      }
      let path = "\(spot.path).\(Suggestion.plain(entry.name))"
      var items = [entry.value]
      if case .sequence(let list) = entry.value.content { items = list }
      if items.isEmpty { report("expected a value, not an empty list", at: entry.value.location, path) }
      for item in items {
        guard case .scalar(let scalar) = item.content, !item.isNull else {
          report("expected a single value, not \(item.kind)", at: item.location, path)
          continue
        }
        guard let text = expand(scalar, at: item.location, path) else { continue }
        beside.append((entry.name, text, entry.location, item.location, text != scalar.text))
      }
    }
    return beside
  }

  /// The right place for what a URL has no parameter for; nil if it is unknown everywhere.
  private func advice(onUnknown name: String, _ spot: Spot) -> String? {
    var place = ""
    guard spot.path.hasPrefix("routes.") else { return nil }
    if spot.name == "listen", ["cert", "certificate", "key", "ca", "client-ca"].contains(name) {
      place = ", as in tls: { certificate: cert.pem, key: key.pem }"
    } else if !ConfigKeys.isOfRoute(name) {
      return nil
    }
    return "\(Suggestion.quote(name)) is no parameter of a URL; it belongs under the route, beside "
      + Suggestion.quote(spot.name) + place
  }

  private mutating func expand(_ scalar: YAMLNode.Scalar, at location: ConfigProblem.SourceLocation, _ path: String)
    -> String?
  {
    do throws(Expansion.Fault) {
      return try expansion.expand(scalar.text)
    } catch {
      report(error.message, at: location, path)
      return nil
    }
  }

  /// YAML 1.1 reads `4001:22` as a number to the base of 60. We don't, but it is no URL either.
  private func numberAdvice(_ text: String) -> String? {
    let groups = text.split(separator: ":", omittingEmptySubsequences: false)
    guard !text.isEmpty, groups.allSatisfy({ !$0.isEmpty && $0.allSatisfy { $0.isASCII && $0.isNumber } }) else {
      return nil
    }
    let note = groups.count > 1 ? " (and other YAML readers read it as a base-60 number)" : ""
    return "\(Suggestion.quote(text)) is not a URL\(note); write the scheme too, such as tcp://127.0.0.1:\(groups[0])"
  }
}
