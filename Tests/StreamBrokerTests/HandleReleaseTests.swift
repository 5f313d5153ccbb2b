// Closing a handle: the device is free again for the same program, and for others when `close(within:)` returns.

import ByteStreams
import Dispatch
import Glibc
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

private func lockFile(of pty: Pty) -> String {
  "/var/lock/LCK..\(pty.node.dropFirst(5).replacing("/", with: "_"))"
}

@Suite("A handle that is closed", .timeLimit(.minutes(5)))
struct HandleReleaseTests {
  @Test("can be opened again at once", arguments: ["close", "abort", "release"])
  func again(how: String) async throws {
    let pty = try makePty()
    defer { pty.unplug() }
    for _ in 0..<50 {
      let stream = try await Broker.standard.connect("tty://\(pty.path)")
      switch how {
      case "close": stream.close()
      case "abort": stream.abort()
      default: break
      }
    }
  }

  @Test("leaves no lock file when close(within:) has returned")
  func lock() async throws {
    let pty = try makePty()
    for _ in 0..<20 {
      let stream = try await Broker.standard.connect("tty://\(pty.path)")
      #expect(access(lockFile(of: pty), F_OK) == 0)
      try await stream.close(within: .seconds(10))
      #expect(access(lockFile(of: pty), F_OK) != 0)
      try await stream.close(within: .seconds(10))
    }
  }

  @Test("and the endpoint has got every byte when close(within:) has returned")
  func delivered() async throws {
    let (stream, far) = try await connectedPair()
    try await stream.write([UInt8](repeating: 7, count: 50_000))
    async let closing: Void = stream.close(within: .seconds(10))
    #expect(try far.receive(exactly: 50_000) == [UInt8](repeating: 7, count: 50_000))
    far.close()
    try await closing
  }

  @Test("close(within:) gives up at its time, and when its task is cancelled; an opening waits meanwhile")
  func limits() async throws {
    let pty = try makePty()
    let stream = try await Broker.standard.connect("tty://\(pty.path)")
    let queue = DeviceQueue.of("tty://\(pty.path)")
    let mayEnd = DispatchSemaphore(value: 0)
    queue.queue.async { mayEnd.wait() }
    let error = await #expect(throws: SystemError.self) { try await stream.close(within: .milliseconds(20)) }
    #expect(error?.errno == ETIMEDOUT)
    let task = Task { try await stream.close(within: .seconds(30)) }
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
    let failure = await #expect(throws: OpenFailure.self) {
      try await Broker.standard.connect("tty://\(pty.path)", timeout: .milliseconds(50))
    }
    #expect(failure?.cause?.errno == ETIMEDOUT)
    async let next = Broker.standard.connect("tty://\(pty.path)")
    mayEnd.signal()
    try await next.close(within: .seconds(10))
  }

  @Test("does not wait for the close of another device, whose driver hangs")
  func neighbour() async throws {
    let mayEnd = DispatchSemaphore(value: 0)
    // Streams take their lanes in turns, so one hangs on each lane.
    let ptys = try (0...LanePool.most).map { _ in try makePty() }
    defer {
      for pty in ptys {
        mayEnd.signal()
        pty.unplug()
      }
    }
    for pty in ptys.dropFirst() {
      let stream = try await Broker.standard.connect("tty://\(pty.path)")
      DeviceQueue.of("tty://\(pty.path)").queue.async { mayEnd.wait() }
      stream.abort()
    }
    for _ in 0..<2 {
      let stream = try await Broker.standard.connect("tty://\(ptys[0].path)")
      try await stream.close(within: .seconds(10))
    }
  }

  @Test("ends the loop over its events, and so does an opening that fails")
  func events() async throws {
    for url in ["sim://echo", "tty:///dev/none"] {
      let observer = StreamObserver()
      let loop = Task {
        var last: StreamEvent?
        for await event in observer.events { last = event }
        return last
      }
      try? await Broker.standard.connect(url, observer: observer).close()
      #expect(await loop.value == .closed)
    }
  }
}
