// How columns shrink when a terminal has too little room for all.

import Testing

@testable import GatewayKit

@Suite("A table of text")
struct TextTableTests {
  /// A row of columns with these widths, of "aaa…", "bbb…", which may shrink or be omitted as `gives` allows.
  private func row(_ widths: [Int], _ gives: [Int: TextTable.Give], within room: Int?) -> String? {
    var table = TextTable(Array(repeating: "", count: widths.count), Paint(isOn: false))
    for (column, give) in gives { table.allow(give, of: column) }
    let letters = ["a", "b", "c"]
    table.add(widths.enumerated().map { column, width in .init(String(repeating: letters[column], count: width)) })
    return table.lines(within: room).last
  }

  private func text(_ letter: String, _ count: Int) -> String { String(repeating: letter, count: count) }

  /// The width of each column in the row.
  private func widths(_ row: String?) -> [Int]? { row?.split(separator: " ").map(\.count) }

  @Test("has its full width if the room is unknown or large enough")
  func wide() {
    for room in [nil, 42, 100] {
      #expect(row([20, 20], [0: .init(least: 4)], within: room) == text("a", 20) + "  " + text("b", 20))
    }
  }

  @Test("shortens the columns that allow it in the middle, by weight, and not below their minimum")
  func weights() {
    let gives: [Int: TextTable.Give] = [0: .init(least: 4, weight: 2), 1: .init(least: 4)]
    #expect(widths(row([40, 40], gives, within: 32)) == [20, 10])
    #expect(widths(row([40, 40], gives, within: 62)) == [40, 20])
    #expect(widths(row([40, 40], gives, within: 14)) == [8, 4])
    #expect(widths(row([40, 40], gives, within: 12)) == [6, 4])
    #expect(widths(row([10, 40, 10], [1: .init(least: 4)], within: 30)) == [10, 6, 10])
    #expect(row([10, 3], [0: .init(least: 4)], within: 10) == "aa…aa  bbb")
  }

  @Test("narrows the gaps between columns, and then omits the columns of the lowest rank first")
  func ranks() {
    let gives: [Int: TextTable.Give] = [1: .init(rank: 2), 2: .init(least: 5, rank: 1)]
    let (a, b, c) = (text("a", 10), text("b", 10), text("c", 10))
    #expect(row([10, 10, 10], gives, within: 34) == "\(a)  \(b)  \(c)")
    #expect(row([10, 10, 10], gives, within: 29) == "\(a)  \(b)  cc…cc")
    #expect(row([10, 10, 10], gives, within: 27) == "\(a) \(b) cc…cc")
    #expect(row([10, 10, 10], gives, within: 26) == "\(a) \(b)")
    #expect(row([10, 10, 10], gives, within: 21) == "\(a) \(b)")
    #expect(row([10, 10, 10], gives, within: 20) == a)
  }

  @Test("gives the room of omitted columns to those that were shortened")
  func again() {
    let gives: [Int: TextTable.Give] = [0: .init(least: 4), 1: .init(rank: 1)]
    #expect(row([20, 24], gives, within: 25) == text("a", 20))
    #expect(widths(row([30, 24], gives, within: 25)) == [25])
  }
}
