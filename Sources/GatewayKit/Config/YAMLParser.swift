// Bytes → tree, through libyaml's events. Depth, aliases and size are bounded. Parsing ends at the first fault, because
// nothing after it is reliable. Only ConfigFile uses it.

import CYAML
import StreamBroker

struct YAMLParser {
  /// The deepest nesting; the format has six levels.
  static let depthLimit = 32
  /// The most nodes that all aliases together may stand for; a long text counts as several. Enough for any file written
  /// by hand, far below a bomb.
  static let aliasLimit = 100_000
  /// The longest text, in bytes. Nothing here needs more, and comparing texts can take quadratic time.
  static let textLimit = 4096
  /// The most lines that begin with %. libyaml compares each with all before it.
  static let directiveLimit = 16

  private let bytes: [UInt8]
  /// For locations: which of the configuration's files this is.
  private let file: Int
  private let end: ConfigProblem.SourceLocation
  private let parser: UnsafeMutablePointer<yaml_parser_t>
  private var anchors: [String: YAMLNode] = [:]
  private var aliased = 0

  /// The one document of `content`; nil when there is none. `file`: which of the configuration's files it is.
  static func parse(_ content: [UInt8], file: Int = 0) throws(YAMLFault) -> YAMLNode? {
    try documents(of: content, most: 1, file: file).first
  }

  /// All documents of `content`; `most` of them are allowed.
  static func documents(of content: [UInt8], most: Int, file: Int = 0) throws(YAMLFault) -> [YAMLNode] {
    // libyaml with a given encoding reads a byte order mark as a space before the first key.
    let bytes = content.starts(with: "\u{FEFF}".utf8) ? Array(content.dropFirst(3)) : content
    var end = try end(of: bytes)
    end.file = file
    let pointer = UnsafeMutablePointer<yaml_parser_t>.allocate(capacity: 1)
    defer { pointer.deallocate() }
    guard yaml_parser_initialize(pointer) == 1 else { throw YAMLFault("out of memory", at: .start) }
    defer { yaml_parser_delete(pointer) }
    let result: Result<[YAMLNode], YAMLFault> = bytes.withUnsafeBufferPointer { buffer in
      // An empty buffer's pointer may be nil, which libyaml asserts against.
      guard let base = buffer.baseAddress else { return .success([]) }
      yaml_parser_set_input_string(pointer, base, buffer.count)
      yaml_parser_set_encoding(pointer, YAML_UTF8_ENCODING)
      var parser = YAMLParser(bytes: bytes, file: file, end: end, parser: pointer)
      do throws(YAMLFault) { return .success(try parser.documents(most: most)) } catch { return .failure(error) }
    }
    return try result.get()
  }

  private init(
    bytes: [UInt8], file: Int, end: ConfigProblem.SourceLocation, parser: UnsafeMutablePointer<yaml_parser_t>
  ) {
    self.bytes = bytes
    self.file = file
    self.end = end
    self.parser = parser
  }

  // MARK: events

  private mutating func documents(most: Int) throws(YAMLFault) -> [YAMLNode] {
    var roots: [YAMLNode] = []
    while true {
      var event = try next()
      defer { yaml_event_delete(&event) }
      switch event.type {
      case YAML_STREAM_END_EVENT: return roots
      case YAML_DOCUMENT_START_EVENT where roots.count == most:
        throw YAMLFault(
          most == 1 ? "a second document; a config file holds one" : "more than \(most) documents",
          at: location(event.start_mark))
      case YAML_STREAM_START_EVENT, YAML_DOCUMENT_START_EVENT, YAML_DOCUMENT_END_EVENT: continue
      default: roots.append(try node(event, depth: 0))
      }
    }
  }

  private mutating func next() throws(YAMLFault) -> yaml_event_t {
    var event = yaml_event_t()
    guard yaml_parser_parse(parser, &event) == 1 else { throw fault() }
    return event
  }

