// One client's server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). It keeps nothing
// but a number: a client that reads slowly falls behind in the shared list, and is told how many events it has missed.

import ByteStreams

final class EventStream: ControlAnswer {
  private let log: EventLog
  private let caller: AdminCaller
  private let poller: Poller
  /// The last event that was sent, or that this client may not see.
  private var last: UInt64
  private var hasBegun = false
  private var waiting: (([UInt8]?) -> Void)?
  private var heartbeat: Timers.Token?

  /// Events of a piece.
  private static let page = 64
  /// Proxies end connections on which nothing is sent for a minute or less.
  private static let pause = Duration.seconds(15)

  /// `id` is that of the last event which the client has got; those after it that are still kept come first.
  init(_ log: EventLog, after id: String?, for caller: AdminCaller, on poller: Poller) {
    self.log = log
    self.caller = caller
    self.poller = poller
    guard let id else {
      last = log.newest
      return
    }
    let parts = id.split(separator: "-", omittingEmptySubsequences: false)
    let isOurs = parts.count == 2 && parts[0] == log.epoch
    // All events of this gateway are new to a client of an earlier one.
    last = isOurs ? min(UInt64(parts[1]) ?? 0, log.newest) : 0
  }

  deinit {
    poller.timers.cancel(heartbeat)
    log.forget(ObjectIdentifier(self))
  }

  func next(_ done: @escaping ([UInt8]?) -> Void) {
    guard hasBegun else {
      hasBegun = true
      // The client's pause before it reconnects.
      return done(Array("retry: 3000\n\n".utf8))
    }
    let text = text()
    guard text.isEmpty else { return done(Array(text.utf8)) }
    waiting = done
    heartbeat = poller.timers.after(Self.pause) { [weak self] in self?.give(":\n\n") }
    wait()
  }

  private func wait() { log.wait(after: last, for: self) { [weak self] in self?.look() } }

  private func look() {
    guard waiting != nil else { return }
    let text = text()
    // None of the events was for this client.
    if text.isEmpty { wait() } else { give(text) }
  }

  private func give(_ text: String) {
    poller.timers.cancel(heartbeat)
    let done = waiting
    waiting = nil
    done?(Array(text.utf8))
  }

  private func text() -> String {
    var text = ""
    while text.isEmpty {
      let entries = log.events(after: last, atMost: Self.page)
      if entries.isEmpty { break }
      for entry in entries {
        let lost = entry.number - last - 1
        if lost > 0 { text += "event: lost\ndata: {\"lost\":\(lost)}\n\n" }
        if caller.sees(entry) { text += "id: \(log.id(of: entry))\nevent: \(entry.event)\ndata: \(entry.line)\n\n" }
        last = entry.number
      }
    }
    return text
  }
}
