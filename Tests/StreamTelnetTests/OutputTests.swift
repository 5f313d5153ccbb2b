// What goes out: data with 255 doubled, text, messages, however little the stream below takes.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamTelnet

@Suite("A telnet stream that is written to", .timeLimit(.minutes(5)))
struct OutputTests {
  @Test("loses and doubles nothing when the stream below takes any part", arguments: 0..<64)
  func everyCut(places: Int) throws {
    // 255 at every combination of six places.
    let bytes = (0..<6).map { places & (1 << $0) == 0 ? UInt8($0) : 255 }
    let wire = Wire.data(bytes)
    for cut in 0...wire.count {
      let rig = try Rig(ScriptedStream(writes: [.moved(cut)]))
      guard case .moved(let taken) = try rig.stream.write(bytes) else {
        Issue.record("not taken: \(bytes) cut at \(cut)")
        continue
      }
      #expect(rig.below.written == Array(wire[..<cut]))
      // What was taken is what is sent, and the second half of a pair.
      let sent = Wire.data(Array(bytes[..<taken]))
      #expect(sent.count == cut || sent.count == cut + 1 && rig.stream.hasPendingOutput, "\(bytes) cut at \(cut)")
      #expect(rig.below.writerWaits == (sent.count > cut ? .writable : []))
      #expect(rig.stream.undelivered == .onItsWay(sent.count - cut))
      if taken < bytes.count {
        if rig.stream.hasPendingOutput {
          #expect(try rig.stream.write(Array(bytes[taken...])) == .blocked(until: .writable))
        }
        rig.below.willWrite(.moved(100), .moved(100))
        #expect(try rig.stream.write(Array(bytes[taken...])) == .moved(bytes.count - taken))
      } else {
        rig.below.willWrite(.moved(100))
        rig.tellSpace()
      }
      #expect(rig.below.written == wire && !rig.stream.hasPendingOutput && rig.below.writerWaits == [])
    }
  }

  @Test("sends data without 255 from the writer's run in one call, also several runs")
  func clean() throws {
    let rig = try Rig()
    let bytes = ScriptedStream.pattern(0..<200_000)
    #expect(try rig.stream.write(bytes) == .moved(200_000) && rig.below.writeCalls == 1)
    #expect(try writeTogether(rig.stream, [bytes, [1, 2]]) == .moved(200_002))
    #expect(rig.below.writeCalls == 2 && rig.below.written == bytes + bytes + [1, 2])
    // From the run up to the first 255, if that is worth it.
    let mixed = bytes[..<5000] + [255] + bytes[..<5]
    #expect(try rig.stream.write(Array(mixed)) == .moved(5000))
    #expect(try writeTogether(rig.stream, [[1], [255], [2]]) == .moved(3))
    #expect(rig.below.written.suffix(4) == [1, 255, 255, 2])
  }

  @Test("takes at most what it can double in one call", arguments: [32_767, 32_768, 32_769, 70_000])
  func longRuns(count: Int) throws {
    let rig = try Rig()
    let bytes = [1] + [UInt8](repeating: 255, count: count)
    var sent = 0
    while sent < bytes.count {
      guard case .moved(let taken) = try rig.stream.write(Array(bytes[sent...])), taken > 0 else { break }
      sent += taken
    }
    let isWhole = sent == bytes.count && rig.below.written == Wire.data(bytes)
    #expect(isWhole)
  }

  @Test("loses and doubles nothing at random, with messages between the data", arguments: [true, false])
  func random(binary: Bool) throws {
    for _ in 0..<150 {
      var random = SeededRandom()
      let note = "seed \(random.seed)"
      let rig = try Rig(ScriptedStream(), as: .server, binary ? .agreed : .nothing)
      let bytes = (0..<Int.random(in: 1...12_000, using: &random)).map { _ in
        random.next() & 3 == 0
          ? [255, 13, 10, 0].randomElement(using: &random)! : UInt8.random(in: 1...254, using: &random)
      }
      var messages: [[UInt8]] = []
      var sent = 0
      func script() {
        switch Int.random(in: 0..<4, using: &random) {
        case 0: rig.below.willWrite(.blocked(until: .writable))
        case 1: rig.below.willWrite(.moved(Int.random(in: 1...3, using: &random)))
        default: rig.below.willWrite(.moved(Int.random(in: 1...9000, using: &random)))
        }
      }
      while sent < bytes.count || rig.stream.hasPendingOutput {
        script()
        switch Int.random(in: 0..<6, using: &random) {
        case 0:
          let value = UInt8.random(in: 250...255, using: &random)
          if rig.stream.send(.modemState(value)) { messages.append([107, value]) }
        case 1: rig.tellSpace()
        case 2...3 where sent + 1 < bytes.count:
          let middle = Int.random(in: sent + 1..<bytes.count, using: &random)
          let end = Int.random(in: middle + 1...bytes.count, using: &random)
          let answer = try writeTogether(rig.stream, [Array(bytes[sent..<middle]), Array(bytes[middle..<end])])
          if case .moved(let count) = answer { sent += count }
        default:
          guard sent < bytes.count else { break }
          let end = Int.random(in: sent + 1...bytes.count, using: &random)
          if case .moved(let count) = try rig.stream.write(Array(bytes[sent..<end])) { sent += count }
        }
        #expect((rig.below.writerWaits == .writable) == rig.stream.hasPendingOutput, "\(note)")
      }
      let heard = Reference(rig.below.written, binary: binary)
      let isSame = heard.data == bytes && heard.messages == messages
      #expect(isSame, "\(note)")
    }
  }

