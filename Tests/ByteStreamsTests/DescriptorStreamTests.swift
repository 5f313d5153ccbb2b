// Streams over real sockets and ptys: how each end of a stream is reported, and what the kernel's unusual answers mean.

import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams

@Suite("A descriptor's stream", .timeLimit(.minutes(5)))
struct DescriptorStreamTests {
  @Test("reports the end when the other side of a pty closed, though read(2) fails with EIO")
  func ptyEnd() async throws {
    let pty = try makePty()
    try await onLane { lane in
      let stream = try pty.master.stream(on: lane.poller)
      defer { stream.close() }
      #expect(try stream.readSome() == nil)
      pty.letGo()
      #expect(try stream.read() == .ended)
    }
  }

  @Test("reads what a device said before it was pulled, and then the end")
  func unplugged() async throws {
    let pty = try makePty()
    let slave = FarEnd(try pty.openSlave(), isSocket: false)
    try pty.master.send([1, 2, 3])
    pty.unplug()
    try await onLane { lane in
      let stream = try slave.stream(on: lane.poller)
      defer { stream.close() }
      var received: [UInt8] = []
      let gate = Gate()
      let recorder = EventRecorder { _ in
        do { while let more = try stream.readSome() { received += more } } catch { Issue.record(error) }
        if stream.sawEnd { gate.open() }
      }
      stream.delegate = recorder
      stream.readerWaits = .readable
      await gate.wait(on: lane)
      #expect(received == [1, 2, 3] || received == [])  // Linux may drop the bytes, but never hangs or fails
    }
  }

  @Test(
    "keeps no more unsent than it may, on each kind of socket, and the usual amount afterwards",
    arguments: [true, false])
  func unsent(isTCP: Bool) async throws {
    let (near, far) = isTCP ? try FarEnd.tcpPair() : try FarEnd.pair()
    defer { far.close() }
    if isTCP { try far.receivesLittle() }
    try await onLane { lane in
      let stream = DescriptorStream(
        try near.take(), kind: isTCP ? .tcp(wasDialled: false) : .socket, on: lane.poller)
      defer { stream.close() }
      let usual = SocketOptions.value(stream.raw, SOL_SOCKET, SO_SNDBUF)
      stream.limitUnsent(to: 4096)
      // Pieces of 500 bytes, until the kernel takes no more for a while.
      let piece = [UInt8](repeating: 7, count: 500)
      var taken = 0
      while taken < 1 << 20 {
        let transfer = try piece.withUnsafeBytes { try stream.write($0) }
        guard case .moved(let count) = transfer else { break }
        taken += count
      }
      // Over TCP the receiver's buffer holds some of it.
      #expect(taken >= 1500 && taken <= (isTCP ? 300_000 : 10_000), "\(taken)")
      stream.limitUnsent(to: 0)
      if isTCP {
        #expect(SocketOptions.value(stream.raw, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT) == 0)
      } else {
        #expect(SocketOptions.value(stream.raw, SOL_SOCKET, SO_SNDBUF) == usual)
      }
    }
  }

  @Test("throws a reset, with its errno")
  func reset() async throws {
    let (near, far) = try FarEnd.tcpPair()
    try await onLane { lane in
      let stream = try near.stream(on: lane.poller, isTCP: true)
      defer { stream.close() }
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.readerWaits = .readable
      far.reset()
      await gate.wait(on: lane)
      #expect(throws: SystemError("read", ECONNRESET)) { try stream.read() }
    }
  }

  @Test("still reads an answer after it has finished writing")
  func halfClose() async throws {
    let (near, far) = try FarEnd.tcpPair()
    async let answer = onOwnThread {
      let received = try far.receiveToEnd()
      try far.send(received.reversed())
      far.close()
    }
    try await onLane { lane in
      let stream = try near.stream(on: lane.poller, isTCP: true)
      defer { stream.close() }
      #expect(stream.closeBehavior.canHalfClose)
      #expect(try stream.write([1, 2, 3]) == .moved(3))
      stream.finishWriting()
      #expect(try await stream.readToEnd(on: lane) == [3, 2, 1])
    }
    try await answer
  }

  @Test("reports the end once when both sides have finished and nothing reads or writes")
  func bothEnded() async throws {
    let (near, far) = try FarEnd.tcpPair()
    try await onLane { lane in
      let stream = try near.stream(on: lane.poller, isTCP: true)
      far.close()
      _ = try await stream.readToEnd(on: lane)
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.readerWaits = []
      stream.finishWriting()
      await gate.wait(on: lane)
      #expect(recorder.events == [.endEncountered])
      stream.close()
    }
  }

