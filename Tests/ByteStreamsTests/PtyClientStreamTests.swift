// The master's side of a pty that programs use one after the other.

import CLinux
import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams

/// A pty whose slave programs open; nobody has it yet.
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

  /// As the gateway has it: the pty outlives the stream.
  func stream(on poller: Poller, told: @escaping (PtyClientStream.Departure) -> Void = { _ in }) -> PtyClientStream {
    PtyClientStream(Descriptor(owning: fcntl(master.raw, F_DUPFD_CLOEXEC, 0)), on: poller, told: told)
  }
}

private func write(_ user: Int32, _ text: String) {
  #expect(Glibc.write(user, text, text.utf8.count) == text.utf8.count)
}

/// Waits until nobody has the slave open: a process that another test is just starting may have it a little longer than we.
private func hangUp(_ terminal: Terminal) throws {
  for _ in 0..<10_000 where !PtyMaster.isHungUp(terminal.master.raw) { usleep(1000) }
  try #require(PtyMaster.isHungUp(terminal.master.raw))
}

@Suite("A pty's stream", .timeLimit(.minutes(1)))
struct PtyClientStreamTests {
  @Test("hears its user to the end, and is over for good then, whoever comes next")
  func overForGood() async throws {
    try await onLane { lane in
      let terminal = try Terminal.make()
      let first = try terminal.user()
      var told: [PtyClientStream.Departure] = []
      let stream = terminal.stream(on: lane.poller) { told.append($0) }
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      write(first.raw, "last words")
      _ = consume first
      try hangUp(terminal)
      let heard = try stream.readSome()
      #expect(heard == Array("last words".utf8))
      #expect(stream.sawEnd)
      let second = try terminal.user()
      write(second.raw, "not for him")
      await gate.wait(on: lane)
      let answers = (try stream.read(), try stream.write([1]))
      #expect(answers == (.ended, .ended) && recorder.events == [.endEncountered])
      #expect(PtyMaster.hasInput(terminal.master.raw))
      stream.close()
      stream.close()
      #expect(told == [.closed(hungUp: true)])
    }
  }

  @Test("tells that its user has gone, though nobody reads, and ends with what he wrote")
  func unseen() async throws {
    try await onLane { lane in
      let terminal = try Terminal.make()
      let user = try terminal.user()
      var told: [PtyClientStream.Departure] = []
      let stream = terminal.stream(on: lane.poller) { told.append($0) }
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.readerWaits = .readable
      stream.readerWaits = []
      write(user.raw, "kept")
      _ = consume user
      await gate.wait(on: lane)
      #expect(recorder.events == [.lastByteIsIn] && told == [.leaving])
      // Somebody who comes before he is read to his end does not go on in his place.
      let second = try terminal.user()
      let heard = try stream.readSome()
      #expect(heard == Array("kept".utf8))
      #expect(stream.sawEnd)
      _ = consume second
      stream.close()
      #expect(told == [.leaving, .closed(hungUp: true)])
    }
  }

  @Test("leaves nothing behind in the lane's set when it is closed, though its pty lives on")
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

  @Test("knows what its user has not read, and has nothing to wait for when he is gone")
  func unread() async throws {
    try await onLane { lane in
      let terminal = try Terminal.make()
      let user = try terminal.user()
      let stream = terminal.stream(on: lane.poller)
      #expect(stream.unread == 0)
      #expect(try stream.write([1, 2, 3]) == .moved(3))
      #expect(stream.unread == 3)
      var bytes = [UInt8](repeating: 0, count: 10)
      #expect(read(user.raw, &bytes, 10) == 3 && stream.unread == 0)
      _ = try stream.write([1])
      _ = consume user
      try hangUp(terminal)
      #expect(stream.unread == nil)
      stream.close()
    }
  }
}

@Suite("A pty between two users", .timeLimit(.minutes(1)))
struct PtyMasterTests {
  @Test("is as good as new: raw, silent, empty, open to all, and still says what the first one wrote")
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
    if geteuid() == 0 { _ = ioctl(first.raw, UInt(TIOCEXCL), 0) }  // what becomes of it elsewhere stands below
    tcflow(first.raw, TCOOFF)
    _ = consume first
    try hangUp(terminal)

    try PtyMaster.refresh(terminal.master.raw, allIsRead: false)
    let second = try terminal.user()
    tcgetattr(second.raw, &modes)
    #expect(modes.c_lflag & tcflag_t(ECHO | ICANON | ISIG) == 0 && modes.c_iflag & tcflag_t(ICRNL | IXON) == 0)
    usleep(20_000)  // what the kernel has not thrown away would come now
    #expect(PtyMaster.unread(terminal.master.raw) == 0)
    write(second.raw, "!")
    var exclusive: Int32 = 1
    #expect(ioctl(second.raw, 0x8004_5440, &exclusive) == 0 && exclusive == 0)  // TIOCGEXCL
    var heard = [UInt8](repeating: 0, count: 100)
    let count = read(terminal.master.raw, &heard, 100)
    // What it echoed in between came from the flood.
    #expect(String(decoding: heard.prefix(max(0, count)), as: UTF8.self).hasPrefix("for the device"))
  }

  @Test("says nothing that its user's echo has said after he had gone")
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
    for _ in 0..<10_000 where !PtyMaster.hasInput(terminal.master.raw) { usleep(1000) }
    try PtyMaster.refresh(terminal.master.raw, allIsRead: true)
    #expect(!PtyMaster.hasInput(terminal.master.raw))
  }

  @Test("keeps what its user has set when he is there already")
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

  @Test("says that it can't be had when one has left it exclusive, and we may not override that")
  func exclusive() async {
    await #expect(processExitsWith: .success) {
      let terminal = try Terminal.make()
      let user = try terminal.user()
      _ = ioctl(user.raw, UInt(TIOCEXCL), 0)
      if geteuid() == 0 { try #require(seteuid(65534) == 0) }
      #expect(PtyMaster.unread(terminal.master.raw) == nil)
      let raw = user.raw
      close(raw)  // the process ends before the owner would
      do {
        try PtyMaster.refresh(terminal.master.raw, allIsRead: false)
      } catch {
        _exit(error as? SystemError == SystemError("open", EBUSY) && PtyMaster.isHungUp(terminal.master.raw) ? 0 : 1)
      }
      _exit(2)
    }
  }
}
