// A client of `baudway.v1` without a WebSocket. Its texts and bytes come in order, and it keeps the texts that it
// receives.

import StreamTestKit

@testable import ByteStreams
@testable import GatewayKit

final class ScriptedControlStream: TransportStream, ControlTextStream {
  enum Item {
    case bytes(String)
    case text(String)
    case end
  }

  var delegate: (any ByteStreamDelegate)?
  var readerWaits: Readiness = []
  var writerWaits: Readiness = []
  let carriesTexts = true
  private(set) var written: [UInt8] = []
  /// Texts that it received since the last `news()`.
  private(set) var reported: [String] = []
  private(set) var isClosed = false
  /// It accepts no more texts.
  var isDeaf = false
  private var items: [Item] = []
  private var text: String?

  var textsLeft: Int { items.count + (text == nil ? 0 : 1) }

  func read(into run: UnsafeMutableRawBufferPointer) -> Transfer {
    if text != nil { return .blocked(until: []) }
    guard let item = items.first else { return .blocked(until: .readable) }
    switch item {
    case .end: return .ended
    case .text(let next):
      items.removeFirst()
      text = next
      return .moved(0)
    case .bytes(let next):
      items.removeFirst()
      let bytes = Array(next.utf8)
      let taken = min(bytes.count, run.count)
      run.copyBytes(from: bytes[..<taken])
      if taken < bytes.count { items.insert(.bytes(String(decoding: bytes[taken...], as: UTF8.self)), at: 0) }
      return .moved(taken)
    }
  }

  func write(_ run: UnsafeRawBufferPointer) -> Transfer {
    written += run
    return .moved(run.count)
  }

  func close() {
    isClosed = true
    dismissDelegate()
  }

  func takeText() -> [UInt8]? {
    defer { text = nil }
    return text.map { Array($0.utf8) }
  }

  func send(event text: [UInt8]) -> Bool {
    if !isDeaf && !isClosed { reported.append(String(decoding: text, as: UTF8.self)) }
    return !isDeaf && !isClosed
  }

  /// The texts received since the last call.
  func news() -> [String] {
    defer { reported = [] }
    return reported
  }

  func add(_ items: [Item]) { self.items += items }
}

extension HubRig {
  /// Adds a client with a control channel.
  @discardableResult
  func joinControlChannel(role: Config.Listen.Role = .writer) -> (client: ScriptedControlStream, session: Session) {
    let client = ScriptedControlStream()
    let session = join(client, role: role, controlChannel: ControlChannel(ControlTexts(client)))
    return (client, session)
  }

  /// Sends these items from the client. As on the lane, it is read as long as its session waits for input.
  func send(_ client: ScriptedControlStream, _ items: ScriptedControlStream.Item...) {
    client.add(items)
    var before = -1
    while client.textsLeft > 0, client.textsLeft != before, !client.readerWaits.isEmpty {
      before = client.textsLeft
      wakeReader(client)
    }
  }

  /// Sends a request and returns the replies and events.
  func ask(_ client: ScriptedControlStream, _ text: String) -> [String] {
    _ = client.news()
    send(client, .text(text))
    return client.news()
  }
}
