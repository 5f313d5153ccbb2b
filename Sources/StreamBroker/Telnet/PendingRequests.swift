// Requests of RFC 2217 that wait for their answers. An answer names no request, only what it is about. Servers answer
// requests about one thing in order, but leave some out: ser2net does not answer a request for DTR that its driver
// refuses. A value; sends nothing.

import ByteStreams
import StreamTelnet

struct PendingRequests {
  struct Request {
    let message: ComPortMessage
    let sentAt: UInt64
    let done: (Result<ComPortMessage, SystemError>) -> Void
  }

  // In the order in which they were sent.
  private var all: [Request] = []

  var isEmpty: Bool { all.isEmpty }
  var firstTime: UInt64? { all.first?.sentAt }
  func contains(kind: ComPortMessage.Kind) -> Bool { all.contains { $0.message.kind == kind } }

  mutating func add(
    _ message: ComPortMessage, at time: UInt64, _ done: @escaping (Result<ComPortMessage, SystemError>) -> Void
  ) {
    all.append(Request(message: message, sentAt: time, done: done))
  }

  /// Removes and returns the requests that `answer` is the answer to: the first that asks for exactly this, else the
  /// first of its kind. Earlier ones of this kind get no other answer any more.
  mutating func take(answeredBy answer: ComPortMessage) -> [Request] {
    let kind = answer.kind
    guard
      let last = all.firstIndex(where: { $0.message == answer }) ?? all.firstIndex(where: { $0.message.kind == kind })
    else { return [] }
    let answered = all[...last].filter { $0.message.kind == kind }
    all = all[...last].filter { $0.message.kind != kind } + all[(last + 1)...]
    return answered
  }

  mutating func takeAll(sentBefore time: UInt64) -> [Request] {
    let count = all.firstIndex { $0.sentAt > time } ?? all.count
    defer { all.removeFirst(count) }
    return Array(all[..<count])
  }
}
