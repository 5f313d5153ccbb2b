// Events, waits and endings of Foundation's streams, in the order that Foundation's documents give.

import ByteStreams
import Foundation
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerCore
@testable import StreamBrokerFoundation

private func schedule(_ streams: [Stream], _ recorder: Recorder, mode: RunLoop.Mode = .default) {
  for stream in streams {
    stream.delegate = recorder
    stream.schedule(in: .current, forMode: mode)
    stream.open()
  }
}

@Suite("Foundation's streams", .timeLimit(.minutes(5)))
struct StreamEventTests {
  @Test("report open, bytes and end in order, and space once until something is written")
  func order() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      let recorder = Recorder()
      schedule([input, output], recorder)
      #expect(runLoop { recorder.events.count >= 3 })
      try far.send(Array("hello".utf8))
      far.finishWriting()
      #expect(runLoop { recorder.names("in").contains("end") })
      #expect(recorder.names("in") == ["open", "bytes", "end"])
      #expect(recorder.names("out") == ["open", "space"])
      #expect(recorder.received == Array("hello".utf8))
      #expect(input.streamStatus == .atEnd && output.streamStatus == .open)
      #expect(output.write([1], maxLength: 1) == 1)
      #expect(runLoop { recorder.names("out") == ["open", "space", "space"] })
      #expect(try far.receive(exactly: 1) == [1])
      input.close()
      output.close()
      let count = recorder.events.count
      idle()
      #expect(recorder.events.count == count, "no event after close()")
    }
  }

  @Test("report bytes again only after a read, and then all that is left")
  func again() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      let recorder = Recorder()
      recorder.readsAtOnce = nil
      schedule([input], recorder)
      try far.send([1, 2, 3])
      #expect(runLoop { recorder.names("in") == ["open", "bytes"] })
      try far.send([4])
      idle()
      #expect(recorder.names("in") == ["open", "bytes"])
      var byte: UInt8 = 0
      #expect(input.read(&byte, maxLength: 1) == 1 && byte == 1)
      recorder.readsAtOnce = 1
      #expect(runLoop { recorder.received == [2, 3, 4] })
      #expect(recorder.names("in") == ["open", "bytes", "bytes", "bytes", "bytes"])
      output.close()
    }
  }

  @Test("keep their run loop waiting while nothing happens")
  func waiting() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      let recorder = Recorder()
      schedule([input], recorder)
      #expect(runLoop { recorder.names("in") == ["open"] })
      let began = Date()
      #expect(RunLoop.current.run(mode: .default, before: Date(timeIntervalSinceNow: 0.1)))
      #expect(Date().timeIntervalSince(began) >= 0.09)
      output.close()
    }
  }

  @Test("call their delegate in the modes they are scheduled in, and no longer after the removal")
  func modes() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      let recorder = Recorder()
      let own = RunLoop.Mode("own")
      input.delegate = recorder
      input.schedule(in: .current, forMode: own)
      input.open()
      idle()
      #expect(recorder.events.isEmpty)
      #expect(runLoop(own) { recorder.names("in") == ["open"] })
      input.schedule(in: .current, forMode: .default)
      try far.send([1])
      #expect(runLoop { recorder.received == [1] })
      input.remove(from: .current, forMode: .default)
      try far.send([2])
      idle()
      #expect(recorder.received == [1])
      #expect(runLoop(own) { recorder.received == [1, 2] })
      input.remove(from: .current, forMode: own)
      try far.send([3])
      idle(own)
      #expect(recorder.received == [1, 2])
      output.close()
    }
  }

  @Test("take a part of a write that there is no room for, and stop a device that nobody reads")
  func bounded() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      input.open()
      output.open()
      let big = [UInt8](repeating: 7, count: 1 << 20)
      var taken = output.write(big, maxLength: big.count)
      #expect(taken > 0 && taken < big.count)
      var quiet = Date(timeIntervalSinceNow: 0.3)
      while Date() < quiet {
        guard output.hasSpaceAvailable else { continue }
        taken += output.write(big, maxLength: big.count)
        quiet = Date(timeIntervalSinceNow: 0.3)
      }
      #expect(taken < 2 << 20)
      #expect(try far.receive(exactly: taken) == [UInt8](repeating: 7, count: taken))
      var sent = 0
      for _ in 0..<10 {
        sent += try far.sendUntilFull(8)
        usleep(30_000)
      }
      #expect(sent > 0 && sent < 2 << 20)
      var received = 0
      var piece = [UInt8](repeating: 0, count: 65_536)
      while received < sent { received += input.read(&piece, maxLength: piece.count) }
      #expect(received == sent)
    }
  }

  @Test("end a read and a write that wait in another thread when they are closed")
  func closedWhileWaiting() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      nonisolated(unsafe) let (reader, writer) = (input, output)
      input.open()
      output.open()
      let results = Kept<[String: Int]>([:])
      Thread.detachNewThread {
        var byte: UInt8 = 0
        let result = reader.read(&byte, maxLength: 1)
        results.change { $0["read"] = result }
      }
      Thread.detachNewThread {
        let big = [UInt8](repeating: 7, count: 1 << 20)
        var result = 1
        while result > 0 { result = writer.write(big, maxLength: big.count) }
        results.change { $0["write"] = result }
      }
      usleep(100_000)
      #expect(results.value.isEmpty)
      input.close()
      output.close()
      #expect(runLoop { results.value == ["read": -1, "write": -1] })
      far.close()
    }
  }

  @Test("half-close with the output, and close the endpoint when both are closed, or released")
  func halfClose() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      input.open()
      output.open()
      #expect(output.write([1, 2], maxLength: 2) == 2)
      output.close()
      #expect(try far.receive(upTo: 10) == [1, 2])
      #expect(try far.receive(upTo: 10) == [])
      try far.send([3, 4])
      var bytes = [UInt8](repeating: 0, count: 2)
      #expect(input.read(&bytes, maxLength: 1) == 1 && bytes[0] == 3)
      input.close()
      far.close()
    }
    let far = try await echoless.run { input, output, far in
      input.open()
      output.open()
      #expect(output.write([5], maxLength: 1) == 1)
      return far
    }
    try await onThread {
      let first = try far.receive(upTo: 10)
      #expect(first == [5])
      let second = try far.receive(upTo: 10)
      #expect(second == [], "releasing both closes")
    }
  }

  @Test("close the endpoint when both are closed, or released, and not before", arguments: ["close", "release"])
  func bothClosed(how: String) async throws {
    let echoless = try Echoless()
    // Holds the handle and not its owner.
    let (handle, far) = try await onThread { [link = try await echoless.link()] in
      let far = try echoless.server.accept()
      let (input, output) = link.streams()
      input.open()
      output.open()
      #expect(output.write([5], maxLength: 1) == 1)
      if how == "close" {
        output.close()
        #expect(try far.receive(exactly: 2) == [5])
        #expect(link.handle.status == .open)
        input.close()
      }
      return (link.handle, far)
    }
    #expect(await eventually { handle.status == .closed })
    far.close()
  }

  @Test("deliver after both are closed what they had taken, to a far end that reads later")
  func delivered() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      input.open()
      output.open()
      var taken = 0
      for _ in 0..<4 { taken += output.write([UInt8](repeating: 7, count: 1 << 20), maxLength: 1 << 20) }
      input.close()
      output.close()
      usleep(100_000)
      let received = try far.receive(exactly: taken + 1)
      #expect(received.count == taken)
    }
  }

  @Test("give up 5 s after both are closed what the endpoint does not take, and no earlier", .waits)
  func drainLimit() async throws {
    let echoless = try Echoless()
    let link = try await echoless.link(isFull: true)
    try await onThread {
      let (input, output) = link.streams()
      let far = try echoless.server.accept()
      input.open()
      output.open()
      #expect(output.write([1, 2, 3], maxLength: 3) == 3)
      let began = DispatchTime.now()
      input.close()
      output.close()
      while link.handle.status == .open, DispatchTime.now() < began + .seconds(30) { usleep(10_000) }
      #expect(link.handle.status == .closed && DispatchTime.now() >= began + .milliseconds(4900))
      let received = try far.receive(upTo: 10)
      #expect(received == [], "the end")
    }
  }

  @Test("that are not open, or closed, take and give nothing")
  func notOpen() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      var byte: UInt8 = 0
      #expect(input.read(&byte, maxLength: 1) == -1 && output.write([1], maxLength: 1) == -1)
      #expect(!input.hasBytesAvailable && !output.hasSpaceAvailable)
      #expect(input.streamStatus == .notOpen && input.streamError == nil)
      input.open()
      input.open()
      #expect(input.read(&byte, maxLength: 0) == 0)
      input.close()
      input.close()
      input.open()
      #expect(input.streamStatus == .closed && input.read(&byte, maxLength: 1) == -1)
      output.close()
      output.open()
      #expect(output.streamStatus == .closed && output.write([1], maxLength: 1) == -1)
      let last = try far.receive(upTo: 1)
      #expect(last == [])
    }
  }

  @Test("report the error of a link to an output that writes nothing, however early it breaks", arguments: 0..<50)
  func idleOutput(round: Int) async throws {
    let echoless = try Echoless()
    try await echoless.run(failing: 1) { input, output, far in
      let recorder = Recorder()
      schedule([output], recorder)
      #expect(runLoop { recorder.names("out").last == "error" })
      #expect(output.errorCode == Int(EIO))
      far.close()
    }
  }

  @Test("show an end only after the bytes before it, and keep the first end")
  func endAfterBytes() async throws {
    let echoless = try Echoless()
    let link = try await echoless.link()
    try await onThread {
      let (input, output) = link.streams()
      let far = try echoless.server.accept()
      let recorder = Recorder()
      recorder.readsAtOnce = nil
      schedule([input, output], recorder)
      try far.send([1, 2])
      far.finishWriting()
      #expect(runLoop { link.input.locked { $0.hasEnded } && recorder.names("in") == ["open", "bytes"] })
      #expect(input.streamStatus == .open && input.hasBytesAvailable)
      var bytes = [UInt8](repeating: 0, count: 3)
      #expect(input.read(&bytes, maxLength: 3) == 2)
      #expect(runLoop { recorder.names("in") == ["open", "bytes", "end"] })
      #expect(input.streamStatus == .atEnd)
      link.lost(.lost(nil))
      #expect(runLoop { recorder.names("out").last == "end" })
      link.lost(.lost(SystemError("write", EIO)))
      #expect(output.streamStatus == .atEnd && output.streamError == nil)
      input.close()
      output.close()
    }
  }

  @Test("report one error at whichever call the endpoint breaks, and leave nothing", arguments: 1...16)
  func breaks(step: Int) async throws {
    let echoless = try Echoless()
    try await expectNoDescriptorLeak {
      try await echoless.run(failing: step) { input, output, far in
        let recorder = Recorder()
        recorder.react = { stream, event in
          if event == .hasSpaceAvailable {
            _ = (stream as! OutputStream).write([UInt8](repeating: 1, count: 100), maxLength: 100)
          }
        }
        schedule([input, output], recorder)
        recorder.sends = far
        #expect(runLoop { recorder.hasErrors })
        for name in ["in", "out"] {
          let names = recorder.names(name)
          #expect(names.first == "open" && names.last == "error")
          #expect(names.count { $0 == "error" || $0 == "end" } == 1)
        }
        #expect(input.errorCode == Int(EIO) && output.errorCode == Int(EIO))
        #expect(input.streamStatus == .error)
        #expect(output.streamStatus == .error)
        input.close()
        output.close()
        far.close()
      }
    }
  }

  @Test(
    "may be closed or released in any callback",
    arguments: ["close", "close both", "release", "release both"], 1...8)
  func endInCallback(how: String, number: Int) async throws {
    let echoless = try Echoless()
    try await expectNoDescriptorLeak {
      let link = try await echoless.link()
      try await onThread {
        let recorder = Recorder()
        // Nothing else may hold them.
        func make() -> [Stream] {
          let (input, output) = link.streams()
          return [input, output]
        }
        var streams: [Stream]? = make()
        let far = try echoless.server.accept()
        schedule(streams!, recorder)
        recorder.react = { stream, event in
          if recorder.events.count < number {
            if event == .hasSpaceAvailable { _ = (stream as! OutputStream).write([1], maxLength: 1) }
            return
          }
          switch how {
          case "close": stream.close()
          case "close both": for stream in streams ?? [] { stream.close() }
          case "release": streams?.removeAll { $0 === stream }
          default: streams = nil
          }
        }
        let began = DispatchTime.now()
        while recorder.events.count < number, DispatchTime.now() < began + .seconds(Patience.seconds) {
          try? far.send([2, 3])
          idle(.default, 0.01)
        }
        #expect(recorder.events.count >= number)
        for _ in 0..<3 {
          try? far.send([2, 3])
          idle(.default, 0.01)
        }
        streams = nil
      }
    }
  }
}
