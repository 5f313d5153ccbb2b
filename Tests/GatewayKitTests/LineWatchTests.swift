// Which clients wait for the first report of a line, and how often.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The watch of a line", .timeLimit(.minutes(5)))
struct LineWatchTests {
  /// A client that asks by a mask, as one of RFC 2217 does, or by numbered requests.
  private final class Client: ControlProtocol {
    let hasTexts: Bool
    let showsEvents = true
    private(set) var replies = 0
    private(set) var reports = 0

    init(hasTexts: Bool) { self.hasTexts = hasTexts }

    func takeRequest() -> ControlChannelRequest.Parsed? { nil }
    func send(_ event: ControlChannelEvent) -> Bool {
      reports += 1
      return true
    }
    func send(_ reply: ControlChannelReply) -> Bool {
      replies += 1
      return true
    }
  }

  @Test("answers each of a client's numbered requests, and one of RFC 2217 once, however often it has sent its mask")
  func asksBeforeTheFirstReport() throws {
    let watch = LineWatch(on: try Poller(clock: ManualClock().clock) { _ in })
    let (numbered, telnet) = (Client(hasTexts: true), Client(hasTexts: false))
    let (first, second) = (ControlChannel(numbered), ControlChannel(telnet))
    for _ in 0..<3 {
      watch.start(first, nil)
      watch.start(second, nil)
    }
    #expect(numbered.replies + telnet.replies == 0)
    let line = ScriptedLine()
    watch.attach(line)
    line.watcher?(.success(LineCondition(inputs: [.cts], counts: nil, changes: 0)))
    #expect(numbered.replies == 3)
    #expect(telnet.replies == 1 && telnet.reports == 1)
  }
}
