// A scheme that is not Baudway's: with plain imports, as a program's own code has. Tests/Library/foo-scheme is a whole
// package with one.

import ByteStreams
import StreamBroker
import StreamTestKit
import Testing

@Suite("A scheme from outside", .timeLimit(.minutes(5)))
struct OutsideSchemeTests {
  private let broker = Broker(Schemes.standard + [Foo.self])

  @Test("opens, with its own grammar and its own refusals")
  func opens() async throws {
    try await onLane { lane in
      let stream = try await broker.open("foo://bar?times=2", on: lane)
      try await stream.writeAll([1], on: lane)
      #expect(try await stream.read(exactly: 1, on: lane) == [1])
      stream.close()
    }
    let handle = try await broker.connect("foo://any%20name")
    #expect(handle.metadata.url == "foo://any%20name")
    handle.close()
  }

  @Test(
    "appears in suggestions and errors",
    arguments: [
      ("fop://bar", "unknown scheme 'fop'; did you mean 'foo'?"),
      ("foo://bar?tmies=2", "unknown parameter 'tmies'; did you mean 'times'?"),
      ("foo://bar?times=9", "times: expected a whole number from 1 to 3, not '9'"),
      ("foo://", "needs the name of a foo, as in foo://bar?times=2"),
      ("foo:bar", "expected '//' after 'foo:', as in foo://bar?times=2; did you mean 'foo://bar'?"),
      ("foo://bar?times=3", "times: three is one too many"),
      ("foo://taken", "there is no foo named taken; did you mean 'foo://bar'?"),
      ("rfcomm://00:0A:3A:22:68:73", "scheme 'rfcomm' is not in this program's list of schemes"),
      (
        "carrier://x",
        "unknown scheme 'carrier'; expected tty, tcp, tls, ws, wss, rfc2217, rfc2217s, telnet, unix, pty, exec, sim or foo"
      ),
    ])
  func errors(text: String, message: String) {
    do {
      _ = try broker.connector(text)
      Issue.record("accepted")
    } catch {
      #expect(error.description == message)
    }
  }

  @Test("is suggested only where it can be opened: tcp is not, in a program without tcp")
  func suggestions() {
    let broker = Broker([Foo.self])
    for (text, message) in [
      ("tcq://h:1", "unknown scheme 'tcq'; expected foo"),
      ("bar", "no scheme; expected a URL such as foo://bar?times=2"),
    ] {
      let error = #expect(throws: URLProblem.self) { try broker.url(text) }
      #expect(error?.description == message)
    }
    #expect(Broker([]).schemes.isEmpty)
    #expect(throws: URLProblem.self) { try Broker([]).url("tcp://h:1") }
  }

  @Test("may have any name that RFC 3986 allows, and the name of a scheme of Baudway's, whose grammar it then replaces")
  func names() throws {
    #expect(try Broker([Dashed.self]).url("My-Foo.2://x").scheme == "my-foo.2")
    #expect(try Broker(Schemes.standard + [OtherTCP.self]).url("tcp://no-port").host == "no-port")
  }

  @Test("keeps what a stream promises")
  func conformance() async throws { try await StreamConformance(FooRig(), broker).run() }
}

/// An echo whose URL may say more.
private struct Foo: Connector {
  static let grammar = SchemeGrammar(
    "foo", example: "foo://bar?times=2", authority: .name("the name of a foo"),
    parameters: [.init("times", .integer(1...3), standard: "1", "how often")],
    rules: [.init("times") { $0.integer("times") == 3 ? "three is one too many" : nil }])

  init(_ url: EndpointURL) throws(URLProblem) {
    if url.host == "taken" { throw URLProblem("there is no foo named taken", suggestion: "foo://bar") }
  }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    do {
      return try Broker([SimConnector.self]).connector("sim://echo").open(request, on: poller, done)
    } catch {
      done(.failure(OpenFailure("open foo", nil, advice: "\(error)")))
      return CompletedOpening()
    }
  }
}

private struct Dashed: Connector {
  static let grammar = SchemeGrammar("my-foo.2", example: "my-foo.2://bar", authority: .name("a name"))
  init(_ url: EndpointURL) {}
  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening { CompletedOpening() }
}

private struct OtherTCP: Connector {
  static let grammar = SchemeGrammar("tcp", example: "tcp://bar", authority: .name("a name"))
  init(_ url: EndpointURL) {}
  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening { CompletedOpening() }
}

private struct FooRig: StreamRig {
  func farEnd(_ part: FarPart) -> String? {
    switch part {
    case .echo, .answerAfterTheEnd: "foo://bar"
    default: nil
    }
  }
}
