import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The recording of a route")
struct GroupCaptureTests {
  @Test("has a new file for another endpoint, from that one's opening on")
  func endpoint() throws {
    let (folder, connector, clock) = (CaptureFolder(), ScriptedConnector(), ManualClock())
    let environment = CaptureEnvironment(stateFolder: folder.path)
    let settings = { (endpoint: String) in
      let text = "device: { open: always, on-open: hello }, capture: { file: x.pcapng }"
      return RouteSettings(try routeConfig(text, endpoint: endpoint), connector: connector)
    }
    let poller = try Poller(clock: clock.clock) { _ in }
    let group = SessionGroup(
      try settings("sim://echo"), on: poller, status: Story().sink, captures: environment
    ) { _, _ in }
    let (first, second) = (ScriptedStream(takesAll: true), ScriptedStream(takesAll: true))
    connector.openings.last?.succeed(first)
    connector.answerAtOnce = { .success(second) }
    group.update(try settings("sim://echo"))
    environment.queues.settle()
    #expect(folder.names == ["x.pcapng"], "nothing has changed")
    group.update(try settings("sim://sink"))
    group.recording.end(of: group.sharedLink) {}
    environment.queues.settle()
    #expect(folder.names == ["x.pcapng", "x~2.pcapng"])
    for (name, endpoint) in zip(folder.names, ["sim://echo", "sim://sink"]) {
      let file = try PcapngReader(folder.bytes(name))
      #expect(file.interface[3] == Array(endpoint.utf8))
      #expect(file.data(1) == Array("hello".utf8), "what is sent to \(endpoint) first")
    }
    for stream in [first, second] { stream.close() }
  }
}
