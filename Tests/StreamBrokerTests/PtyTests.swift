// pty://: a serial port for programs that open and close it.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A pty endpoint", .timeLimit(.minutes(5)))
struct PtyTests {
  private let broker = Broker(Schemes.standard)

  @Test("survives programs that open and close it, and stays silent while none is there")
  func programs() async throws {
    let folder = try TemporaryFolder()
    try await onLane { lane in
      let stream = try await broker.open("pty://\(folder / "modem")", on: lane)
      defer { stream.close() }
      for round in 1...10 {
        let said = Array("program \(round)".utf8)
        try await stream.writeAll(said, on: lane)
        let program = try await onOwnThread {
          let program = try openTerminal(folder / "modem")
          try program.send(said.reversed())
          return program
        }
        #expect(try await stream.read(exactly: said.count, on: lane) == said.reversed())
        #expect(try await onOwnThread { try program.receive(exactly: said.count) } == said)
        program.close()
        let recorder = EventRecorder()
        stream.delegate = recorder
        stream.readerWaits = .readable
        let pause = Gate()
        lane.poller.timers.after(.milliseconds(30)) { pause.open() }
        await pause.wait(on: lane)
        #expect(recorder.events.isEmpty)
        stream.readerWaits = []
      }
    }
  }

  @Test("can be opened with parity, as Modbus programs do, at the same rate again and again")
  func parity() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "modem"
    try await onLane { lane in
      let stream = try await broker.open("pty://\(path)", on: lane)
      defer { stream.close() }
      // Looks on without an end of its own: after each program's end CLOCAL is cleared, and a program that sets parity
      // in that moment fails (decision N11).
      let watching = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK)
      defer { close(watching) }
      for turn in 0...5 {
        let isSet = try await onOwnThread {
          let raw = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK)
          defer { close(raw) }
          var modes = termios()
          tcgetattr(raw, &modes)
          modes.c_cflag |= tcflag_t(PARENB | CLOCAL | CREAD)
          return tcsetattr(raw, TCSANOW, &modes) == 0
        }
        #expect(isSet || turn == 0)  // the first may meet the end of the opening, which clears CLOCAL, too
        try await waitUntil("it is ready for the next program", on: lane) {
          var modes = termios()
          return tcgetattr(watching, &modes) == 0 && modes.c_cflag & tcflag_t(CLOCAL) == 0
        }
      }
    }
  }

  @Test("knows at its end what programs have not read yet")
  func unread() async throws {
    let folder = try TemporaryFolder()
    let said = Array("last words".utf8)
    try await onLane { lane in
      let stream = try await broker.open("pty://\(folder / "modem")", on: lane)
      let program = try await onOwnThread { try openTerminal(folder / "modem") }
      // So only its user, and root, can open it again.
      #expect(try program.exclude())
      try await stream.writeAll(said, on: lane)
      try await waitUntil("the kernel has passed it on", on: lane) { stream.undelivered == .lostAtClose(said.count) }
      #expect(try await onOwnThread { try program.receive(exactly: said.count) } == said)
      stream.prepareToClose()
      #expect(stream.undelivered == .lostAtClose(0))
      program.close()
      try await waitUntil("nobody is there", on: lane) { stream.undelivered == .none }
      stream.close()
    }
  }

  @Test("does not wait for absent programs")
  func nobody() async throws {
    let folder = try TemporaryFolder()
    try await onLane { lane in
      let stream = try await broker.open("pty://\(folder / "modem")", on: lane)
      try await stream.writeAll(Array("for nobody".utf8), on: lane)
      #expect(stream.undelivered != .none, "a program may still come")
      stream.prepareToClose()
      #expect(stream.undelivered == .none)
      stream.close()
    }
  }

  @Test("has a link while it is open, gets it again right after a close, and none afterwards")
  func link() async throws {
    let folder = try TemporaryFolder()
    try await onLane { lane in
      for _ in 0..<20 {
        let stream = try await broker.open("pty://\(folder / "modem")", on: lane)
        #expect(FileSystem.target(of: folder / "modem")?.hasPrefix("/dev/pts/") == true)
        stream.close()
        stream.close()
      }
      let opening = try broker.connector("pty://\(folder / "modem")")
        .open(OpenRequest(discardsInput: false), on: lane.poller) { _ in Issue.record("was given up") }
      opening.cancel()
    }
    #expect(await eventually { FileSystem.target(of: folder / "modem") == nil })
  }

  @Test("can be opened by any program again after one with exclusive access has gone")
  func exclusion() async throws {
    let folder = try TemporaryFolder()
    try await onLane { lane in
      let stream = try await broker.open("pty://\(folder / "modem")", on: lane)
      let isExclusive = try await onOwnThread {
        let program = try openTerminal(folder / "modem").take()
        #expect(ioctl(program.raw, UInt(TIOCEXCL), 0) == 0)
        _ = consume program
        let next = try openTerminal(folder / "modem").take()  // root may open it
        var isExclusive: Int32 = 1
        for _ in 0..<10_000 where isExclusive != 0 {
          #expect(ioctl(next.raw, 0x8004_5440, &isExclusive) == 0)  // TIOCGEXCL
          usleep(1000)
        }
        return isExclusive
      }
      #expect(isExclusive == 0)
      stream.close()
    }
  }

  @Test("waits for the folder of its link")
  func folder() throws {
    #expect(try PtyConnector(EndpointURL("pty:///run/modems/a")).node == "/run/modems")
  }

  @Test("is the same device behind any link to its folder")
  func realDevice() throws {
    let folder = try TemporaryFolder()
    #expect(symlink(".", folder / "again") == 0)
    let names = try ["modem", "again/modem"].map { try PtyConnector(EndpointURL("pty://\(folder / $0)")).realDevice }
    #expect(names[0] == names[1] && names[0] == "pty://\(folder / "modem")")
  }
}

/// Checks again and again, up to ten seconds: the kernel does not report this change.
private func waitUntil(_ what: String, on lane: isolated Lane, _ condition: () throws -> Bool) async throws {
  for _ in 0..<2000 {
    if try condition() { return }
    let pause = Gate()
    lane.poller.timers.after(.milliseconds(5)) { pause.open() }
    await pause.wait(on: lane)
  }
  Issue.record("never: \(what)")
}
