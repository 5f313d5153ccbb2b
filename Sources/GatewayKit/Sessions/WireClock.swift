// When the last bit has left the endpoint's serial line. The driver takes bytes faster than the line sends them: a
// silence that is counted from the write may be over before the packet has left.

import ByteStreams

struct WireClock {
  /// On the lane's clock. For an endpoint without a serial line: when it took the last byte.
  private(set) var lastBitAt: UInt64 = 0
  /// The driver holds none of the bytes any more, or can't tell.
  private(set) var isConfirmed = true

  /// The endpoint has taken `count` bytes.
  mutating func took(_ count: Int, over line: (any SerialLine)?, at now: UInt64) {
    guard let line else { return lastBitAt = now }
    lastBitAt = max(lastBitAt, now &+ Self.start) &+ Self.time(of: count, line)
    isConfirmed = false
  }

  // A USB adapter gets the first byte with the next frame of its bus.
  private static let start: UInt64 = 1_000_000

  /// The driver's answer: it still holds `count` bytes. Flow control and slow adapters make the line slower than its bit
  /// rate; a pty, or a USB device without a UART, is faster. The hardware may hold more, which only the bit rate tells.
  mutating func driverHolds(_ count: Int, of line: any SerialLine, at now: UInt64) {
    isConfirmed = count == 0
    if count > 0 { lastBitAt = max(lastBitAt, now &+ Self.time(of: count, line)) }
    lastBitAt = min(lastBitAt, now &+ Self.time(of: count + Self.mostInHardware, line))
  }

  // The largest buffer of a USB adapter, that of an FT2232H.
  private static let mostInHardware = 4096

  private static func time(of count: Int, _ line: any SerialLine) -> UInt64 {
    UInt64(clamping: count).multipliedReportingOverflow(by: line.settings.characterTime.nanoseconds).partialValue
  }

  /// What was taken is not sent any more: it was purged, or the endpoint is gone. The next endpoint has sent nothing yet;
  /// that is no silence, so a client's packet goes on there.
  mutating func nothingIsDue(at now: UInt64) {
    lastBitAt = min(lastBitAt, now)
    isConfirmed = true
  }

  /// How long the line has been silent.
  func silence(at now: UInt64) -> UInt64 { now > lastBitAt ? now &- lastBitAt : 0 }
}
