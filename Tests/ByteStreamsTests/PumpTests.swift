// One direction with a scripted kernel: the rules for blocked sinks, budgets and hidden bytes.

import StreamTestKit
import Testing

@testable import ByteStreams

@Suite("A pump", .timeLimit(.minutes(5)))
struct PumpTests {
  private let poller: Poller

  init() throws { poller = try Poller { _ in } }

  private func pump(
    _ source: any ByteStream, _ sink: (any ByteStream)?, capacity: Int = 8
  ) -> Pump {
    Pump(from: source, to: sink, capacity: capacity, on: poller)
  }

  @Test("writes what it read in the same turn, and waits for more")
  func oneTurn() throws {
    let client = ScriptedStream(reads: [.moved(5)])
    let device = ScriptedStream(takesAll: true)
    let pump = pump(client, device)
    #expect(try pump.turn() == .idle)
    #expect(device.written == ScriptedStream.pattern(0..<5))
    #expect(pump.moved == 5 && pump.count == 0)
    #expect(client.readerWaits == .readable && device.writerWaits == [])
  }

  @Test("stops reading the source while the ring is full")
  func fullRing() throws {
    let client = ScriptedStream(reads: [.moved(4), .moved(4)])
    let device = ScriptedStream()  // accepts nothing
    #expect(try pump(client, device, capacity: 4).turn() == .keeps)
    #expect(client.interest == [] && client.readCalls == 1)
    #expect(device.interest == [.writable])
  }

  @Test(
    "waits for whatever the stream says it waits for, even a TLS read that wants to write",
    arguments: [Readiness.readable, .writable])
  func crossedWish(wish: Readiness) throws {
    let client = ScriptedStream(reads: [.blocked(until: wish)])
    let device = ScriptedStream(writes: [.blocked(until: wish)])
    let pump = pump(client, device)
    #expect(try pump.turn() == .idle)
    #expect(client.interest == wish)
    client.willRead(.moved(3))
    #expect(try pump.turn() == .keeps)
    #expect(device.interest == wish)
  }

  @Test(
    "reports an impossible count of either stream as an internal fault", arguments: [true, false])
  func liar(reads: Bool) throws {
    let (liar, honest) = (
      LyingStream(in: reads ? .reading : .writing), ScriptedStream(reads: [.moved(5)], takesAll: true)
    )
    let pump = reads ? pump(liar, honest) : pump(honest, liar)
    let fault = #expect(throws: Pump.Fault.self) { _ = try pump.turn() }
    #expect(fault?.side == .ourselves && fault?.cause is InternalFault)
  }

  @Test("does not look again after a short read")
  func shortRead() throws {
    let client = ScriptedStream(reads: [.moved(5), .moved(5)])
    _ = try pump(client, ScriptedStream(takesAll: true)).turn()
    #expect(client.readCalls == 1)
  }

  @Test("looks again after a short read of a stream that holds bytes")
  func hiddenBytes() throws {
    let client = ScriptedStream(reads: [.moved(5), .moved(0), .moved(5)])
    client.hasBufferedInput = true
    let device = ScriptedStream(takesAll: true)
    _ = try pump(client, device).turn()
    #expect(device.written.count == 10)
  }

  @Test(
    "ends its turn when its budget is spent, and continues later with hidden bytes",
    arguments: [false, true])
  func budget(hides: Bool) throws {
    let client = ScriptedStream(reads: [.moved(1000)])
    client.hasBufferedInput = hides
    let device = ScriptedStream(takesAll: true)
    let pump = pump(client, device)
    let recorder = EventRecorder()
    client.delegate = recorder
    #expect(try pump.turn() == .idle)
    #expect(client.readCalls == 4 && device.written.count == 32)
    #expect(client.readerWaits == .readable)
    poller.runAgain()
    #expect(recorder.events == (hides ? [.hasBytesAvailable] : []))
  }

  @Test(
    "reads about as many bytes a turn whatever the ring's size",
    arguments: [(7, 4), (64 << 10, 4), (256 << 10, 1), (16 << 20, 1)])
  func budgetBySize(capacity: Int, reads: Int) {
    #expect(Pump.budget(capacity: capacity) == reads)
  }

