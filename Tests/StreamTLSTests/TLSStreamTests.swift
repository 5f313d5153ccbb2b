// The stream, against plain OpenSSL.

import COpenSSL
import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import StreamTLS

@Suite("A TLS stream", .timeLimit(.minutes(5)))
struct TLSStreamTests {
  static let versions = [TLS1_2_VERSION...TLS1_2_VERSION, TLS1_3_VERSION...TLS1_3_VERSION]

  @Test("carries bytes as records, however they are written")
  func layer() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      try await LayerCarriage(stream, to: far).run(on: lane)
    }
  }

  @Test("forwards to its socket what it does not answer itself", arguments: [true, false])
  func forwarding(aborting: Bool) async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      let raw = stream.socket.raw
      stream.limitUnsent(to: 4096)
      #expect(SocketOptions.value(raw, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT) == 4096)
      let room = try #require(SocketOptions.value(raw, SOL_SOCKET, SO_RCVBUF))
      stream.makeRoomForEnd()
      #expect(try #require(SocketOptions.value(raw, SOL_SOCKET, SO_RCVBUF)) > room)
      LayerForwarding(stream, over: stream.socket, answersItself: [.closeBehavior]).run(aborting: aborting)
      far.close()
    }
  }

  @Test("carries bytes both ways, whatever the chunks", arguments: versions)
  func echo(version: ClosedRange<Int32>) async throws {
    var rig = try TLSRig()
    rig.far.version = version
    try await onLane { [rig] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      async let played: Void = onOwnThread { try far.play(.echo) }
      var random = SeededRandom()
      let seed = random.seed
      let bytes = random.bytes(200_000)
      var sent = 0
      while sent < bytes.count {
        let part = Array(bytes[sent..<min(sent + Int.random(in: 1...60_000, using: &random), bytes.count)])
        try await stream.writeAll(part, on: lane)
        #expect(try await stream.read(exactly: part.count, on: lane) == part, "seed \(seed)")
        sent += part.count
      }
      stream.finishWriting()
      let end = try await stream.readToEnd(on: lane)
      #expect(end.isEmpty)
      try await played
    }
  }

  @Test("takes more than one record a write, and holds no more than one write that the socket does not take")
  func held() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      let chunk = [UInt8](repeating: 0x55, count: 200_000)
      var sent = 0
      var wish: Readiness?
      while wish == nil, sent < 256 << 20 {
        switch try stream.write(chunk) {
        case .moved(let count):
          #expect(count == TLSStream.mostPerWrite)
          sent += count
        case .blocked(let until): wish = until
        case .ended: Issue.record("ended")
        }
      }
      #expect(wish == .writable && stream.hasPendingOutput && stream.undelivered.onItsWay > 0)
      let total = sent
      async let received = onOwnThread { try far.receive(exactly: total).count }
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.writerWaits = .writable
      await gate.wait(on: lane)
      stream.writerWaits = []
      #expect(recorder.events.first == .hasSpaceAvailable && !stream.hasPendingOutput)
      #expect(try await received == total)
      far.close()
    }
  }

  @Test("sends what it holds when the socket has space, though nothing waits for it")
  func ownInterest() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      let chunk = [UInt8](repeating: 0x55, count: 65_536)
      var sent = 0
      while !stream.hasPendingOutput { if case .moved(let count) = try stream.write(chunk) { sent += count } }
      let total = sent
      #expect(try await onOwnThread { try far.receive(exactly: total).count } == total)
    }
  }

  @Test("reports buffered bytes, which the socket does not report")
  func hiddenBytes() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      let bytes = (0..<10_000).map { UInt8(truncatingIfNeeded: $0) }
      try await onOwnThread { try far.send(bytes) }
      // The first read consumes the whole record.
      var received = try await stream.read(exactly: 1, on: lane)
      var run = [UInt8](repeating: 0, count: 100)
      while stream.hasBufferedInput {
        guard case .moved(let count) = try run.withUnsafeMutableBytes({ try stream.read(into: $0) }) else { break }
        received += run[..<count]
      }
      #expect(received == bytes)
    }
  }

  @Test("joins what is written together into one record, and takes no more at a time than of one run")
  func together() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      let transfer = try together([1, 2], [3, 4, 5]) { try stream.write(together: $0) }
      #expect(transfer == .moved(5))
      // One SSL_read returns one record at most.
      #expect(try await onOwnThread { try far.receive() } == [1, 2, 3, 4, 5])
      let long = [UInt8](repeating: 6, count: 50_000)
      let more = try together(long, long) { try stream.write(together: $0) }
      #expect(more == .moved(TLSStream.mostPerWrite))
      #expect(try await onOwnThread { try far.receive(exactly: TLSStream.mostPerWrite) }.allSatisfy { $0 == 6 })
    }
  }

  private func together(
    _ one: [UInt8], _ other: [UInt8], _ body: (UnsafeMutableBufferPointer<iovec>) throws -> Transfer
  ) throws -> Transfer {
    var (one, other) = (one, other)
    return try one.withUnsafeMutableBytes { one in
      try other.withUnsafeMutableBytes { other in
        var runs = [
          iovec(iov_base: one.baseAddress, iov_len: one.count),
          iovec(iov_base: other.baseAddress, iov_len: other.count),
        ]
        return try runs.withUnsafeMutableBufferPointer { try body($0) }
      }
    }
  }

  // MARK: - Endings

  @Test("ends by close_notify, both ways, and can be answered after its own", arguments: versions)
  func closeNotify(version: ClosedRange<Int32>) async throws {
    var rig = try TLSRig()
    rig.far.version = version
    try await onLane { [rig] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      try await stream.writeAll(Array("bye".utf8), on: lane)
      stream.finishWriting()
      let write = try stream.write([1])
      #expect(write == .ended)
      #expect(try await onOwnThread { try far.receiveToEnd() } == Array("bye".utf8))
      try await onOwnThread {
        try far.send(Array("and you".utf8))
        far.close()
      }
      #expect(try await stream.readToEnd(on: lane) == Array("and you".utf8))
      #expect(stream.sawEnd)
    }
    // If we close first, we still send close_notify.
    try await onLane { [rig] lane in
      let (stream, far) = try await rig.accept(on: lane)
      try await stream.writeAll([7], on: lane)
      stream.close()
      #expect(try await onOwnThread { try far.receiveToEnd() } == [7])
    }
  }

  @Test("distinguishes a cut connection from an ended one")
  func truncated() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      try await onOwnThread {
        try far.send([1, 2, 3])
        far.cutOff()
      }
      #expect(try await stream.read(exactly: 3, on: lane) == [1, 2, 3])
      await #expect(throws: TLSFailure.truncated(.client)) { _ = try await stream.read(exactly: 1, on: lane) }
      // Every read fails, and our output still arrives.
      #expect(throws: TLSFailure.truncated(.client)) { _ = try stream.read() }
      try await stream.writeAll([9], on: lane)
      #expect(try await onOwnThread { try far.receive() } == [9])
    }
  }

  @Test("delivers bytes from before a fault, and then the fault")
  func fault() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      try await onOwnThread {
        try far.send([1, 2, 3])
        // An application data record with invalid content.
        far.sendRaw([0x17, 3, 3, 0, 20] + [UInt8](repeating: 0xAA, count: 20))
      }
      #expect(try await stream.read(exactly: 3, on: lane) == [1, 2, 3])
      await #expect(throws: TLSFailure.self) { _ = try await stream.read(exactly: 1, on: lane) }
      #expect(throws: TLSFarEnd.Failure.self) { _ = try far.receive() }
    }
  }

  @Test("notices that the other side is gone after its end, and drops what comes after that")
  func behindTheEnd() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      try await onOwnThread {
        far.finishWriting()
        far.sendRaw(Array("something that TLS has no place for".utf8))
      }
      #expect(try await stream.readToEnd(on: lane).isEmpty)
      let gate = Gate()
      let recorder = EventRecorder { if $0 == .endEncountered { gate.open() } }
      stream.delegate = recorder
      stream.finishWriting()
      far.drop()
      await gate.wait(on: lane)
      #expect(recorder.events == [.endEncountered])
    }
  }

  // MARK: - Messages after the handshake

  @Test("changes its keys on request, in the middle of its output")
  func keyUpdates() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      // More than the socket accepts, so that the answers come while a unit is held.
      let chunk = [UInt8](repeating: 0x42, count: 65_536)
      var sent = 0
      while !stream.hasPendingOutput { if case .moved(let count) = try stream.write(chunk) { sent += count } }
      try await onOwnThread {
        for _ in 0..<5 { try far.updateKeys(askingForAnswer: true) }
        try far.send([1])
      }
      #expect(try await stream.read(exactly: 1, on: lane) == [1])
      let before = sent
      async let received = onOwnThread { try far.receive(exactly: before + chunk.count) }
      try await stream.writeAll(chunk, on: lane)
      let all = try await received
      #expect(all.count == before + chunk.count && all.allSatisfy { $0 == 0x42 })
    }
  }

  @Test("refuses endless key updates")
  func keyUpdateFlood() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      try await onOwnThread { for _ in 0..<100 { try far.updateKeys(askingForAnswer: false) } }
      await #expect(throws: TLSFailure.tooManyKeyUpdates(.client)) { _ = try await stream.read(exactly: 1, on: lane) }
    }
  }

  @Test("lets the lane continue when key updates and single bytes alternate, and loses nothing")
  func keyUpdatesBetweenBytes() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      let count = 100
      try await onOwnThread {
        for place in 0..<count {
          for _ in 0..<6 { try far.updateKeys(askingForAnswer: false) }
          try far.send([UInt8(place)])
        }
      }
      var received: [UInt8] = []
      var run = [UInt8](repeating: 0, count: 65_536)
      for _ in 0..<10_000 where received.count < count {
        let transfer = try run.withUnsafeMutableBytes { try stream.read(into: $0) }
        if case .moved(let some) = transfer {
          #expect(some < 10)
          received += run[..<some]
        } else {
          try await Task.sleep(for: .milliseconds(1))
        }
      }
      #expect(received == (0..<count).map { UInt8($0) })
    }
  }

  @Test("sees the end of a peer that sent too many key updates before close_notify")
  func keyUpdatesAndTheEnd() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      try await onOwnThread {
        for _ in 0..<40 { try far.updateKeys(askingForAnswer: false) }
        far.finishWriting()
        far.sendRaw([1])
      }
      _ = try? await stream.readToEnd(on: lane)
      let gate = Gate()
      stream.delegate = EventRecorder { if $0 == .endEncountered { gate.open() } }
      stream.finishWriting()
      far.drop()
      await gate.wait(on: lane)
    }
  }

  @Test("refuses renegotiation, and continues")
  func renegotiation() async throws {
    var rig = try TLSRig()
    rig.far.version = TLS1_2_VERSION...TLS1_2_VERSION
    try await onLane { [rig] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      async let refused: TLSFarEnd.Failure? = onOwnThread {
        do {
          try far.renegotiate()
          return nil
        } catch let failure as TLSFarEnd.Failure { return failure }
      }
      // The client reads the request and refuses it.
      await #expect(throws: (any Error).self) { _ = try await stream.read(exactly: 1, on: lane) }
      let said = try await refused
      #expect(said?.description == "no renegotiation")
    }
  }
}
