// The master side of a pty that programs open one after the other.

import CLinux
import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams

/// A pty whose slave programs open; no program has it open yet.
private final class Terminal {
  let master: Descriptor
  let path: String

  private init(master: consuming Descriptor, path: String) {
    self.master = master
    self.path = path
  }

  static func make() throws -> Terminal {
    var name = [CChar](repeating: 0, count: 64)
    let raw = linux_open_pty(&name, name.count)
    try #require(raw >= 0)
    let path = String(decoding: name.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    let terminal = Terminal(master: Descriptor(owning: raw), path: path)
    _ = try terminal.user()
    try PtyMaster.refresh(raw, allIsRead: true)
    return terminal
  }

  func user() throws -> Descriptor {
    let raw = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    guard raw >= 0 else { throw SystemError("open") }
    return Descriptor(owning: raw)
  }

  /// Uses a duplicate as the gateway does: the pty outlives the stream.
  func stream(
    offered: PtySettings? = nil, on poller: Poller,
    reported: @escaping (PtyClientStream.Departure) -> Void = { _ in }
  ) -> PtyClientStream {
    PtyClientStream(
      Descriptor(owning: fcntl(master.raw, F_DUPFD_CLOEXEC, 0)), offered: offered, on: poller, onDeparture: reported)
  }
}

private func write(_ user: Int32, _ text: String) {
  #expect(Glibc.write(user, text, text.utf8.count) == text.utf8.count)
}

/// Waits until no process has the slave open. A process that another test is just starting may keep it open a little
/// longer than this one.
private func hangUp(_ terminal: Terminal) throws {
  for _ in 0..<Patience.milliseconds where !PtyMaster.isHungUp(terminal.master.raw) { usleep(1000) }
  try #require(PtyMaster.isHungUp(terminal.master.raw))
}

@Suite("A pty's stream", .timeLimit(.minutes(5)))
struct PtyClientStreamTests {
  @Test("carries bytes, however they are written")
  func layer() async throws {
    try await onLane { lane in
      // The terminal goes out of scope, so that its user sees the stream's end.
      let (stream, user) = try {
        let terminal = try Terminal.make()
        return (terminal.stream(on: lane.poller), FarEnd(try terminal.user(), isSocket: false))
      }()
      try await LayerCarriage(stream, to: user).run(on: lane)
    }
  }

