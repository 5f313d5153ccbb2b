// Bytes → tree, through libyaml's events. Depth, aliases and size are bounded; the first fault ends the reading, because
// after it nothing can be trusted. Used by ConfigFile alone.

import CYAML
import StreamBroker

struct YAMLParser {
  /// Deeper is no config: the format has six levels.
  static let depthLimit = 32
  /// Nodes that aliases may stand for, all together, where a long text counts as several: enough for any file made by hand,
  /// far below a bomb.
  static let aliasLimit = 100_000
  /// Bytes of one text. Nothing here needs more, and comparing texts can take time by the square of their length.
  static let textLimit = 4096
  /// Lines that begin with %. libyaml compares each with all before it.
  static let directiveLimit = 16

  private let bytes: [UInt8]
  private let end: ConfigProblem.Place
  private let parser: UnsafeMutablePointer<yaml_parser_t>
  private var anchors: [String: YAMLNode] = [:]
  private var aliased = 0

  /// The one document of `file`; nil when there is none.
  static func parse(_ file: [UInt8]) throws(YAMLFault) -> YAMLNode? {
    // libyaml would take a byte order mark for a blank before the first key, where it is told the encoding.
    let bytes = file.starts(with: "\u{FEFF}".utf8) ? Array(file.dropFirst(3)) : file
    let end = try end(of: bytes)
    let pointer = UnsafeMutablePointer<yaml_parser_t>.allocate(capacity: 1)
    defer { pointer.deallocate() }
    guard yaml_parser_initialize(pointer) == 1 else { throw YAMLFault("out of memory", at: .start) }
    defer { yaml_parser_delete(pointer) }
    let result: Result<YAMLNode?, YAMLFault> = bytes.withUnsafeBufferPointer { buffer in
      // Without bytes the pointer may be nil, which libyaml asserts against.
      guard let base = buffer.baseAddress else { return .success(nil) }
      yaml_parser_set_input_string(pointer, base, buffer.count)
      yaml_parser_set_encoding(pointer, YAML_UTF8_ENCODING)
      var parser = YAMLParser(bytes: bytes, end: end, parser: pointer)
      do throws(YAMLFault) { return .success(try parser.document()) } catch { return .failure(error) }
    }
    return try result.get()
  }

  private init(bytes: [UInt8], end: ConfigProblem.Place, parser: UnsafeMutablePointer<yaml_parser_t>) {
    self.bytes = bytes
    self.end = end
    self.parser = parser
  }

  // MARK: events

  private mutating func document() throws(YAMLFault) -> YAMLNode? {
    var root: YAMLNode?
    while true {
      var event = try next()
      defer { yaml_event_delete(&event) }
      switch event.type {
      case YAML_STREAM_END_EVENT: return root
      case YAML_DOCUMENT_START_EVENT where root != nil:
        throw YAMLFault("a second document; a config file holds one", at: place(event.start_mark))
      case YAML_STREAM_START_EVENT, YAML_DOCUMENT_START_EVENT, YAML_DOCUMENT_END_EVENT: continue
      default: root = try node(event, depth: 0)
      }
    }
  }

  private mutating func next() throws(YAMLFault) -> yaml_event_t {
    var event = yaml_event_t()
    guard yaml_parser_parse(parser, &event) == 1 else { throw fault() }
    return event
  }

  /// The node that begins with `event`, which stays the caller's.
  private mutating func node(_ event: yaml_event_t, depth: Int) throws(YAMLFault) -> YAMLNode {
    let start = place(event.start_mark)
    if depth > Self.depthLimit { throw YAMLFault("nested deeper than \(Self.depthLimit) levels", at: start) }
    switch event.type {
    case YAML_ALIAS_EVENT: return try alias(String(cString: event.data.alias.anchor), at: start)
    case YAML_SCALAR_EVENT:
      try checkTag(event.data.scalar.tag, at: start)
      let weight = 1 + event.data.scalar.length / 64
      let node = YAMLNode(content: .scalar(try scalar(event)), place: start, weight: weight)
      return remember(node, event.data.scalar.anchor)
    case YAML_SEQUENCE_START_EVENT:
      try checkTag(event.data.sequence_start.tag, at: start)
      var items: [YAMLNode] = []
      while let item = try child(depth, until: YAML_SEQUENCE_END_EVENT) { items.append(item) }
      let weight = items.reduce(1) { $0 + $1.weight }
      return remember(
        YAMLNode(content: .sequence(items), place: start, weight: weight), event.data.sequence_start.anchor)
    default:
      try checkTag(event.data.mapping_start.tag, at: start)
      var entries: [YAMLNode.Entry] = []
      while let key = try child(depth, until: YAML_MAPPING_END_EVENT) {
        guard let value = try child(depth, until: YAML_MAPPING_END_EVENT) else { break }
        entries.append(YAMLNode.Entry(key: key, value: value))
      }
      let weight = entries.reduce(1) { $0 + $1.key.weight + $1.value.weight }
      return remember(
        YAMLNode(content: .mapping(entries), place: start, weight: weight), event.data.mapping_start.anchor)
    }
  }

  private mutating func child(_ depth: Int, until end: yaml_event_type_t) throws(YAMLFault) -> YAMLNode? {
    var event = try next()
    defer { yaml_event_delete(&event) }
    return event.type == end ? nil : try node(event, depth: depth + 1)
  }

