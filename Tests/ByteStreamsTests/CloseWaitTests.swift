// How long an orderly close waits for a stream, one case per row.

import Testing

@testable import ByteStreams

@Suite("The wait for a stream that closes in order")
struct CloseWaitTests {
  struct Look {
    var undelivered: UndeliveredOutput
    var hasReceived = false
    var hasPendingOutput = false
    /// The next pause in milliseconds; nil when the wait is over.
    var pause: Int?
  }

  struct Row: CustomTestStringConvertible {
    let testDescription: String
    let aim: CloseWait.Aim
    let start: UndeliveredOutput
    let looks: [Look]

    init(_ name: String, _ aim: CloseWait.Aim, _ start: UndeliveredOutput, _ looks: [Look]) {
      (testDescription, self.aim, self.start, self.looks) = (name, aim, start, looks)
    }
  }

  static let rows: [Row] = [
    Row("silence and nothing on its way", .otherSidesEnd, .none, [Look(undelivered: .none)]),
    Row(
      "it sends, and then no more", .otherSidesEnd, .none,
      [Look(undelivered: .none, hasReceived: true, pause: 2000), Look(undelivered: .none)]),
    Row(
      "our tail is on its way, and then out", .otherSidesEnd, .onItsWay(9),
      [
        Look(undelivered: .onItsWay(9), pause: 2000), Look(undelivered: .onItsWay(2), pause: 2000),
        Look(undelivered: .none),
      ]),
    Row(
      "a unit that is held counts as on its way", .pendingOutput, .onItsWay(9),
      [Look(undelivered: .onItsWay(9), hasPendingOutput: true, pause: 2000), Look(undelivered: .none)]),
    Row(
      "it sends without end, and our tail makes no progress", .otherSidesEnd, .onItsWay(9),
      Array(repeating: Look(undelivered: .onItsWay(9), hasReceived: true, pause: 2000), count: 14)
        + [Look(undelivered: .onItsWay(9), hasReceived: true)]),
    Row(
      "progress gives another half minute", .otherSidesEnd, .onItsWay(9),
      Array(repeating: Look(undelivered: .onItsWay(9), pause: 2000), count: 14)
        + Array(repeating: Look(undelivered: .onItsWay(8), pause: 2000), count: 15) + [Look(undelivered: .onItsWay(8))]),
    Row(
      "acknowledged at last, with pauses that grow", .acknowledgement, .onItsWay(9),
      [40, 80, 160, 320, 320].map { Look(undelivered: .onItsWay(9), pause: $0) } + [Look(undelivered: .none)]),
    Row(
      "acknowledged, but a unit is held still", .acknowledgement, .onItsWay(9),
      [Look(undelivered: .none, hasPendingOutput: true, pause: 40), Look(undelivered: .none)]),
    Row(
      "read up, which has to be seen twice", .reads, .lostAtClose(9),
      [
        Look(undelivered: .lostAtClose(4), pause: 40), Look(undelivered: .lostAtClose(0), pause: 20),
        Look(undelivered: .lostAtClose(0)),
      ]),
    Row(
      "a first 0 is not believed", .reads, .lostAtClose(0),
      [Look(undelivered: .lostAtClose(9), pause: 40), Look(undelivered: .lostAtClose(0), pause: 20)]),
    Row(
      "its reader is gone", .reads, .lostAtClose(9),
      [Look(undelivered: .none, pause: 20), Look(undelivered: .none)]),
    Row(
      "nobody can know what is unread", .reads, .lostAtClose(nil),
      [40, 80, 160, 320].map { Look(undelivered: .lostAtClose(nil), pause: $0) }
        + [Look(undelivered: .lostAtClose(nil), pause: 20), Look(undelivered: .lostAtClose(nil))]),
  ]

  @Test("depends on how much of its output was delivered", arguments: rows)
  func wait(row: Row) {
    var wait = CloseWait(for: row.aim, row.start)
    #expect(wait.pause == (row.aim == .otherSidesEnd || row.aim == .pendingOutput ? .seconds(2) : .milliseconds(20)))
    for (number, look) in row.looks.enumerated() {
      if look.hasReceived { wait.hasReceived = true }
      let pause = wait.look(look.undelivered, hasPendingOutput: look.hasPendingOutput)
      #expect(pause == look.pause.map { .milliseconds($0) }, "look \(number)")
    }
  }
}