  @Test("does not retry a blocked sink when the source wakes it, and continues reading only under half full")
  func blockedSink() throws {
    let client = ScriptedStream(reads: [.moved(3), .blocked(until: .readable), .moved(3), .moved(3)])
    let device = ScriptedStream()
    let pump = pump(client, device)
    #expect(try pump.turn() == .keeps)
    #expect(client.readerWaits == .readable)
    #expect(try pump.turn() == .keeps)
    #expect(try pump.turn() == .keeps)
    #expect(device.writeCalls == 1)
    #expect(pump.count == 6 && client.readerWaits == [])
  }

  @Test("reads before it waits, after making space")
  func drainReads() throws {
    let client = ScriptedStream(reads: [.moved(8), .ended])
    let device = ScriptedStream()
    let pump = pump(client, device)
    #expect(try pump.turn() == .keeps)
    #expect(client.interest == [])
    device.writerWaits = []
    device.willWrite(.moved(8))
    #expect(try pump.drain() == .finished)
    #expect(client.interest == [] && device.interest == [])
  }

  @Test("writes no more than it is told to, and keeps the rest")
  func limit() throws {
    let client = ScriptedStream(reads: [.moved(8)])
    let device = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    let pump = pump(client, device)
    _ = try pump.turn()
    device.writerWaits = []
    #expect(try pump.drain(limit: 3) == .keeps)
    #expect(device.written.count == 3 && pump.count == 5)
  }

  @Test("keeps bytes while it may not write or has no sink", arguments: [false, true])
  func noSink(hasSink: Bool) throws {
    let client = ScriptedStream(reads: [.moved(20)])
    let device = ScriptedStream(takesAll: true)
    let pump = pump(client, hasSink ? device : nil)
    #expect(try pump.turn(mayWrite: false) == .keeps)
    #expect(pump.count == 8 && client.interest == [])
    pump.sink = device
    #expect(try pump.drain() == .idle)
    #expect(device.written == ScriptedStream.pattern(0..<20))
  }

  @Test("is finished only when all of the source's bytes are written")
  func finished() throws {
    let client = ScriptedStream(reads: [.moved(5), .ended])
    client.hasBufferedInput = true
    let device = ScriptedStream(writes: [.moved(2)])
    let pump = pump(client, device)
    #expect(try pump.turn() == .keeps)
    #expect(pump.sourceEnded)
    device.willWrite(.moved(3))
    #expect(try pump.drain() == .finished)
    #expect(device.written == ScriptedStream.pattern(0..<5))
  }

  @Test("drops what it keeps and returns the count")
  func discard() throws {
    let client = ScriptedStream(reads: [.moved(5)])
    let pump = pump(client, ScriptedStream())
    _ = try pump.turn()
    #expect(pump.discard() == 5)
    #expect(pump.count == 0 && pump.moved == 0)
    #expect(pump.discard() == 0)
  }

