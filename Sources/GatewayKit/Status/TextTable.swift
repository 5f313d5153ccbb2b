// Columns of text under a headline, as wide as they must be. Used by StatusTable.

struct TextTable {
  struct Cell: ExpressibleByStringLiteral {
    let text: String
    let colour: Paint.Colour?

    /// What a terminal would obey is shown as a question mark.
    init(_ text: String, _ colour: Paint.Colour? = nil) {
      let shown = text.unicodeScalars.map { JSONValue.misleads($0) ? "?" : $0 }
      self.text = String(String.UnicodeScalarView(shown))
      self.colour = colour
    }

    init(stringLiteral text: String) { self.init(text) }
  }

  private enum Row {
    case cells([Cell])
    /// Across all columns, which it does not widen.
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

  mutating func alignRight(_ columns: ClosedRange<Int>) { right.formUnion(columns) }

  mutating func add(_ cells: [Cell]) {
    for (column, cell) in cells.enumerated() { widths[column] = max(widths[column], cell.text.count) }
    rows.append(.cells(cells))
  }

  mutating func note(_ text: String, _ colour: Paint.Colour = .dim) {
    rows.append(.note(paint(Cell(text).text, colour)))
  }

  var lines: [String] {
    rows.map { row in
      switch row {
      case .note(let text): text
      case .cells(let cells): line(cells)
      }
    }
  }

  private func line(_ cells: [Cell]) -> String {
    var line = ""
    var blanks = 0  // before the next text; none at the end of a line
    for (column, cell) in cells.enumerated() {
      let padding = widths[column] - cell.text.count
      if right.contains(column) { blanks += padding }
      if !cell.text.isEmpty {
        line += String(repeating: " ", count: blanks) + (cell.colour.map { paint(cell.text, $0) } ?? cell.text)
        blanks = 0
      }
      blanks += (right.contains(column) ? 0 : padding) + 2
    }
    return line
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