  /// The node that begins with `event`. The caller deletes `event`.
  private mutating func node(_ event: yaml_event_t, depth: Int) throws(YAMLFault) -> YAMLNode {
    let start = location(event.start_mark)
    if depth > Self.depthLimit { throw YAMLFault("nested deeper than \(Self.depthLimit) levels", at: start) }
    switch event.type {
    case YAML_ALIAS_EVENT: return try alias(String(cString: event.data.alias.anchor), at: start)
    case YAML_SCALAR_EVENT:
      try checkTag(event.data.scalar.tag, at: start)
      let weight = 1 + event.data.scalar.length / 64
      let node = YAMLNode(content: .scalar(try scalar(event)), location: start, weight: weight)
      return remember(node, event.data.scalar.anchor)
    case YAML_SEQUENCE_START_EVENT:
      try checkTag(event.data.sequence_start.tag, at: start)
      var items: [YAMLNode] = []
      while let item = try child(depth, until: YAML_SEQUENCE_END_EVENT) { items.append(item) }
      let weight = items.reduce(1) { $0 + $1.weight }
      return remember(
        YAMLNode(content: .sequence(items), location: start, weight: weight), event.data.sequence_start.anchor)
    default:
      try checkTag(event.data.mapping_start.tag, at: start)
      var entries: [YAMLNode.Entry] = []
      while let key = try child(depth, until: YAML_MAPPING_END_EVENT) {
        guard let value = try child(depth, until: YAML_MAPPING_END_EVENT) else { break }
        entries.append(YAMLNode.Entry(key: key, value: value))
      }
      let weight = entries.reduce(1) { $0 + $1.key.weight + $1.value.weight }
      return remember(
        YAMLNode(content: .mapping(entries), location: start, weight: weight), event.data.mapping_start.anchor)
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
      throw YAMLFault("a text of more than \(Units.text(bytes: Self.textLimit))", at: location(event.start_mark))
    }
    let text = String(decoding: UnsafeBufferPointer(start: value, count: length), as: UTF8.self)
    if text.unicodeScalars.contains("\0") { throw YAMLFault("NUL in a text", at: location(event.start_mark)) }
    let isPlain = event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE
    let (start, end) = (event.start_mark, event.end_mark)
    // The file has as many characters as the text (and two quotes), so there is no escape, fold or anchor.
    let isVerbatim =
      start.line == end.line && end.column - start.column == text.unicodeScalars.count + (isPlain ? 0 : 2)
    return YAMLNode.Scalar(
      text: text, isPlain: isPlain, firstColumn: isVerbatim ? Int(start.column) + (isPlain ? 1 : 2) : nil)
  }

  // MARK: anchors, aliases, tags

  private mutating func remember(_ node: YAMLNode, _ anchor: UnsafeMutablePointer<yaml_char_t>?) -> YAMLNode {
    guard let anchor else { return node }
    var node = node
    node.anchor = String(cString: anchor)
    anchors[String(cString: anchor)] = node
    return node
  }

  /// The tree shares the node of an alias, so a bomb costs no memory. But walking the tree would not end.
  private mutating func alias(_ name: String, at location: ConfigProblem.SourceLocation) throws(YAMLFault) -> YAMLNode {
    guard let node = anchors[name] else {
      throw YAMLFault("alias '*\(name)' without its anchor '&\(name)' before it", at: location)
    }
    let (sum, overflow) = aliased.addingReportingOverflow(node.weight)
    guard !overflow, sum <= Self.aliasLimit else {
      throw YAMLFault("aliases stand for more than \(Self.aliasLimit) values", at: location)
    }
    aliased = sum
    return node
  }

  private func checkTag(_ tag: UnsafeMutablePointer<yaml_char_t>?, at location: ConfigProblem.SourceLocation)
    throws(YAMLFault)
  {
    guard let tag else { return }
    let name = String(cString: tag)
    let core = ["str", "int", "float", "bool", "null", "seq", "map"].map { "tag:yaml.org,2002:\($0)" }
    guard name == "!" || core.contains(name) else {
      throw YAMLFault("unknown tag \(Suggestion.quote(name))", at: location)
    }
  }

