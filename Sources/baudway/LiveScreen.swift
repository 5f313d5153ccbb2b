// A terminal's alternate screen, drawn as a whole in one write: no flicker, and nothing is left afterwards (ECMA-48,
// xterm's private modes 1049, 25 and 2026; a terminal that lacks one ignores it).

import Glibc

// Errors are ignored here: a signal reports a terminal that is gone.
struct LiveScreen {
  func enter() { try? put("\u{1b}[?1049h\u{1b}[?25l".utf8) }
  func leave() { try? put("\u{1b}[?25h\u{1b}[?1049l".utf8) }

  var size: (columns: Int, rows: Int) {
    var size = winsize()
    let isKnown = ioctl(STDOUT_FILENO, UInt(TIOCGWINSZ), &size) == 0 && size.ws_col > 0 && size.ws_row > 1
    return isKnown ? (Int(size.ws_col), Int(size.ws_row)) : (80, 24)
  }

  /// Draws `lines` from the top, cut to the size of the terminal.
  func draw(_ lines: [String]) {
    let (columns, rows) = size
    var shown = lines.prefix(rows).map { LiveScreen.cut($0, to: columns) }
    if lines.count > rows { shown[rows - 1] = "… \(lines.count - rows + 1) more lines" }
    let text = shown.map { $0 + "\u{1b}[K" }.joined(separator: "\r\n")
    try? put("\u{1b}[?2026h\u{1b}[H\(text)\u{1b}[J\u{1b}[?2026l".utf8)
  }

  /// The first `columns` characters of a line. Its colour sequences take no room and are all kept.
  static func cut(_ line: String, to columns: Int) -> String {
    var cut = ""
    var left = columns
    var isInEscape = false
    for scalar in line.unicodeScalars {
      if isInEscape {
        isInEscape = scalar != "m"
      } else if scalar == "\u{1b}" {
        isInEscape = true
      } else if left > 0 {
        left -= 1
      } else {
        continue
      }
      cut.unicodeScalars.append(scalar)
    }
    return cut
  }
}
