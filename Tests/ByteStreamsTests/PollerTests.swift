// A poller's set in turns that the test drives. Some descriptors belong to readers that note when they have read or
// filled everything; others do not.

import CLinux
import Glibc
import Testing

@testable import ByteStreams

@Suite("A poller", .timeLimit(.minutes(5)))
struct PollerTests {
  private final class Reader: PollHandler {
    let poller: Poller
    private let mine: Descriptor
    private var other: Descriptor?
    private let otherRaw: Int32
    private(set) var events: [PollEvents] = []
    var act: (Reader) -> Void = { _ in }

    init(notesSpent: Bool) throws {
      poller = try Poller { _ in }
      var ends: [Int32] = [-1, -1]
      let type = Int32(SOCK_STREAM.rawValue) | Int32(SOCK_NONBLOCK.rawValue) | Int32(SOCK_CLOEXEC.rawValue)
      guard socketpair(AF_UNIX, type, 0, &ends) == 0 else { throw SystemError("socketpair") }
      mine = Descriptor(owning: ends[0])
      other = Descriptor(owning: ends[1])
      otherRaw = ends[1]
      try poller.add(mine.raw, handler: self, for: .readable, notesSpent: notesSpent)
    }

    func ready(_ events: PollEvents) {
      self.events.append(events)
      act(self)
    }

    /// Runs one turn; its events run `act`. Returns whether there was an event.
    func isTold(_ act: @escaping (Reader) -> Void = { _ in }) -> Bool {
      self.act = act
      let before = events.count
      _ = poller.turn(waiting: 0)
      return events.count > before
    }

    func read(_ count: Int) {
      var buffer = [UInt8](repeating: 0, count: count)
      #expect(Glibc.read(mine.raw, &buffer, count) == count)
    }
    func noteDry() { poller.note(mine.raw, spent: .readable) }
    func noteFull() { poller.note(mine.raw, spent: .writable) }
    /// Writes until nothing more fits.
    func fill() {
      let buffer = [UInt8](repeating: 0, count: 1 << 16)
      while send(mine.raw, buffer, buffer.count, Int32(MSG_NOSIGNAL)) > 0 {}
      #expect(errno == EAGAIN)
    }
    /// Reads everything at the other end.
    func drain() {
      var buffer = [UInt8](repeating: 0, count: 1 << 16)
      while recv(otherRaw, &buffer, buffer.count, Int32(MSG_DONTWAIT)) > 0 {}
    }
    func change(to interest: Readiness) { poller.change(mine.raw, to: interest) }
    func handle(_ text: String) { #expect(Glibc.write(otherRaw, text, text.utf8.count) == text.utf8.count) }
    func hearLast() { #expect(shutdown(otherRaw, Int32(SHUT_WR)) == 0) }
    func lose() { other = nil }
    func otherDuplicate(to number: Int32) -> Int32 { dup2(otherRaw, number) }
  }

  @Test("releases the space of unused numbers, keeps those in use, and accepts higher ones again")
  func shrinks() throws {
    let reader = try Reader(notesSpent: false)
    let poller = reader.poller
    for _ in 0..<2 {
      let high = fcntl(0, F_DUPFD_CLOEXEC, 5000)
      try #require(high >= 5000)
      let ends = try Reader(notesSpent: false)
      try #require(ends.otherDuplicate(to: high) >= 0)
      try poller.add(high, handler: reader, for: [])
      poller.remove(high)
      poller.shrink()
      #expect(poller.room < 5000)
      poller.remove(high)  // removing twice equals removing once
      poller.change(high, to: .readable)
      close(high)
    }
    reader.handle("x")
    #expect(reader.isTold())
  }

  @Test("reports unread bytes again, and an end that came with the last bytes", arguments: [false, true])
  func left(notesSpent: Bool) throws {
    let reader = try Reader(notesSpent: notesSpent)
    defer { reader.poller.forgetAll() }
    reader.handle("abc")
    #expect(reader.isTold { $0.read(1) })
    #expect(reader.isTold())
    reader.hearLast()
    #expect(
      reader.isTold {
        $0.read(2)
        $0.noteDry()
      })
    #expect(reader.isTold())
  }

  @Test("does not poll again for a reader that has noted it read everything, and reports new bytes")
  func dry() throws {
    let reader = try Reader(notesSpent: true)
    defer { reader.poller.forgetAll() }
    reader.handle("a")
    // The note is false on purpose: only this shows that the kernel was not asked.
    #expect(reader.isTold { $0.noteDry() })
    #expect(!reader.isTold())
    reader.handle("b")
    #expect(reader.isTold { $0.read(1) })
    #expect(reader.isTold())
  }

  @Test("does not poll again for a writer that has noted it filled everything, and reports new space and new bytes")
  func full() throws {
    let reader = try Reader(notesSpent: true)
    defer { reader.poller.forgetAll() }
    reader.change(to: [.readable, .writable])
    // The note is false on purpose: only this shows that the kernel was not asked.
    #expect(reader.isTold { $0.noteFull() })
    #expect(!reader.isTold())
    reader.fill()
    reader.drain()
    #expect(
      reader.isTold {
        $0.fill()
        $0.noteFull()
      })
    #expect(!reader.isTold())
    reader.handle("a")
    #expect(reader.isTold { $0.noteFull() })  // reports bytes, which stay unread
    #expect(reader.isTold { $0.read(1) })
    reader.drain()
    #expect(reader.isTold())
    #expect(reader.isTold())
  }

  @Test("reports leftover bytes when a handler wants bytes again", arguments: [false, true])
  func wantsAgain(notesSpent: Bool) throws {
    let reader = try Reader(notesSpent: notesSpent)
    defer { reader.poller.forgetAll() }
    reader.handle("ab")
    #expect(
      reader.isTold {
        $0.read(1)
        $0.change(to: [])
      })
    #expect(!reader.isTold())
    reader.change(to: .readable)
    #expect(
      reader.isTold {
        $0.change(to: [])
        $0.change(to: .readable)
      })
    #expect(reader.isTold())
  }

  @Test("reports a hang-up once to a handler without interest, and again with interest", arguments: [false, true])
  func hangUp(notesSpent: Bool) throws {
    let reader = try Reader(notesSpent: notesSpent)
    defer { reader.poller.forgetAll() }
    reader.change(to: [])
    reader.handle("a")
    reader.lose()
    #expect(reader.isTold())
    #expect(!reader.isTold())
    #expect(!reader.isTold())
    reader.change(to: .readable)
    #expect(reader.isTold { $0.read(1) })
    #expect(reader.isTold())
  }
}
