// A client of `baudway.v1` without a WebSocket: texts stand among the bytes that it reads, and what it is told is kept.

import StreamTestKit

@testable import ByteStreams
@testable import GatewayKit

final class DeskStream: ByteStream, DeskChannel {
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
  /// What it was told, and what it has not looked at yet.
  private(set) var told: [String] = []
  private(set) var isClosed = false
  /// It takes no more texts.
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
    if !isDeaf && !isClosed { told.append(String(decoding: text, as: UTF8.self)) }
    return !isDeaf && !isClosed
  }

  /// What it was told since this was last asked.
  func news() -> [String] {
    defer { told = [] }
    return told
  }

  func add(_ items: [Item]) { self.items += items }
}

extension HubRig {
  /// A client with a desk.
  @discardableResult
  func joinDesk(role: Config.Listen.Role = .writer) -> (client: DeskStream, session: Session) {
    let client = DeskStream()
    let session = join(client, role: role, desk: Desk(client))
    return (client, session)
  }

  /// The client sends these; as the lane would, he is read as long as somebody waits for it.
  func send(_ client: DeskStream, _ items: DeskStream.Item...) {
    client.add(items)
    var before = -1
    while client.textsLeft > 0, client.textsLeft != before, !client.readerWaits.isEmpty {
      before = client.textsLeft
      wakeReader(client)
    }
  }

  /// Asks, and says what the answer is.
  func ask(_ client: DeskStream, _ text: String) -> [String] {
    _ = client.news()
    send(client, .text(text))
    return client.news()
  }
}