  @Test(
    "sends a CR alone as CR NUL to a terminal, and CR LF as it is",
    arguments: [
      ([13], [13]), ([13, 10], [13, 10]), ([13, 65], [13, 0, 65]), ([13, 13, 10], [13, 0, 13, 10]),
      ([13, 0], [13, 0, 0]), ([13, 255], [13, 0, 255, 255]), ([65, 10, 13], [65, 10, 13]),
    ] as [([UInt8], [UInt8])])
  func text(bytes: [UInt8], wire: [UInt8]) throws {
    let whole = try Rig(as: .server, .nothing)
    #expect(try whole.stream.write(bytes) == .moved(bytes.count) && whole.below.written == wire)
    let single = try Rig(as: .server, .nothing)
    for byte in bytes { #expect(try single.stream.write([byte]) == .moved(1)) }
    #expect(single.below.written == wire)
    let binary = try Rig()
    #expect(try binary.stream.write(bytes) == .moved(bytes.count) && binary.below.written == Wire.data(bytes))
    let held = try Rig(ScriptedStream(writes: [.moved(1)]), as: .server, .nothing)
    #expect(try held.stream.write(bytes) == .moved(bytes.count))
    #expect(held.stream.hasPendingOutput == (wire.count > 1))
    held.below.willWrite(.moved(1), .moved(1), .moved(1), .moved(1))
    held.tellSpace()
    #expect(held.below.written == wire && !held.stream.hasPendingOutput)
  }

  @Test("holds few bytes of text that the stream below does not take")
  func muchText() throws {
    let rig = try Rig(ScriptedStream(), as: .server, .nothing)
    #expect(try rig.stream.write([UInt8](repeating: 255, count: 100_000)) == .moved(1024))
    #expect(try rig.stream.write([1]) == .blocked(until: .writable))
    #expect(rig.stream.undelivered == .onItsWay(2048))
  }

  @Test("sends data after its own question about BINARY as they are, and as text after a refusal")
  func binaryBegins() throws {
    let rig = try Rig(as: .client, .nothing)
    _ = try rig.stream.write([13, 65, 13])
    rig.stream.begin()
    let questions = Wire.will(0) + Wire.will(3) + Wire.will(44) + Wire.do(0) + Wire.do(3) + Wire.do(44)
    _ = try rig.stream.write([66, 13, 67])
    #expect(rig.below.written == [13, 0, 65, 13] + questions + [66, 13, 67])
    _ = try rig.stream.write([13])
    _ = try rig.handle(Wire.dont(0))
    _ = try rig.stream.write([68, 13, 69])
    #expect(rig.below.written.suffix(5) == [13, 68, 13, 0, 69])
    // The other side asks later: data are binary after our answer.
    _ = try rig.handle(Wire.do(0))
    _ = try rig.stream.write([13, 70])
    #expect(rig.below.written.suffix(6) == [69] + Wire.will(0) + [13, 70])
    // A negotiation that was finished before is in force.
    let agreed = try Rig(as: .client)
    _ = try agreed.stream.write([13, 65])
    #expect(agreed.below.written == [13, 65])
  }

  @Test("sends text for people by the same rules as data")
  func notices() throws {
    let rig = try Rig(as: .server, .nothing)
    _ = try rig.stream.write([13])
    #expect(rig.stream.send(text: "a\rb\r\n"))
    _ = try rig.stream.write([65])
    #expect(rig.below.written == [13, 0, 97, 13, 0, 98, 13, 10, 65])
    let answering = try Rig(as: .server, .nothing)
    _ = try answering.stream.write([13])
    _ = try answering.handle(Wire.areYouThere)
    _ = try answering.stream.write([65])
    #expect(answering.below.written == [13, 0] + Array("\r\n[baudway: yes]\r\n".utf8) + [65])
    let binary = try Rig()
    #expect(binary.stream.send(text: "a\rb"))
    #expect(binary.below.written == [97, 13, 98])
  }

  @Test("queues messages while the stream below is full, up to a bound, and then drops them")
  func bound() throws {
    let rig = try Rig(ScriptedStream())
    var queued = 0
    while rig.stream.send(.modemState(UInt8(queued % 251))), queued < 100_000 { queued += 1 }
    #expect(queued * 7 > 60_000 && queued * 7 <= 65_536)
    let large = String(repeating: "x", count: 70_000)
    #expect(!rig.stream.send(text: large))
    rig.below.willWrite(.moved(1 << 20))
    rig.tellSpace()
    let heard = Reference(rig.below.written, binary: true)
    #expect(heard.messages == (0..<queued).map { [107, UInt8($0 % 251)] } && !rig.stream.hasPendingOutput)
    rig.below.willWrite(.moved(1))
    #expect(rig.stream.send(.resume) && rig.stream.hasPendingOutput)
  }

  @Test("sends what waited before data and before it tells the writer of space")
  func order() throws {
    let rig = try Rig(ScriptedStream())
    #expect(rig.stream.send(text: "ab"))
    #expect(try rig.stream.write([1]) == .blocked(until: .writable))
    rig.stream.writerWaits = .writable
    rig.below.willWrite(.moved(1))
    rig.tellSpace()
    #expect(rig.recorder.events.isEmpty)
    rig.below.willWrite(.moved(1), .moved(1))
    rig.tellSpace()
    #expect(rig.recorder.events == [.hasSpaceAvailable])
    #expect(try rig.stream.write([1]) == .moved(1) && rig.below.written == Array("ab".utf8) + [1])
  }

  @Test("waits for what the stream below waits for")
  func crossedWish() throws {
    let rig = try Rig(ScriptedStream(writes: [.blocked(until: .readable), .blocked(until: .readable)]))
    #expect(rig.stream.send(text: "ab") && rig.below.writerWaits == .readable)
    #expect(try rig.stream.write([1]) == .blocked(until: .readable))
    rig.below.willWrite(.moved(2), .moved(1))
    // Half of a pair is left: that needs space, whatever was waited for before.
    #expect(try rig.stream.write([255]) == .moved(1) && rig.below.writerWaits == .writable)
  }

  // MARK: - The end

  @Test(
    "sends pending answers before it closes if there is space, and closes at once if not", arguments: [true, false])
  func closing(hasSpace: Bool) throws {
    let rig = try Rig(ScriptedStream())
    #expect(rig.stream.send(.control(8)) && rig.stream.hasPendingOutput)
    if hasSpace { rig.below.willWrite(.moved(100)) }
    rig.stream.close()
    #expect(rig.below.written == (hasSpace ? Wire.subnegotiation([105, 8]) : []))
    #expect(rig.below.isClosed && !rig.below.isAborted && rig.recorder.closings == 1 && !rig.stream.hasPendingOutput)
    let afterwards = (try rig.stream.write([1]), try rig.stream.read())
    #expect(afterwards == (.ended, .ended))
    #expect(!rig.stream.send(.control(8)))
  }

  @Test("sends no answer and no keepalive after its own end, and is read on")
  func halfClosed() throws {
    let rig = try Rig(
      ScriptedStream(writes: [.failed(SystemError("write", EPIPE))]), keepalive: .seconds(20))
    rig.stream.finishWriting()
    #expect(rig.below.finishedWriting)
    #expect(try rig.handle([1] + Wire.areYouThere + Wire.do(99) + [2]) == [1, 2])
    rig.pass(.seconds(21))
    rig.pass(.seconds(21))
    #expect(!rig.stream.send(.control(1)) && !rig.stream.hasPendingOutput && rig.below.writeCalls == 0)
    #expect(try rig.handle([3]) == [3])
  }
}

/// Writes several runs in one call.
func writeTogether(_ stream: TelnetStream, _ parts: [[UInt8]]) throws -> Transfer {
  var joined = parts.flatMap { $0 }
  return try joined.withUnsafeMutableBytes { all in
    var start = 0
    var runs = parts.map { part in
      defer { start += part.count }
      return iovec(iov_base: all.baseAddress! + start, iov_len: part.count)
    }
    return try runs.withUnsafeMutableBufferPointer { try stream.write(together: $0) }
  }
}

/// Reads a wire by the rules of RFC 854 in the plainest way.
struct Reference {
  var data: [UInt8] = []
  var messages: [[UInt8]] = []

  init(_ wire: [UInt8], binary: Bool) {
    var rest = wire[...]
    var lastWasCR = false
    while let byte = rest.popFirst() {
      guard byte == 255 else {
        if !(lastWasCR && byte == 0 && !binary) { data.append(byte) }
        lastWasCR = byte == 13
        continue
      }
      switch rest.popFirst() {
      case 255?:
        data.append(255)
        lastWasCR = false
      case 250?:
        _ = rest.popFirst()
        var content: [UInt8] = []
        while let byte = rest.popFirst() {
          if byte == 255, rest.popFirst() == 240 { break }
          content.append(byte)
        }
        messages.append(content)
      default: break
      }
    }
  }
}