  @Test("reports which side broke")
  func faults() throws {
    let error = SystemError("read", 104)
    let broken = pump(ScriptedStream(reads: [.failed(error)]), ScriptedStream())
    #expect(throws: Pump.Fault.self) { try broken.turn() }
    do { _ = try broken.turn() } catch { #expect(error.side == .source) }
    let deaf = pump(ScriptedStream(reads: [.moved(1)]), ScriptedStream(writes: [.ended]))
    do {
      _ = try deaf.turn()
      Issue.record("no fault")
    } catch {
      #expect(error.side == .sink && (error.cause as? SystemError)?.name == "EPIPE")
    }
  }

  @Test("always reads with space for a datagram", arguments: [2, 3, 5])
  func datagrams(factor: Int) throws {
    var random = SeededRandom()
    let datagrams = (0..<200).map { _ in random.bytes(Int.random(in: 1...10, using: &random)) }
    let source = DatagramStream(datagrams, largestUnit: 10)
    let steps = (0..<4000).map { _ in
      Bool.random(using: &random)
        ? ScriptedStream.Step.moved(.random(in: 1...9, using: &random)) : .blocked(until: .writable)
    }
    let sink = ScriptedStream(writes: steps, takesAll: true)
    let pump = pump(source, sink, capacity: 10 * factor)
    for _ in 0..<9000 where pump.moved < datagrams.joined().count {
      sink.writerWaits = []
      _ = try Bool.random(using: &random) ? pump.turn() : pump.drain()
    }
    #expect(source.lost == 0, "\(random)")
    #expect(sink.written == Array(datagrams.joined()), "\(random)")
  }

  @Test("loses and doubles nothing in any pattern of reads and writes", arguments: [1, 2, 3, 7, 64])
  func randomSteps(capacity: Int) throws {
    var random = SeededRandom()
    func steps() -> [ScriptedStream.Step] {
      (0..<500).map { _ in
        switch Int.random(in: 0..<4, using: &random) {
        case 0: .blocked(until: Bool.random(using: &random) ? .readable : .writable)
        case 1: .moved(0)
        default: .moved(.random(in: 1...(2 * capacity), using: &random))
        }
      }
    }
    let source = ScriptedStream(reads: steps() + [.ended])
    let sink = ScriptedStream(writes: steps(), takesAll: true)
    let pump = pump(source, sink, capacity: capacity)
    var outcome = Pump.Outcome.idle
    for _ in 0..<20_000 where outcome != .finished {
      // The pump is called only for what it waits for. If it waits for nothing but holds or expects bytes, it is stuck.
      if !sink.writerWaits.isEmpty {
        sink.writerWaits = []
        outcome = try pump.drain()
      } else {
        try #require(source.readerWaits != [] || pump.moved == 0 || outcome == .idle, "\(random)")
        outcome = try pump.turn()
      }
      try #require(pump.count <= capacity, "\(random)")
    }
    #expect(outcome == .finished, "\(random)")
    #expect(sink.written == ScriptedStream.pattern(0..<sink.written.count), "\(random)")
    #expect(UInt64(sink.written.count) == pump.moved)
  }

  @Test("ends with one fault and an honest count when any one step fails")
  func failTheNthStep() throws {
    for step in 0..<1000 {
      let faults = Faults(failing: step)
      let source = ScriptedStream(reads: [.moved(9), .blocked(until: .readable), .moved(30), .ended], faults: faults)
      let sink = ScriptedStream(
        writes: [.moved(3), .blocked(until: .writable), .moved(1)], takesAll: true, faults: faults)
      let pump = pump(source, sink)
      var outcome = Pump.Outcome.idle
      do {
        for _ in 0..<100 where outcome != .finished {
          let hasSpace = !sink.writerWaits.isEmpty
          sink.writerWaits = []
          outcome = try hasSpace ? pump.drain() : pump.turn()
        }
        #expect(!faults.wasReached)
      } catch {
        #expect(faults.wasReached && error.side != .ourselves)
      }
      #expect(sink.written == ScriptedStream.pattern(0..<Int(pump.moved)))
      if !faults.wasReached {
        #expect(outcome == .finished && pump.moved == 39)
        return
      }
    }
    Issue.record("the scenario never ran to its end")
  }

  @Test("moves a MiB through the smallest rings", arguments: [1, 2, 3, 7])
  func tinyRings(capacity: Int) async throws {
    let total = 1 << 20
    let (taken, isRight) = try await onOwnThread {  // takes seconds, so it must not block other tests
      let source = PatternSource(total)
      let sink = PatternSink()
      let pump = Pump(from: source, to: sink, capacity: capacity, on: try Poller { _ in })
      while try pump.turn() != .finished {}
      return (sink.taken, sink.isRight)
    }
    #expect(taken == total && isRight)
  }
}

/// Supplies the running pattern and then ends. Small and fast, for a million steps.
private final class PatternSource: TransportStream {
  var delegate: (any ByteStreamDelegate)?
  var readerWaits: Readiness = []
  var writerWaits: Readiness = []
  private let total: Int
  private var said = 0
  init(_ total: Int) { self.total = total }

  func read(into run: UnsafeMutableRawBufferPointer) -> Transfer {
    guard said < total else { return .ended }
    let count = min(run.count, total - said)
    for place in 0..<count { run[place] = ScriptedStream.pattern(at: said + place) }
    said += count
    return .moved(count)
  }
  func write(_ run: UnsafeRawBufferPointer) -> Transfer { .ended }
  func close() {}
}

/// Accepts everything and checks it.
private final class PatternSink: TransportStream {
  var delegate: (any ByteStreamDelegate)?
  var readerWaits: Readiness = []
  var writerWaits: Readiness = []
  private(set) var taken = 0
  private(set) var isRight = true

  func read(into run: UnsafeMutableRawBufferPointer) -> Transfer { .ended }
  func write(_ run: UnsafeRawBufferPointer) -> Transfer {
    for place in 0..<run.count where run[place] != ScriptedStream.pattern(at: taken + place) { isRight = false }
    taken += run.count
    return .moved(run.count)
  }
  func close() {}
}
