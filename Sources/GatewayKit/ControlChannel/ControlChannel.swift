// One client's requests and events beside its bytes, whatever its protocol: `baudway.v1`, RFC 2217, a pty. Keeps the
// waiting requests, each at its position among the bytes. Sessions/Upstream+ControlChannel.swift reads the requests,
// Sessions/LineControl.swift carries out those about the line.

import ByteStreams

/// Requests, events and replies in the client's protocol. A read of the client's stream ends at a request's position,
/// and returns no more bytes until the request is taken. So all bytes read so far precede the request.
protocol ControlProtocol: AnyObject {
  /// Events are texts for a program, apart from the bytes.
  var hasTexts: Bool { get }
  /// The client sees events, in whatever form; it needs no notice among the bytes.
  var showsEvents: Bool { get }
  /// The oldest request that was not taken; nil if there is none, or while the client does not read our answers.
  func takeRequest() -> ControlChannelRequest.Parsed?
  /// Queues the event between the other output. False if it was dropped because too much is queued.
  func send(_ event: ControlChannelEvent) -> Bool
  /// Queues the reply, like an event.
  func send(_ reply: ControlChannelReply) -> Bool
}

final class ControlChannel {
  struct Mark {
    let id: ControlChannelRequest.ID?
    let request: ControlChannelRequest
    /// How many of the client's bytes go to the endpoint before the request is carried out.
    fileprivate(set) var position: UInt64
  }

  /// With this many pending requests, no further one is read.
  static let mostMarks = 64

  private let client: any ControlProtocol
  private(set) var marks: [Mark] = []
  /// A request is being carried out; later input of the client waits.
  private(set) var isBusy = false
  /// That request, or the last one.
  private var current: Mark?
  /// Changes when the endpoint is lost, to recognise late results of requests that began on it.
  private(set) var turn = 0
  /// Events and replies that were dropped and not yet reported.
  private var lost: UInt64 = 0
  /// Requests outside the sequence that are not done yet: a port can be slow.
  private var atOnce = 0

  init(_ client: any ControlProtocol) { self.client = client }

  var hasTexts: Bool { client.hasTexts }
  var showsEvents: Bool { client.showsEvents }

  /// The client's next request; nil also while too many requests are pending.
  func takeRequest() -> ControlChannelRequest.Parsed? {
    marks.count + atOnce < Self.mostMarks ? client.takeRequest() : nil
  }

  func report(_ event: ControlChannelEvent) { send { client.send(event) } }
  func reply(_ reply: ControlChannelReply) { send { client.send(reply) } }

  /// Counts what there is no room for, and reports the count before the next one that has room.
  private func send(_ isSent: () -> Bool) {
    if lost > 0, client.send(.lost(lost)) { lost = 0 }
    if lost > 0 || !isSent() { lost += 1 }
  }

  /// Sends the last event, unless the client itself is gone. It contains the endpoint's reason; the cause of a failure
  /// of ours is for the log only.
  func report(_ ending: Ending) {
    guard ending.word != .clientLeft, ending.word.fault != .client || ending.word == .denied else { return }
    report(.end(ending.word, reason: ending.word.fault == .endpoint ? ending.cause.map { "\($0)" } : nil))
  }

  func add(_ mark: Mark) { marks.append(mark) }

  /// All bytes read so far have gone, `moved` of them to the endpoint; the others were dropped. The requests come
  /// before all later bytes.
  func bytesAreDropped(after moved: UInt64) {
    for index in marks.indices { marks[index].position = min(marks[index].position, moved) }
  }

  /// How many more of the client's bytes may go to the endpoint after `moved`: up to the next request.
  func room(behind moved: UInt64) -> Int {
    if isBusy { return 0 }
    return marks.first.map { Int(clamping: $0.position > moved ? $0.position - moved : 0) } ?? .max
  }

  /// No byte comes before the next request.
  func isNextRequest(behind moved: UInt64) -> Bool { marks.first.map { $0.position <= moved } ?? false }

  /// The next request to carry out now; nil while bytes before it have not gone to the endpoint.
  func begin(moved: UInt64, isEmpty: Bool) -> (mark: Mark, turn: Int)? {
    guard !isBusy, let mark = marks.first, isEmpty || moved >= mark.position else { return nil }
    marks.removeFirst()
    isBusy = true
    current = mark
    return (mark, turn)
  }

  /// A request outside the sequence begins. Its answer may be late.
  func beginAtOnce() { atOnce += 1 }
  func endAtOnce() { atOnce -= 1 }

  func end(_ turn: Int) { if turn == self.turn { isBusy = false } }

  /// The request in progress is done, unless it was abandoned.
  func end(_ turn: Int, _ result: ControlChannelReply) {
    guard turn == self.turn else { return }
    reply(result)
    isBusy = false
  }

  /// The endpoint was lost, and the request in progress with it. Its answer comes before those of the requests that
  /// follow.
  func abandon(_ answer: (Mark) -> ControlChannelReply) {
    turn += 1
    guard isBusy, let current else { return }
    isBusy = false
    reply(answer(current))
  }
}