  @Test("forwards what it does not answer itself", arguments: [true, false])
  func forwarding(aborting: Bool) async throws {
    try await onLane { lane in
      let terminal = try Terminal.make()
      let user = try terminal.user()
      let stream = terminal.stream(on: lane.poller)
      LayerForwarding(stream, over: try #require(stream.below as? DescriptorStream)).run(aborting: aborting)
      withExtendedLifetime((terminal, user.raw)) {}
    }
  }

  @Test("reads its user to the end, and then stays ended, whatever program opens the pty next")
  func overForGood() async throws {
    try await onLane { lane in
      let terminal = try Terminal.make()
      let first = try terminal.user()
      var reported: [PtyClientStream.Departure] = []
      let stream = terminal.stream(on: lane.poller) { reported.append($0) }
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      write(first.raw, "last words")
      _ = consume first
      try hangUp(terminal)
      let received = try stream.readSome()
      #expect(received == Array("last words".utf8))
      #expect(stream.sawEnd)
      let second = try terminal.user()
      write(second.raw, "not for him")
      await gate.wait(on: lane)
      let answers = (try stream.read(), try stream.write([1]))
      #expect(answers == (.ended, .ended) && recorder.events == [.endEncountered])
      #expect(PtyMaster.hasInput(terminal.master.raw))
      stream.close()
      stream.close()
      #expect(reported == [.closed(hungUp: true)])
    }
  }

  @Test("reports that its user has gone while nothing reads, and ends after the user's bytes")
  func unseen() async throws {
    try await onLane { lane in
      let terminal = try Terminal.make()
      let user = try terminal.user()
      var reported: [PtyClientStream.Departure] = []
      let stream = terminal.stream(on: lane.poller) { reported.append($0) }
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.readerWaits = .readable
      stream.readerWaits = []
      write(user.raw, "kept")
      _ = consume user
      await gate.wait(on: lane)
      #expect(recorder.events == [.inputEnded] && reported == [.leaving])
      // A program that opens the pty before the stream has been read to its end does not continue this stream.
      let second = try terminal.user()
      let received = try stream.readSome()
      #expect(received == Array("kept".utf8))
      #expect(stream.sawEnd)
      _ = consume second
      stream.close()
      #expect(reported == [.leaving, .closed(hungUp: true)])
    }
  }

  @Test("leaves nothing in the lane's set when it is closed, though its pty stays open")
  func closed() throws {
    let poller = try Poller { _ in }
    let terminal = try Terminal.make()
    let user = try terminal.user()
    let stream = terminal.stream(on: poller)
    stream.readerWaits = .readable
    write(user.raw, "here")
    #expect(poller.turn(waiting: 1000))
    stream.close()
    #expect(!poller.turn(waiting: 0))
  }

  @Test("knows what its user has not read, and waits for nothing when the user is gone")
  func unread() async throws {
    try await onLane { lane in
      let terminal = try Terminal.make()
      let user = try terminal.user()
      let stream = terminal.stream(on: lane.poller)
      #expect(stream.undelivered == .lostAtClose(0))
      #expect(try stream.write([1, 2, 3]) == .moved(3))
      #expect(stream.undelivered == .lostAtClose(3))
      var bytes = [UInt8](repeating: 0, count: 10)
      #expect(read(user.raw, &bytes, 10) == 3 && stream.undelivered == .lostAtClose(0))
      _ = try stream.write([1])
      _ = consume user
      try hangUp(terminal)
      #expect(stream.undelivered == .none)
      stream.close()
    }
  }
}

/// What a program does with tcsetattr(3).
private func set(_ user: Int32, _ change: (inout linux_termios) -> Void) {
  var modes = linux_termios()
  #expect(linux_tcgets2(user, &modes) == 0)
  change(&modes)
  #expect(linux_tcsets2(user, &modes) == 0)
}

@Suite("Settings of a pty", .timeLimit(.minutes(5)))
struct PtySettingsTests {
  private let offered = PtySettings(LineSettings(bitsPerSecond: 115_200))

  private func withUser(_ body: (PtyClientStream, Int32, Poller) throws -> Void) throws {
    let poller = try Poller { _ in }
    let terminal = try Terminal.make()
    offered.show(at: terminal.master.raw)
    let user = try terminal.user()
    let stream = terminal.stream(offered: offered, on: poller)
    try body(stream, user.raw, poller)
    stream.close()
  }

  @Test("are found changed before the bytes that follow, once")
  func order() throws {
    try withUser { stream, user, _ throws in
      set(user) { $0.output_rate = 250_000 }
      write(user, "after")
      #expect(try stream.read() == .blocked(until: .readable))
      let change = try #require(stream.takeChange())
      #expect(change.from == offered && change.to.bitsPerSecond == 250_000)
      #expect(try stream.readSome() == Array("after".utf8))
      #expect(stream.takeChange() == nil)
    }
  }

  @Test("leave bytes alone that were read before, and are found at the next read")
  func bytesBefore() throws {
    try withUser { stream, user, _ throws in
      write(user, "before")
      #expect(try stream.readSome() == Array("before".utf8))
      set(user) { $0.cflag |= UInt32(CSTOPB) }
      #expect(stream.takeChange() == nil)
      #expect(try stream.read() == .blocked(until: .readable))
      #expect(stream.takeChange()?.to.hasTwoStopBits == true)
    }
  }

  @Test("stop no bytes when nobody takes a change")
  func untaken() throws {
    try withUser { stream, user, _ throws in
      set(user) { $0.output_rate = 300 }
      write(user, "read anyway")
      #expect(try stream.read() == .blocked(until: .readable))
      #expect(try stream.readSome() == Array("read anyway".utf8))
    }
  }

