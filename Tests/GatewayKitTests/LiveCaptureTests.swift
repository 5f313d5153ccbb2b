// A live recording: what a command gets through the control socket, and what is missing when it reads too slowly.

import Dispatch
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A live recording", .timeLimit(.minutes(5)))
struct LiveCaptureTests {
  /// The recording and its reader, without a route and a socket.
  private final class Rig {
    let clock = ManualClock()
    let poller: Poller
    let buffer: CaptureBuffer
    let capture: LiveCapture
    let tap = CaptureTap { CaptureRig.start }
    private(set) var events: [LiveCaptureReader.Event] = []
    private(set) var isAtEnd = false
    /// The reader is waiting for a piece.
    private(set) var isAsking = false
    private var reader = LiveCaptureReader()

    /// Wakes the recording on the test's thread.
    private final class Drain: CaptureDrain, @unchecked Sendable {
      weak var capture: LiveCapture?
      var takesEvents: Bool { true }
      func begin() {}
      func wake() { capture?.wake() }
      func end(
        at time: UInt64, _ lines: ControlLines, losing loss: CaptureLoss, then done: @escaping @Sendable () -> Void
      ) { capture?.end(at: time, lines, losing: loss, then: done) }
    }

    init(_ format: Config.Capture.Format, capacity: Int = CaptureBuffer.capacity) throws {
      poller = try Poller(clock: clock.clock) { _ in }
      buffer = try CaptureBuffer(capacity: capacity)
      capture = LiveCapture(format, from: buffer, on: poller) { CaptureRig.start }
      let drain = Drain()
      drain.capture = capture
      tap.report(.link(.open))
      tap.add(CaptureOutlet(buffer, to: drain, on: poller, delay: .milliseconds(20)))
      capture.begin(CaptureSubject(route: "gps", endpoint: "sim://nmea"))
    }

    func read() {
      isAsking = true
      capture.next { [self] piece in
        isAsking = false
        guard let piece else { return isAtEnd = true }
        events += reader.take(piece)
      }
    }

    func readAll() { while !isAsking && !isAtEnd { read() } }

    func pass(_ time: Duration) {
      clock.advance(by: time)
      poller.timers.fireDue()
    }

    func send(_ text: String) { Array(text.utf8).withUnsafeBytes { tap.sent($0) } }
    func receive(_ bytes: [UInt8]) { bytes.withUnsafeBytes { tap.received($0) } }
    func end() { for outlet in tap.outlets { tap.end(outlet) } }

    var bytes: [UInt8] { events.flatMap { if case .bytes(let bytes) = $0 { bytes } else { [] as [UInt8] } } }
    var text: [String] {
      String(decoding: bytes, as: UTF8.self).split(separator: "\n").map {
        String($0.drop { $0 != " " }.dropFirst())
      }
    }
  }

  @Test("begins with the state of the link, and has what follows within 20 ms")
  func follows() throws {
    let rig = try Rig(.text)
    rig.readAll()
    #expect(rig.events.first == .begun && rig.text == ["- link open"])
    rig.send("help\n")
    rig.receive(Array("login: ".utf8))
    rig.pass(.milliseconds(20))
    rig.readAll()
    #expect(rig.text == ["- link open", "> help\\n"])
    rig.pass(.milliseconds(500))
    rig.readAll()
    #expect(rig.text.last == "< login: ", "a line that does not end")
  }

  @Test("says in every format that it ends, and what came before is whole", arguments: Config.Capture.Format.allCases)
  func ends(format: Config.Capture.Format) throws {
    let rig = try Rig(format)
    rig.readAll()
    rig.receive(pattern(0..<1000))
    rig.end()
    rig.readAll()
    #expect(rig.isAtEnd && rig.events.last == .end)
    switch format {
    case .raw: #expect(rig.bytes == pattern(0..<1000))
    case .pcapng:
      let file = try PcapngReader(rig.bytes)
      #expect(file.data(2) == pattern(0..<1000) && file.packets.last?.event == 6)
    case .text, .hex: #expect(rig.text.last == "- the recording ends here")
    }
  }

