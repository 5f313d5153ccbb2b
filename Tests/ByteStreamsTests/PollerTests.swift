// A poller's set in turns that the test makes: descriptors of readers who say when they have read all, and of others.

import CLinux
import Glibc
import Testing

@testable import ByteStreams

@Suite("A poller", .timeLimit(.minutes(1)))
struct PollerTests {
  private final class Reader: PollHandler {
    let poller: Poller
    private let mine: Descriptor
    private var other: Descriptor?
    private let otherRaw: Int32
    private(set) var events: [PollEvents] = []
    var act: (Reader) -> Void = { _ in }

    init(notesDry: Bool) throws {
      poller = try Poller { _ in }
      var ends: [Int32] = [-1, -1]
      let type = Int32(SOCK_STREAM.rawValue) | Int32(SOCK_NONBLOCK.rawValue) | Int32(SOCK_CLOEXEC.rawValue)
      guard socketpair(AF_UNIX, type, 0, &ends) == 0 else { throw SystemError("socketpair") }
      mine = Descriptor(owning: ends[0])
      other = Descriptor(owning: ends[1])
      otherRaw = ends[1]
      try poller.add(mine.raw, handler: self, for: .readable, notesDry: notesDry)
    }

    func ready(_ events: PollEvents) {
      self.events.append(events)
      act(self)
    }

    /// One turn, in which it does that. Whether it was told of anything.
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
    func noteDry() { poller.noteDry(mine.raw) }
    func change(to interest: Readiness) { poller.change(mine.raw, to: interest) }
    func hear(_ text: String) { #expect(Glibc.write(otherRaw, text, text.utf8.count) == text.utf8.count) }
    func hearLast() { #expect(shutdown(otherRaw, Int32(SHUT_WR)) == 0) }
    func lose() { other = nil }
  }

  @Test("tells again of what was left, also of an end that came with the last bytes", arguments: [false, true])
  func left(notesDry: Bool) throws {
    let reader = try Reader(notesDry: notesDry)
    defer { reader.poller.forgetAll() }
    reader.hear("abc")
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

  @Test("does not look again for one who says that he has read all; more is told")
  func dry() throws {
    let reader = try Reader(notesDry: true)
    defer { reader.poller.forgetAll() }
    reader.hear("a")
    // He lies: or nobody could see from here that the kernel was not asked.
    #expect(reader.isTold { $0.noteDry() })
    #expect(!reader.isTold())
    reader.hear("b")
    #expect(reader.isTold { $0.read(1) })
    #expect(reader.isTold())
  }

  @Test("tells who wants bytes again that some were left", arguments: [false, true])
  func wantsAgain(notesDry: Bool) throws {
    let reader = try Reader(notesDry: notesDry)
    defer { reader.poller.forgetAll() }
    reader.hear("ab")
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

  @Test("tells a hang-up once to one who wants nothing, and again when he does", arguments: [false, true])
  func hangUp(notesDry: Bool) throws {
    let reader = try Reader(notesDry: notesDry)
    defer { reader.poller.forgetAll() }
    reader.change(to: [])
    reader.hear("a")
    reader.lose()
    #expect(reader.isTold())
    #expect(!reader.isTold())
    #expect(!reader.isTold())
    reader.change(to: .readable)
    #expect(reader.isTold { $0.read(1) })
    #expect(reader.isTold())
  }
}
