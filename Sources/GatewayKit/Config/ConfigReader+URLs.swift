// URLs in the config file: alone, or as `url:` with their parameters as keys beside it.

import StreamBroker

extension ConfigReader {
  private typealias Beside = (
    name: String, value: String, key: ConfigProblem.Place, place: ConfigProblem.Place, isExpanded: Bool
  )

  /// What the URL's parser asked the secrets of.
  private final class SecretTexts {
    var texts: Set<String> = []
  }

  mutating func readURL(
    _ node: YAMLNode, _ schemes: [SchemeGrammar], built: Set<String>?, at spot: Spot
  ) -> ConfigURL? {
    var urlNode = node
    var beside: [Beside] = []
    if case .mapping = node.content {
      let all = entries(of: node, at: spot, sample: "url: \(schemes[0].example)")
      guard let entry = all.first(where: { $0.name == "url" }) else {
        report("needs 'url', such as 'url: \(schemes[0].example)'", at: node.place, spot.path)
        return nil
      }
      urlNode = entry.value
      beside = readBeside(all.filter { $0.name != "url" }, at: spot)
    }
    guard case .scalar(let scalar) = urlNode.content, !urlNode.isNull else {
      report("expected a URL, such as \(schemes[0].example), not \(urlNode.kind)", at: urlNode.place, spot.path)
      return nil
    }
    // Spaces within a URL are for its own parser to tell, which may know the URL that was meant.
    if scalar.isPlain, Typography.unquoted(scalar.text) != nil {
      _ = reportTypography(scalar.text, column: scalar.firstColumn, at: urlNode.place, spot.path)
      return nil
    }
    if let variable = Expansion.shellVariable(in: String(scalar.text.prefix { $0 != "?" })) {
      let column = (scalar.firstColumn ?? urlNode.place.column - variable.offset) + variable.offset
      report(
        "'\(Suggestion.plain(variable.written))' stands for itself; a variable is written \(Suggestion.plain(variable.meant)), and a '$' "
          + "of the URL's own is %24", at: ConfigProblem.Place(line: urlNode.place.line, column: column), spot.path)
      return nil
    }
    guard let text = expand(scalar, at: urlNode.place, spot.path) else { return nil }
    if scalar.isPlain, let advice = numberAdvice(text) {
      report(advice, at: urlNode.place, spot.path)
      return nil
    }
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
    for secret in secrets.texts.sorted() { noteSecret(secret, isExpanded: isExpanded, at: urlNode.place, spot.path) }
    let column = text == scalar.text ? scalar.firstColumn : nil
    for problem in parsed.problems {
      var place = urlNode.place
      if let item = problem.beside {
        place = item.isValue ? beside[item.index].place : beside[item.index].key
      } else if let column {
        place = ConfigProblem.Place(line: place.line, column: column + problem.offset)
      }
      report(problem.message, at: place, spot.path, suggestion: problem.suggestion)
    }
    // Wherever the gateway was started, a relative path begins where the config file is.
    let folder = expansion.surroundings.directory
    return parsed.url.map { ConfigURL(url: $0.resolvingPaths(from: folder), place: urlNode.place, path: spot.path) }
  }

  /// The parameters beside `url:`; a list gives a repeatable one several values.
  private mutating func readBeside(_ entries: [Entry], at spot: Spot) -> [Beside] {
    var beside: [Beside] = []
    for entry in entries {
      let path = "\(spot.path).\(Suggestion.plain(entry.name))"
      var items = [entry.value]
      if case .sequence(let list) = entry.value.content { items = list }
      if items.isEmpty { report("expected a value, not an empty list", at: entry.value.place, path) }
      for item in items {
        guard case .scalar(let scalar) = item.content, !item.isNull else {
          report("expected a single value, not \(item.kind)", at: item.place, path)
          continue
        }
        guard let text = expand(scalar, at: item.place, path) else { continue }
        beside.append((entry.name, text, entry.place, item.place, text != scalar.text))
      }
    }
    return beside
  }

  private mutating func expand(_ scalar: YAMLNode.Scalar, at place: ConfigProblem.Place, _ path: String) -> String? {
    do throws(Expansion.Fault) {
      return try expansion.expand(scalar.text)
    } catch {
      report(error.message, at: place, path)
      return nil
    }
  }

  /// YAML 1.1 makes a number to the base of 60 of `4001:22`; we don't, but it is no URL either.
  private func numberAdvice(_ text: String) -> String? {
    let groups = text.split(separator: ":", omittingEmptySubsequences: false)
    guard !text.isEmpty, groups.allSatisfy({ !$0.isEmpty && $0.allSatisfy { $0.isASCII && $0.isNumber } }) else {
      return nil
    }
    let note = groups.count > 1 ? " (and to other YAML readers a number to the base of 60)" : ""
    return "\(Suggestion.quote(text)) is no URL\(note); write the scheme too, such as tcp://127.0.0.1:\(groups[0])"
  }
}