  @Test("is bounded: a reader that stops misses bytes, hears how many, and gets the rest")
  func slow() throws {
    let rig = try Rig(.pcapng, capacity: 64 << 10)
    rig.readAll()
    for start in stride(from: 0, to: 1 << 20, by: 4096) {
      rig.receive(pattern(start..<(start + 4096)))
      rig.pass(.milliseconds(20))
    }
    #expect(rig.buffer.used <= 64 << 10)
    rig.readAll()
    rig.receive([1, 2, 3])
    rig.pass(.milliseconds(20))
    rig.readAll()
    let dropped = rig.events.reduce(into: UInt64(0)) { if case .dropped(let bytes, _) = $1 { $0 += bytes } }
    let file = try PcapngReader(rig.bytes)
    #expect(dropped > 900_000 && UInt64(file.data(2).count) + dropped == 1 << 20 + 3)
    #expect(file.data(2).suffix(3) == [1, 2, 3])
    let lost = file.packets.filter { $0.event == 5 }
    #expect(lost.count == 1 && lost[0].comment?.hasSuffix("the recording was read too slowly") == true)
  }

  @Test("is no burden for a second recording of the same link")
  func together() throws {
    let rig = try Rig(.raw, capacity: 64 << 10)
    let file = try CaptureRig(.raw)
    let other = try CaptureBuffer(counts: file.counts)
    let writer = CaptureWriter(
      CaptureSubject(route: "gps", endpoint: "sim://nmea"), file.settings, from: other, file.environment,
      file.story.sink)
    writer.begin()
    let outlet = CaptureOutlet(other, to: writer, on: rig.poller)
    rig.tap.add(outlet)
    rig.receive(pattern(0..<200_000))
    rig.tap.end(outlet)
    file.settle()
    file.settle()
    #expect(file.folder.bytes("x~2.raw") == pattern(0..<200_000) && rig.buffer.used <= 64 << 10)
    rig.end()
  }

  @Test("that is refused says why, and ends")
  func refused() throws {
    let poller = try Poller(clock: ManualClock().clock) { _ in }
    let capture = LiveCapture(.raw, from: try CaptureBuffer(), on: poller) { 0 }
    var pieces: [[UInt8]?] = []
    capture.next { pieces.append($0) }
    #expect(pieces.isEmpty)
    capture.refuse(ControlFault("there is no route 'x'").answer)
    capture.next { pieces.append($0) }
    var reader = LiveCaptureReader()
    #expect(pieces.count == 2 && pieces[1] == nil)
    #expect(reader.take(pieces[0] ?? []) == [.failed("there is no route 'x'")])
  }

  @Test("tells its route when the command has gone, and keeps it from nothing")
  func gone() throws {
    let poller = try Poller(clock: ManualClock().clock) { _ in }
    let over = DispatchSemaphore(value: 0)
    var isReleased = false
    var capture: LiveCapture? = LiveCapture(.raw, from: try CaptureBuffer(), on: poller) { 0 }
    capture?.whenReleased = { isReleased = true }
    capture?.begin(CaptureSubject(route: "gps", endpoint: "sim://nmea"))
    capture?.end(at: 0, [], losing: CaptureLoss()) { over.signal() }
    capture = nil
    #expect(isReleased && over.wait(timeout: .now()) == .success)
  }

  @Test("is read in pieces of any size", arguments: [1, 2, 3, 7, 100])
  func pieces(size: Int) throws {
    let rig = try Rig(.raw)
    var whole: [UInt8] = []
    let take = { (piece: [UInt8]?) in whole += piece ?? [] }
    rig.capture.next(take)
    rig.receive(Array("a\n{\"end\":true}\n".utf8))
    rig.capture.next(take)
    rig.end()
    rig.capture.next(take)
    var reader = LiveCaptureReader()
    var events: [LiveCaptureReader.Event] = []
    for start in stride(from: 0, to: whole.count, by: size) {
      events += reader.take(Array(whole[start..<min(start + size, whole.count)]))
    }
    let bytes = events.flatMap { if case .bytes(let bytes) = $0 { bytes } else { [] as [UInt8] } }
    #expect(events.first == .begun && events.last == .end && bytes == Array("a\n{\"end\":true}\n".utf8))
  }
}
