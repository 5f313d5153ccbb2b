import Dispatch
import Testing

@testable import GatewayKit

@Suite("The queues of recordings")
struct CaptureQueuesTests {
  @Test("are one for each folder, for as long as a recording keeps it")
  func folders() {
    let queues = CaptureQueues()
    var first: DispatchQueue? = queues.queue(of: "/a/")
    #expect(queues.queue(of: "/a/") === first)
    #expect(queues.queue(of: "/b/") !== first)
    weak let before = first
    first = nil
    #expect(before == nil)
  }

  @Test("are a few for any number of folders; a further folder shares the queue of the most similar one")
  func bounded() {
    let queues = CaptureQueues()
    let first = (0..<CaptureQueues.most).map { queues.queue(of: "/\($0)/a/") }
    #expect(Set(first.map(ObjectIdentifier.init)).count == CaptureQueues.most)
    for number in 0..<CaptureQueues.most { #expect(queues.queue(of: "/\(number)/b/") === first[number]) }
  }
}
