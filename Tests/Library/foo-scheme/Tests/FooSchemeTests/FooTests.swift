import FooScheme
import StreamBrokerCore
import StreamConformanceKit
import Testing

private let broker = Broker(CoreSchemes.all + [Foo.self])

@Test("foo does what any stream must do, on a lane and for any task")
func conformance() async throws {
  try await StreamConformance(FooRig(), broker).run()
  #expect(try await broker.connect(FooRig().farEnd(.sayAndHangUp([7])) ?? "").read() == [7])
  #expect(throws: URLProblem("unknown scheme 'fop'", suggestion: "foo")) { try broker.url("fop://host:1") }
}

private struct FooRig: StreamRig {
  func farEnd(_ part: FarPart) throws -> String? {
    if case .refuse = part { return "foo://127.0.0.1:1" }
    let listener = try LoopbackListener()
    part.begin { FooEnd(tcp: try listener.accept()) }
    return "foo://\(listener.address)"
  }
}

private struct FooEnd: FarParty {
  let tcp: FarEnd
  func send(_ bytes: [UInt8]) throws { try tcp.send(bytes.map { $0 ^ 42 }) }
  func receive() throws -> [UInt8] { try tcp.receive().map { $0 ^ 42 } }
  func finishWriting() { tcp.finishWriting() }
  func close() { tcp.close() }
}
