import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("News for event streams")
struct EventNewsTests {
  private func news(_ count: Int, most: Int = 4) -> EventNews {
    let news = EventNews(most: most)
    for number in 0..<count { _ = news.take(.routeStopped("\(number)")) }
    return news
  }

  @Test("are kept up to their limit, the newest ones, in order")
  func bounded() {
    #expect(news(3).drain().map(\.number) == [1, 2, 3])
    let news = news(10)
    #expect(news.drain().map(\.number) == [7, 8, 9, 10] && news.drain().isEmpty)
    _ = news.take(.stopping)
    #expect(news.drain().map(\.number) == [11] && news.newest == 11)
  }

  @Test("become text when it is first asked for, and not when they are taken over")
  func text() {
    let entries = news(2).drain().map(EventLog.Entry.init)
    #expect(entries.map(\.number) == [1, 2] && entries.allSatisfy { $0.raw != nil })
    for _ in 0..<2 {
      #expect(entries[0].event == "route stopped" && entries[0].route == "0")
      #expect(entries[0].line.hasSuffix(#""event":"route stopped","route":"0"}"#), "\(entries[0].line)")
    }
    #expect(entries.map { $0.raw == nil } == [true, false])
  }

  @Test("are told to whoever waits, once, and do not count what the log has only for debugging")
  func awaited() {
    let news = news(1)
    #expect(!news.take(.stopping))
    #expect(news.await(after: 1))
    #expect(!news.await(after: 2))
    #expect(!news.take(.reloading) && news.newest == 2)
    #expect(news.take(.stopping) && !news.take(.stopping))
  }
}
