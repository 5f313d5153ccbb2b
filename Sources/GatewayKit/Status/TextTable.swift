// Columns of text under a header line, as wide as needed. On a narrow terminal, columns are cut by weight or left out
// until the rest fits. Used by StatusTable and the lists of devices.

struct TextTable {
  struct Cell: ExpressibleByStringLiteral {
    let text: String
    let colour: Paint.Colour?

    /// Characters that a terminal would obey are shown as question marks.
    init(_ text: String, _ colour: Paint.Colour? = nil) {
      let shown = text.unicodeScalars.map { JSONValue.misleads($0) ? "?" : $0 }
      self.text = String(String.UnicodeScalarView(shown))
      self.colour = colour
    }

    init(stringLiteral text: String) { self.init(text) }
  }

  private enum Row {
    case cells([Cell])
    /// A line across all columns; it does not widen them.
    case note(String)
  }

  private let paint: Paint
  private var rows: [Row]
  private var widths: [Int]
  private var right: Set<Int> = []

  init(_ headline: [String], _ paint: Paint) {
    self.paint = paint
    widths = headline.map(\.count)
    rows = [.cells(headline.map { Cell($0, .bold) })]
  }

  /// How a column may shrink when the table is too wide. A column without an entry keeps its width.
  struct Give {
    /// Its texts are cut in the middle, down to this many characters.
    var least: Int?
    /// Of two columns that may be cut, one of twice the weight stays twice as wide.
    var weight = 1
    /// The column may be left out; the lowest rank goes first.
    var rank: Int?
  }

  private var gives: [Int: Give] = [:]

  mutating func allow(_ give: Give, of column: Int) { gives[column] = give }

  mutating func alignRight(_ columns: ClosedRange<Int>) { right.formUnion(columns) }

  mutating func add(_ cells: [Cell]) {
    for (column, cell) in cells.enumerated() { widths[column] = max(widths[column], cell.text.count) }
    rows.append(.cells(cells))
  }

  mutating func note(_ text: String, _ colour: Paint.Colour = .dim) {
    rows.append(.note(paint(Cell(text).text, colour)))
  }

  /// At most `room` columns wide, as far as the table's columns allow; nil = as wide as needed.
  func lines(within room: Int? = nil) -> [String] {
    let layout = Layout(widths, gives, room ?? .max)
    return rows.map { row in
      switch row {
      case .note(let text): text
      case .cells(let cells): line(cells, layout)
      }
    }
  }

  private func line(_ cells: [Cell], _ layout: Layout) -> String {
    var line = ""
    var blanks = 0  // before the next text; none at the end of a line
    for (column, cell) in cells.enumerated() {
      guard let width = layout.widths[column] else { continue }
      let text = Self.cut(cell.text, to: width)
      let padding = width - text.count
      if right.contains(column) { blanks += padding }
      if !text.isEmpty {
        line += String(repeating: " ", count: blanks) + (cell.colour.map { paint(text, $0) } ?? text)
        blanks = 0
      }
      blanks += (right.contains(column) ? 0 : padding) + layout.gap
    }
    return line
  }

  /// Cuts the middle: beginning and end are worth more, such as the scheme and the port of a URL.
  static func cut(_ text: String, to width: Int) -> String {
    guard text.count > width else { return text }
    guard width > 3 else { return String(text.prefix(width)) }
    let tail = (width - 1) / 2
    return "\(text.prefix(width - 1 - tail))…\(text.suffix(tail))"
  }

  /// The width of each column; nil = left out.
  private struct Layout {
    var widths: [Int?]
    var gap = 2

    init(_ widths: [Int], _ gives: [Int: Give], _ room: Int) {
      self.widths = widths
      narrow(gives, to: room)
      if isTooWide(room) { gap = 1 }
      for column in gives.filter({ $0.value.rank != nil }).sorted(by: { $0.value.rank! < $1.value.rank! }).map(\.key) {
        guard isTooWide(room) else { break }
        self.widths[column] = nil
      }
      // Leaving out a column may have made more room than needed.
      guard gap == 1 || self.widths.contains(nil) else { return }
      for column in widths.indices where self.widths[column] != nil { self.widths[column] = widths[column] }
      narrow(gives, to: room)
    }

    private var total: Int {
      let shown = widths.compactMap(\.self)
      return shown.reduce(0, +) + gap * max(0, shown.count - 1)
    }

    private func isTooWide(_ room: Int) -> Bool { total > room }

    /// Narrows the column that is widest for its weight, one character at a time.
    private mutating func narrow(_ gives: [Int: Give], to room: Int) {
      var excess = total - room
      while excess > 0 {
        var widest: (column: Int, rank: Int)?
        for (column, give) in gives {
          guard let width = widths[column], let least = give.least, width > least else { continue }
          // In hundredths of a weight; of two equal columns the right one.
          let rank = width * 100 / give.weight + column
          if rank > widest?.rank ?? .min { widest = (column, rank) }
        }
        guard let widest, let width = widths[widest.column] else { return }
        widths[widest.column] = width - 1
        excess -= 1
      }
    }
  }
}

/// Colours for terminals (ECMA-48, SGR), or none.
struct Paint {
  enum Colour: Int { case bold = 1, dim = 2, red = 31, green = 32, yellow = 33 }

  let isOn: Bool

  func callAsFunction(_ text: String, _ colour: Colour) -> String {
    isOn && !text.isEmpty ? "\u{1b}[\(colour.rawValue)m\(text)\u{1b}[0m" : text
  }
}
