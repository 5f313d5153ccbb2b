// One client's control texts beside his bytes (`baudway.v1`): what he has asked for and what keeps its place among his bytes.
// What is done about it stands in Sessions/Hub+Desk.swift.

import ByteStreams

/// A client's stream that carries texts beside the bytes. A read ends where a text stands among the bytes, and gives nothing more
/// before it is taken: so whatever was read stands before it.
protocol DeskChannel: AnyObject {
  /// Whether its client has asked for texts.
  var carriesTexts: Bool { get }
  /// The oldest text that was not taken.
  func takeText() -> [UInt8]?
  /// Sends `text` between what goes out otherwise. False when so much waits already that it was dropped.
  func send(event text: [UInt8]) -> Bool
}

final class Desk {
  struct Mark {
    let id: DeskRequest.ID?
    let request: DeskRequest
    /// How many of his bytes went to the endpoint before it.
    let place: UInt64
  }

  /// Then reading waits.
  static let mostMarks = 64

  private let channel: any DeskChannel
  private(set) var marks: [Mark] = []
  /// One is carried out; what he sent behind it waits.
  private(set) var isBusy = false
  /// Tells what was begun on an endpoint that has gone since.
  private(set) var turn = 0
  private var lost: UInt64 = 0
  /// What is done at once and is not done yet: a port may take its time.
  var atOnce = 0
  /// He wants to hear from the line, and how many errors there were since he does.
  var watches = false
  var errors = LineCounts()

  init(_ channel: any DeskChannel) { self.channel = channel }

  /// Nil while he has asked for so much that he has to wait, or does not read the answers.
  func takeText() -> [UInt8]? { marks.count + atOnce < Self.mostMarks ? channel.takeText() : nil }

  func tell(_ event: DeskEvent) { send(event.json) }
  func reply(_ reply: DeskReply) { send(reply.json) }

  /// What finds no room is counted, and told before the next that does.
  private func send(_ text: JSONValue) {
    if lost > 0, channel.send(event: Array(DeskEvent.lost(lost).json.description.utf8)) { lost = 0 }
    if lost > 0 || !channel.send(event: Array(text.description.utf8)) { lost += 1 }
  }

  /// The last, to one who is there to hear it. Why an endpoint failed he may know; what broke on our side is for the log.
  func tell(_ ending: Ending) {
    guard ending.word != .clientLeft, ending.word.fault != .client || ending.word == .denied else { return }
    tell(.end(ending.word, reason: ending.word.fault == .endpoint ? ending.cause.map { "\($0)" } : nil))
  }

  func add(_ mark: Mark) { marks.append(mark) }

  /// How many more of his bytes may go out when `moved` have gone.
  func room(behind moved: UInt64) -> Int {
    if isBusy { return 0 }
    return marks.first.map { Int(clamping: $0.place > moved ? $0.place - moved : 0) } ?? .max
  }

  /// The next that is to be carried out now, when nothing of his that stands before it is left.
  func begin(moved: UInt64, isEmpty: Bool) -> (mark: Mark, turn: Int)? {
    guard !isBusy, let mark = marks.first, isEmpty || moved >= mark.place else { return nil }
    marks.removeFirst()
    isBusy = true
    return (mark, turn)
  }

  func end(_ turn: Int) { if turn == self.turn { isBusy = false } }

  /// The endpoint that something is carried out on has gone.
  func abandon() {
    turn += 1
    isBusy = false
  }
}