  @Test("that a user sets right before it closes the pty are no change, unless bytes of it are unread")
  func atTheEnd() throws {
    for text in ["", "last"] {
      let poller = try Poller { _ in }
      let terminal = try Terminal.make()
      let user = try terminal.user()
      let stream = terminal.stream(offered: offered, on: poller)
      offered.show(at: terminal.master.raw)
      set(user.raw) { $0.output_rate = 9600 }
      if !text.isEmpty { write(user.raw, text) }
      _ = consume user
      try hangUp(terminal)
      let first = try stream.read()
      #expect(first == (text.isEmpty ? .ended : .blocked(until: .readable)))
      #expect((stream.takeChange() == nil) == text.isEmpty)
      if !text.isEmpty { #expect(try stream.readSome() == Array(text.utf8)) }
      stream.close()
    }
  }

  @Test("that were offered are no change, nor is a change that was taken back")
  func noChange() throws {
    try withUser { stream, user, _ throws in
      set(user) { $0.output_rate = 115_200 }
      #expect(try stream.read() == .blocked(until: .readable))
      #expect(stream.takeChange() == nil)
      set(user) { $0.output_rate = 9600 }
      #expect(try stream.read() == .blocked(until: .readable))
      set(user) { $0.output_rate = 115_200 }
      #expect(stream.takeChange() == nil)
    }
  }

  @Test("are looked at without bytes while somebody reads")
  func inSilence() throws {
    try withUser { stream, user, poller throws in
      let recorder = EventRecorder { _ in }
      stream.delegate = recorder
      stream.readerWaits = .readable
      stream.watchInSilence()
      set(user) { $0.iflag |= UInt32(IXON | IXOFF) }
      for _ in 0..<20 where recorder.events.isEmpty { _ = poller.turn(waiting: 1000) }
      #expect(recorder.events.first == .hasBytesAvailable)
      #expect(try stream.read() == .blocked(until: .readable))
      #expect(stream.takeChange()?.to.usesXonXoff == true)
    }
  }

  @Test("leave CLOCAL off, so that a program that asks for parity changes something that the kernel keeps")
  func parity() throws {
    let terminal = try Terminal.make()
    for _ in 0..<3 {
      offered.show(at: terminal.master.raw)
      let user = try terminal.user()
      var modes = termios()
      tcgetattr(user.raw, &modes)
      modes.c_cflag |= tcflag_t(PARENB | CLOCAL | CREAD)
      #expect(tcsetattr(user.raw, TCSANOW, &modes) == 0)
      _ = consume user
    }
  }

  @Test("are looked at together with CLOCAL, which is cleared while the program has the pty open; all else stays")
  func clocalWhileOpen() throws {
    try withUser { stream, user, _ throws in
      for rate in [speed_t(B9600), speed_t(B19200)] {
        var modes = termios()
        tcgetattr(user, &modes)
        cfsetspeed(&modes, rate)
        modes.c_cflag |= tcflag_t(CLOCAL | CREAD)
        modes.c_cc.4 = 7  // VQUIT, VINTR … any: it must survive
        #expect(tcsetattr(user, TCSANOW, &modes) == 0)
        write(user, "x")
        while try stream.read() == .blocked(until: .readable) { _ = stream.takeChange() }
        var now = termios()
        tcgetattr(user, &now)
        #expect(now.c_cflag & tcflag_t(CLOCAL) == 0 && cfgetospeed(&now) == rate && now.c_cc.4 == 7)
        // The same again, with parity.
        now.c_cflag |= tcflag_t(CLOCAL | PARENB)
        #expect(tcsetattr(user, TCSANOW, &now) == 0)
      }
    }
  }

  @Test("use XON/XOFF if both directions do; one alone changes nothing")
  func xonXoff() throws {
    let terminal = try Terminal.make()
    let user = try terminal.user()
    var before = offered
    for (flags, uses) in [(IXON, false), (IXON | IXOFF, true), (IXOFF, true), (IXON, true), (0, false), (IXOFF, false)]
    {
      set(user.raw) { $0.iflag = UInt32(flags) }
      before = try #require(PtySettings(of: terminal.master.raw, after: before))
      #expect(before.usesXonXoff == uses, "\(flags)")
    }
  }
}

@Suite("A pty between two users", .timeLimit(.minutes(5)))
struct PtyMasterTests {
  @Test("is in its initial state: raw, no echo, empty, not exclusive, and still delivers what the first user wrote")
  func refresh() throws {
    let terminal = try Terminal.make()
    let first = try terminal.user()
    var modes = termios()
    tcgetattr(first.raw, &modes)
    modes.c_iflag |= tcflag_t(ICRNL | IXON)
    modes.c_lflag |= tcflag_t(ECHO | ICANON | ISIG)
    #expect(tcsetattr(first.raw, TCSANOW, &modes) == 0)
    write(first.raw, "for the device")
    let flood = [UInt8](repeating: 10, count: 20_000)
    while Glibc.write(terminal.master.raw, flood, flood.count) > 0 {}
    if geteuid() == 0 { _ = ioctl(first.raw, UInt(TIOCEXCL), 0) }  // the test `exclusive` below covers other users
    tcflow(first.raw, TCOOFF)
    _ = consume first
    try hangUp(terminal)

    try PtyMaster.refresh(terminal.master.raw, allIsRead: false)
    let second = try terminal.user()
    tcgetattr(second.raw, &modes)
    #expect(modes.c_lflag & tcflag_t(ECHO | ICANON | ISIG) == 0 && modes.c_iflag & tcflag_t(ICRNL | IXON) == 0)
    usleep(20_000)  // input that the kernel did not flush would arrive now
    #expect(PtyMaster.unread(terminal.master.raw) == 0)
    write(second.raw, "!")
    var exclusive: Int32 = 1
    #expect(ioctl(second.raw, 0x8004_5440, &exclusive) == 0 && exclusive == 0)  // TIOCGEXCL
    var received = [UInt8](repeating: 0, count: 100)
    let count = read(terminal.master.raw, &received, 100)
    // Echo in between came from the flood.
    #expect(String(decoding: received.prefix(max(0, count)), as: UTF8.self).hasPrefix("for the device"))
  }