  @Test("reports once that the other side finished or broke while nothing reads", arguments: [false, true])
  func lastByte(isReset: Bool) async throws {
    let (near, far) = try FarEnd.tcpPair()
    try await onLane { lane in
      let stream = try near.stream(on: lane.poller, isTCP: true)
      defer { stream.close() }
      let received = Gate()
      let reported = Gate()
      let recorder = EventRecorder { event in
        stream.readerWaits = []
        if event == .inputEnded { reported.open() } else { received.open() }
      }
      stream.delegate = recorder
      stream.readerWaits = .readable
      try far.send([1, 2, 3])
      await received.wait(on: lane)  // leaves the bytes unread, as a reader without space does
      if isReset { far.reset() } else { far.close() }
      await reported.wait(on: lane)
      // The set is level-triggered, so a second report would arrive within these 20 ms.
      let later = Gate()
      lane.poller.timers.after(.milliseconds(20)) { later.open() }
      await later.wait(on: lane)
      #expect(recorder.events == [.hasBytesAvailable, .inputEnded])
      #expect(try stream.readSome() == [1, 2, 3])
    }
  }

  @Test("waits after a short write without asking the full kernel, and gets an event when there is space")
  func shortWrite() async throws {
    let (near, far) = try FarEnd.pair()
    try await onLane { lane in
      let stream = try near.stream(on: lane.poller)
      defer { stream.close() }
      let bytes = [UInt8](repeating: 7, count: 8 << 20)
      guard case .moved(let first) = try stream.write(bytes) else { throw SystemError("nothing taken", 0) }
      try #require(first < bytes.count)
      #expect(try stream.write(bytes) == .blocked(until: .writable))
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.writerWaits = .writable
      _ = try far.receive(exactly: first)
      await gate.wait(on: lane)
      #expect(recorder.events.first == .hasSpaceAvailable)
      guard case .moved = try stream.write(bytes) else { throw SystemError("no space after all", 0) }
    }
  }

  @Test("wakes a reader that waits for space and a writer that waits for bytes")
  func crossedWishes() async throws {
    let (near, far) = try FarEnd.pair()
    try await onLane { lane in
      let stream = try near.stream(on: lane.poller)
      defer { stream.close() }
      let gate = Gate()
      let recorder = EventRecorder { event in
        if event == .hasBytesAvailable { stream.readerWaits = [] } else { gate.open() }
      }
      stream.delegate = recorder
      stream.readerWaits = .writable
      stream.writerWaits = .readable
      try far.send([1])
      await gate.wait(on: lane)
      #expect(Set(recorder.events.map { "\($0)" }) == ["hasBytesAvailable", "hasSpaceAvailable"])
      stream.writerWaits = []
    }
  }

  @Test("sends no events after it was closed, not even pending ones")
  func closedInside() async throws {
    let (near, far) = try FarEnd.pair()
    try far.send([1])
    try await onLane { lane in
      let stream = try near.stream(on: lane.poller)
      let gate = Gate()
      let recorder = EventRecorder { _ in
        stream.close()
        gate.open()
      }
      stream.delegate = recorder
      stream.readerWaits = .readable
      stream.writerWaits = .writable
      await gate.wait(on: lane)
      #expect(recorder.events == [.hasSpaceAvailable])
      #expect(try stream.read() == .ended && stream.write([1]) == .ended)
      stream.close()
      stream.abort()
      stream.readerWaits = []
    }
    far.close()
  }

  @Test("aborts with a reset that the other side sees")
  func abort() async throws {
    let (near, far) = try FarEnd.tcpPair()
    try await onLane { lane in try near.stream(on: lane.poller, isTCP: true).abort() }
    await #expect(throws: SystemError("receive", ECONNRESET)) { try await onOwnThread { try far.receiveToEnd() } }
  }

  @Test("reports a descriptor that cannot be polled in a separate turn")
  func unpollable() async throws {
    let device = FarEnd(Descriptor(owning: open("/dev/null", O_RDWR | O_CLOEXEC)), isSocket: false)
    try await onLane { lane in
      let stream = try device.stream(on: lane.poller)
      defer { stream.close() }
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.readerWaits = .readable
      #expect(recorder.events.isEmpty)
      await gate.wait(on: lane)
      #expect(recorder.events == [.errorOccurred(SystemError("epoll_ctl", EPERM))])
    }
  }
}
