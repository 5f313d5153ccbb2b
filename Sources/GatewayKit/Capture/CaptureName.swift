// The names of a recording's files. Each file has a new name, so none is overwritten or continued: `{date}` is the time of
// its beginning, and a further file of the same name gets a number: "x.pcapng", "x~2.pcapng". Names of other forms are
// not ours, and are left alone.

import StreamBroker

struct CaptureName: Hashable, Sendable, CustomStringConvertible {
  /// Ends in a slash.
  let folder: String
  /// The part of the folder before `{route}`: the same for routes whose recordings have their name from `defaults`.
  let root: String
  /// What a name has before and after the date.
  private let before: String
  private let after: String
  private let hasDate: Bool

  static let date = "{date}"
  static let route = "{route}"

  /// `template` has been checked: see `problem`. A relative one begins in `stateFolder`.
  init(_ template: String, route: String, stateFolder: String) {
    let start = template.hasPrefix("/") ? "" : "\(stateFolder)/"
    let pieces = template.split(separator: Self.route, omittingEmptySubsequences: false)
    let path = start + pieces.joined(separator: route)
    let slash = path.lastIndex(of: "/")!
    folder = String(path[...slash])
    let same = start + pieces[0]
    root = String(same[...same.lastIndex(of: "/")!])
    let name = path[path.index(after: slash)...]
    if let date = name.firstRange(of: Self.date) {
      (before, after, hasDate) = (String(name[..<date.lowerBound]), String(name[date.upperBound...]), true)
    } else {
      let dot = name.dropFirst().lastIndex(of: ".") ?? name.endIndex
      (before, after, hasDate) = (String(name[..<dot]), String(name[dot...]), false)
    }
  }

  /// What is wrong with a template; nil if nothing is.
  static func problem(of template: String) -> (text: String, suggestion: String?)? {
    if template.hasPrefix("~/") { return ("'~' is not expanded here; write the whole path", nil) }
    let pieces = template.split(separator: "{", omittingEmptySubsequences: false).dropFirst()
    if pieces.contains(where: { !$0.contains("}") }) {
      return ("has '{' without '}'; expected {route} or {date}", nil)
    }
    let names = pieces.map { String($0.prefix { $0 != "}" }) }
    for name in names where !["route", "date"].contains(name) {
      let nearest = Suggestion.nearest(to: name, in: ["route", "date"])
      return (
        "the name of a recording has no {\(Suggestion.plain(name))}; expected {route} or {date}",
        nearest.map { "{\($0)}" }
      )
    }
    let last = template.split(separator: "/", omittingEmptySubsequences: false).last ?? ""
    if last.isEmpty || last == "." || last == ".." { return ("names a folder; name a file in it", nil) }
    let dates = template.split(separator: date, omittingEmptySubsequences: false).count - 1
    if dates > 1 { return ("has {date} twice; once is enough", nil) }
    if dates == 1, !last.contains(date) {
      return ("has {date} in the name of a folder; write it in the file's name", nil)
    }
    return nil
  }

  /// The same for two recordings whose files would have the same names.
  var description: String { folder + before + (hasDate ? Self.date : "") + after }

  /// A file of this recording: files of earlier times, then lower numbers, come first.
  struct Mark: Comparable {
    var date: String
    var number: Int

    static func < (one: Mark, other: Mark) -> Bool { (one.date, one.number) < (other.date, other.number) }
  }

  private static let mostNumber = 1_000_000_000

  /// For a file that begins now, when these names are taken.
  func next(at time: UInt64, after taken: [String]) -> Mark {
    let date = hasDate ? CaptureTimes.compact(time) : ""
    let last = taken.compactMap { mark(of: $0) }.filter { $0.date == date }.max()
    return Mark(date: date, number: last.map { $0.number + 1 } ?? 1)
  }

  func name(_ mark: Mark) -> String {
    before + mark.date + (mark.number == 1 ? "" : "~\(mark.number)") + after
  }

  /// Nil for the name of another file.
  func mark(of name: String) -> Mark? {
    guard name.utf8.count >= before.utf8.count + after.utf8.count, name.hasPrefix(before), name.hasSuffix(after) else {
      return nil
    }
    var rest = name.dropFirst(before.count).dropLast(after.count)
    var date = ""
    if hasDate {
      let compact = rest.prefix(16)
      guard CaptureTimes.isCompact(compact) else { return nil }
      date = String(compact)
      rest = rest.dropFirst(16)
    }
    if rest.isEmpty { return Mark(date: date, number: 1) }
    // Somebody else may have put a file with a larger number there.
    guard rest.first == "~", let number = Int(rest.dropFirst()), 2...Self.mostNumber ~= number, "~\(number)" == rest
    else { return nil }
    return Mark(date: date, number: number)
  }
}