  private func scalar(_ event: yaml_event_t) throws(YAMLFault) -> YAMLNode.Scalar {
    let (value, length) = (event.data.scalar.value, event.data.scalar.length)
    if length > Self.textLimit {
      throw YAMLFault("a text of more than \(Units.text(bytes: Self.textLimit))", at: place(event.start_mark))
    }
    let text = String(decoding: UnsafeBufferPointer(start: value, count: length), as: UTF8.self)
    if text.unicodeScalars.contains("\0") { throw YAMLFault("NUL in a text", at: place(event.start_mark)) }
    let isPlain = event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE
    let (start, end) = (event.start_mark, event.end_mark)
    // As many characters in the file as in the text (and two quotes): no escape, no fold, no anchor before it.
    let isVerbatim =
      start.line == end.line && end.column - start.column == text.unicodeScalars.count + (isPlain ? 0 : 2)
    return YAMLNode.Scalar(
      text: text, isPlain: isPlain, firstColumn: isVerbatim ? Int(start.column) + (isPlain ? 1 : 2) : nil)
  }

  // MARK: anchors, aliases, tags

  private mutating func remember(_ node: YAMLNode, _ anchor: UnsafeMutablePointer<yaml_char_t>?) -> YAMLNode {
    if let anchor { anchors[String(cString: anchor)] = node }
    return node
  }

  /// The tree shares what an alias stands for, so a bomb costs no memory; but whoever walks the tree would not return.
  private mutating func alias(_ name: String, at place: ConfigProblem.Place) throws(YAMLFault) -> YAMLNode {
    guard let node = anchors[name] else {
      throw YAMLFault("alias '*\(name)' without its anchor '&\(name)' before it", at: place)
    }
    let (sum, overflow) = aliased.addingReportingOverflow(node.weight)
    guard !overflow, sum <= Self.aliasLimit else {
      throw YAMLFault("aliases stand for more than \(Self.aliasLimit) values", at: place)
    }
    aliased = sum
    return node
  }

  private func checkTag(_ tag: UnsafeMutablePointer<yaml_char_t>?, at place: ConfigProblem.Place) throws(YAMLFault) {
    guard let tag else { return }
    let name = String(cString: tag)
    let core = ["str", "int", "float", "bool", "null", "seq", "map"].map { "tag:yaml.org,2002:\($0)" }
    guard name == "!" || core.contains(name) else {
      throw YAMLFault("unknown tag \(Suggestion.quote(name))", at: place)
    }
  }

  // MARK: faults

  /// libyaml adds a line end where the last one lacks it, and has places behind that.
  private func place(_ mark: yaml_mark_t) -> ConfigProblem.Place {
    min(ConfigProblem.Place(line: Int(mark.line) + 1, column: Int(mark.column) + 1), end)
  }

  /// libyaml's words, and better ones for the faults people meet most.
  private func fault() -> YAMLFault {
    let problem = parser.pointee.problem.map { String(cString: $0) } ?? "not YAML"
    let context = parser.pointee.context.map { String(cString: $0) } ?? ""
    let (here, there) = (place(parser.pointee.problem_mark), place(parser.pointee.context_mark))
    if let advised = YAMLAdvice(bytes, at: here).fault(problem, context) { return advised }
    if context.contains("quoted scalar") {
      return YAMLFault("a quote is opened here and not closed (\(problem), line \(here.line))", at: there)
    }
    if problem.contains("cannot start any token") {
      return YAMLFault(
        character(at: here) == "\t"
          ? "a tab where YAML wants blanks" : "\(problem); a text that begins with @ ` or % stands in quotes", at: here)
    }
    if context.contains("scanning an alias") || context.contains("scanning an anchor") {
      return YAMLFault("\(problem); a text that begins with * or & stands in quotes", at: there)
    }
    if problem.contains("could not find expected ':'") || problem.contains("mapping values are not allowed") {
      return YAMLFault(
        "\(problem); the key here or in the line before needs ': ' (with a blank), and a text that holds ': ' stands in quotes",
        at: here)
    }
    let since = context.isEmpty ? "" : " \(context) that begins in line \(there.line)"
    let advice = context.contains("block") ? "; is the line indented like its neighbours?" : ""
    return YAMLFault(problem + since + advice, at: here)
  }

  private func character(at place: ConfigProblem.Place) -> Unicode.Scalar? {
    var here = ConfigProblem.Place.start
    var last: Unicode.Scalar?
    for scalar in String(decoding: bytes, as: UTF8.self).unicodeScalars {
      if here == place { return scalar }
      here.pass(scalar, after: last)
      last = scalar
    }
    return nil
  }

  /// Where the file ends. Throws at the first byte that is not UTF-8, or a control character YAML has no place for: libyaml
  /// refuses those too, but without a line.
  private static func end(of bytes: [UInt8]) throws(YAMLFault) -> ConfigProblem.Place {
    var place = ConfigProblem.Place.start
    var last: Unicode.Scalar?
    var directives = 0
    var decoder = UTF8()
    var iterator = bytes.makeIterator()
    while true {
      switch decoder.decode(&iterator) {
      case .emptyInput: return place
      case .error: throw YAMLFault("bytes that are not UTF-8", at: place)
      case .scalarValue(let scalar):
        guard YAMLText.isPrintable(scalar) else {
          throw YAMLFault("control character \(scalar.escaped(asASCII: true))", at: place)
        }
        if scalar == "%", place.column == 1 { directives += 1 }
        if directives > directiveLimit { throw YAMLFault("more than \(directiveLimit) directives", at: place) }
        place.pass(scalar, after: last)
        last = scalar
      }
    }
  }
}