  // MARK: faults

  /// The place of a mark. libyaml adds a line end if the last line has none, so its marks may be after the end of the
  /// file.
  private func location(_ mark: yaml_mark_t) -> ConfigProblem.SourceLocation {
    min(ConfigProblem.SourceLocation(line: Int(mark.line) + 1, column: Int(mark.column) + 1, file: file), end)
  }

  /// libyaml's message, or a better one for the most common faults.
  private func fault() -> YAMLFault {
    let problem = parser.pointee.problem.map { String(cString: $0) } ?? "not YAML"
    let context = parser.pointee.context.map { String(cString: $0) } ?? ""
    let (here, there) = (location(parser.pointee.problem_mark), location(parser.pointee.context_mark))
    if let advised = YAMLAdvice(bytes, at: here).fault(problem, context) { return advised }
    if context.contains("quoted scalar") {
      return YAMLFault("a quote is opened here and not closed (\(problem), line \(here.line))", at: there)
    }
    if problem.contains("cannot start any token") {
      return YAMLFault(
        character(at: here) == "\t"
          ? "a tab where YAML requires spaces" : "\(problem); a text that begins with @ ` or % needs quotes", at: here)
    }
    if context.contains("scanning an alias") || context.contains("scanning an anchor") {
      return YAMLFault("\(problem); a text that begins with * or & needs quotes", at: there)
    }
    if problem.contains("could not find expected ':'") || problem.contains("mapping values are not allowed") {
      return YAMLFault(
        "\(problem); the key here or in the line before needs ': ' (with a space), and a text that contains ': ' needs quotes",
        at: here)
    }
    let since = context.isEmpty ? "" : " \(context) that begins in line \(there.line)"
    let advice = context.contains("block") ? "; is the line indented like its neighbours?" : ""
    return YAMLFault(problem + since + advice, at: here)
  }

  private func character(at location: ConfigProblem.SourceLocation) -> Unicode.Scalar? {
    var here = ConfigProblem.SourceLocation.start
    var last: Unicode.Scalar?
    for scalar in String(decoding: bytes, as: UTF8.self).unicodeScalars {
      if here == location { return scalar }
      here.pass(scalar, after: last)
      last = scalar
    }
    return nil
  }

  /// The end of the file. Throws at the first byte that is not UTF-8, or control character that YAML does not allow.
  /// libyaml refuses those too, but reports no line.
  private static func end(of bytes: [UInt8]) throws(YAMLFault) -> ConfigProblem.SourceLocation {
    var location = ConfigProblem.SourceLocation.start
    if isUTF16(bytes) { throw YAMLFault("the file is UTF-16; save it as UTF-8", at: location) }
    var last: Unicode.Scalar?
    var directives = 0
    var decoder = UTF8()
    var iterator = bytes.makeIterator()
    while true {
      switch decoder.decode(&iterator) {
      case .emptyInput: return location
      case .error: throw YAMLFault("bytes that are not UTF-8", at: location)
      case .scalarValue(let scalar):
        guard YAMLText.isPrintable(scalar) else {
          throw YAMLFault("control character \(scalar.escaped(asASCII: true))", at: location)
        }
        if scalar == "%", location.column == 1 { directives += 1 }
        if directives > directiveLimit { throw YAMLFault("more than \(directiveLimit) directives", at: location) }
        location.pass(scalar, after: last)
        last = scalar
      }
    }
  }

  /// Whether the file has the encoding that editors of Windows call Unicode: it begins with a byte order mark, or every
  /// other byte is 0.
  private static func isUTF16(_ bytes: [UInt8]) -> Bool {
    if bytes.starts(with: [0xFF, 0xFE]) || bytes.starts(with: [0xFE, 0xFF]) { return true }
    let isZero = bytes.prefix(4).map { $0 == 0 }
    return isZero == [true, false, true, false] || isZero == [false, true, false, true]
  }
}
