// What counts as an answer, by itself. StreamBridgeTests has what follows from it.

import Glibc
import Testing

@testable import GatewayKit

@Suite("A watch for answers")
struct AnswerWatchTests {
  @Test("does not look at bytes that can change nothing")
  func decided() async {
    await #expect(processExitsWith: .success) {
      // A byte of this memory can't be read: the process would end.
      let memory = mmap(nil, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)!
      let unreadable = UnsafeRawBufferPointer(start: memory, count: 4096)
      for question in [[1, 3], Array("AT\r".utf8), [UInt8](repeating: 1, count: 4096)] {
        var watch = AnswerWatch()
        question.withUnsafeBytes { watch.sent($0, at: 1) }
        Array("OK\r".utf8).withUnsafeBytes { watch.received($0, at: 2) }
        watch.received(unreadable, at: 3)
        #expect(watch.isAnswered && watch.hasHeard && !watch.lacksLines)
        if question.count == 4096 { watch.sent(unreadable, at: 3) }
      }
    }
  }

  @Test("counts no more lines of an answer than were sent by then")
  func surplus() {
    var watch = AnswerWatch()
    func receive(_ text: String) { Array(text.utf8).withUnsafeBytes { watch.received($0, at: 2) } }
    for text in ["ATI\r", "AT\r"] {
      Array(text.utf8).withUnsafeBytes { watch.sent($0, at: 1) }
      if text == "ATI\r" { receive("Model 5\r\nVersion 2\r\nOK\r\n") }
    }
    #expect(watch.lacksLines, "the second command has no answer yet")
    receive("OK\r\n")
    #expect(!watch.lacksLines)
  }
}
