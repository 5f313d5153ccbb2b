// A session's input: its state in the hub's Upstream, which writes it. The bytes are in the Pump, at most
// `clients.buffer`; past half of that the client is not read, and its TCP window closes.

import ByteStreams

struct SessionUp {
  /// From the client to the endpoint.
  private let pump: Pump
  /// The client may write: its input goes to the endpoint. Otherwise input is read and dropped.
  private(set) var mayWrite = false
  /// Input is kept until the endpoint has space.
  private(set) var isWaiting = false
  /// All clients have finished sending; the rest of this one's input is dropped.
  private(set) var isFlushed = false
  /// Keeps the client's packets whole, if packets are on.
  private(set) var gate: PacketGate?

  init(_ pump: Pump) { self.pump = pump }

  /// Bytes that the endpoint has taken.
  var bytes: UInt64 { pump.moved }

  mutating func gainsRight() { mayWrite = true }
  mutating func losesRight() { mayWrite = false }

  /// The session joins the WriterQueue.
  mutating func waits() { isWaiting = true }
  mutating func waitIsOver() { isWaiting = false }

  mutating func flushed() { isFlushed = true }

  mutating func write(through gate: PacketGate?) { self.gate = gate }
}

extension Session {
  /// A request of the control channel waits among the bytes or is being carried out: no byte after it may go out.
  var isMarked: Bool { controlChannel.map { $0.room(behind: pump.moved) < .max } ?? false }

  /// Reads from the client again if reading was paused.
  func readOn(_ poller: Poller) {
    guard !pump.sourceEnded, client.readerWaits.isEmpty else { return }
    client.readerWaits = .readable
    if client.hasBufferedInput { poller.again(client) }  // no event reports what is inside the stream
  }

  /// Reads the client's input, drops it and counts it. The count is complete before anything can end the session and
  /// report it.
  func readAndDiscard() throws(Pump.Fault) {
    let before = pump.readAndDiscarded
    defer { countDropped(pump.readAndDiscarded &- before) }
    try pump.readAndDiscard()
  }
}