  @Test("delivers nothing that was echoed after its user had gone")
  func lateEcho() throws {
    let terminal = try Terminal.make()
    let user = try terminal.user()
    var modes = termios()
    tcgetattr(user.raw, &modes)
    modes.c_lflag |= tcflag_t(ECHO)
    tcsetattr(user.raw, TCSANOW, &modes)
    _ = consume user
    try hangUp(terminal)
    #expect(!PtyMaster.hasInput(terminal.master.raw))
    #expect(Glibc.write(terminal.master.raw, "echo", 4) == 4)
    for _ in 0..<Patience.milliseconds where !PtyMaster.hasInput(terminal.master.raw) { usleep(1000) }
    try PtyMaster.refresh(terminal.master.raw, allIsRead: true)
    #expect(!PtyMaster.hasInput(terminal.master.raw))
  }

  @Test("keeps the settings of a user that is already there")
  func alreadyThere() throws {
    let terminal = try Terminal.make()
    let user = try terminal.user()
    var modes = termios()
    tcgetattr(user.raw, &modes)
    modes.c_lflag |= tcflag_t(ICANON)
    tcsetattr(user.raw, TCSANOW, &modes)
    write(user.raw, "early\n")
    try PtyMaster.refresh(terminal.master.raw, allIsRead: false)
    tcgetattr(user.raw, &modes)
    #expect(modes.c_lflag & tcflag_t(ICANON) != 0 && PtyMaster.hasInput(terminal.master.raw))
  }

  @Test("reports EBUSY when a user left it exclusive and the gateway may not override that")
  func exclusive() async {
    await #expect(processExitsWith: .success) {
      let terminal = try Terminal.make()
      let user = try terminal.user()
      _ = ioctl(user.raw, UInt(TIOCEXCL), 0)
      if geteuid() == 0 { try #require(seteuid(65534) == 0) }
      #expect(PtyMaster.unread(terminal.master.raw) == nil)
      let raw = user.raw
      close(raw)  // close(2) by hand: the process ends before `user` is released
      do {
        try PtyMaster.refresh(terminal.master.raw, allIsRead: false)
      } catch {
        _exit(error as? SystemError == SystemError("open", EBUSY) && PtyMaster.isHungUp(terminal.master.raw) ? 0 : 1)
      }
      _exit(2)
    }
  }
}
