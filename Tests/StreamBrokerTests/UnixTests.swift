// unix://: cases that only local sockets have.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A unix socket", .timeLimit(.minutes(5)))
struct UnixTests {
  private let broker = Broker(Schemes.standard)

  @Test("is waited for while its server's backlog is full, and opened when there is space")
  func backlog() async throws {
    let folder = try TemporaryFolder()
    let server = try UnixServer(folder / "full.sock", backlog: 0)
    try await onLane { lane in
      let url = "unix://\(folder / "full.sock")"
      let first = try await broker.open(url, on: lane)  // takes the only place in the backlog
      let opened = Gate()
      var second: (any ByteStream)?
      broker.open(try broker.connector(url), named: url, on: lane.poller, timeout: .seconds(20)) {
        second = try? $0.get()
        opened.open()
      }
      let pause = Gate()
      lane.poller.timers.after(.milliseconds(100)) { pause.open() }
      await pause.wait(on: lane)
      #expect(second == nil)
      let clients = try await onOwnThread { [try server.accept(), try server.accept()] }
      await opened.wait(on: lane)
      #expect(try second?.write([7]) == .moved(1))
      #expect(try await onOwnThread { try clients[1].receive() } == [7])
      first.close()
      second?.close()
    }
  }

  @Test("is waited for while the program that has just made it does not listen yet")
  func notYetListening() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "new.sock"
    let server = try UnixServer(path, backlog: nil)
    try await onLane { lane in
      let url = "unix://\(path)"
      let opened = Gate()
      var stream: Result<any ByteStream, OpenFailure>?
      broker.open(try broker.connector(url), named: url, on: lane.poller, timeout: .seconds(Patience.seconds)) {
        stream = $0
        opened.open()
      }
      try await onOwnThread {
        for _ in 0..<10 {
          utimes(path, nil)  // it stays new, however slow the machine is
          usleep(10_000)
        }
        try server.listen()
      }
      await opened.wait(on: lane)
      let client = try await onOwnThread { try server.accept() }
      #expect(try stream?.get().write([7]) == .moved(1))
      #expect(try await onOwnThread { try client.receive() } == [7])
      try stream?.get().close()
    }
  }

  @Test("that is waited for can be given up")
  func cancelled() async throws {
    let folder = try TemporaryFolder()
    let server = try UnixServer(folder / "full.sock", backlog: 0)
    try await expectNoDescriptorLeak {
      try await onLane { lane in
        let url = "unix://\(folder / "full.sock")"
        let first = try await broker.open(url, on: lane)
        let failure = await #expect(throws: OpenFailure.self) {
          try await broker.open(url, on: lane, timeout: .milliseconds(100)).close()
        }
        #expect(failure?.cause?.errno == ETIMEDOUT)
        first.close()
      }
    }
    server.close()
  }

  @Test(
    "reports why it can't be reached",
    arguments: [
      ("nothing", "no program listens there yet"), ("stale", "this is a leftover socket"),
      ("future", "this is a leftover socket"), ("file", "ECONNREFUSED"),
    ])
  func refusal(name: String, reason: String) async throws {
    let folder = try TemporaryFolder()
    try UnixServer(folder / "stale").close()
    utimes(folder / "stale", [timeval(), timeval()])  // a new one might be listened on soon
    try UnixServer(folder / "future").close()
    let future = timeval(tv_sec: 15_000_000_000, tv_usec: 0)
    utimes(folder / "future", [future, future])
    try folder.write("file", "")
    try await onLane { lane in
      let failure = await #expect(throws: OpenFailure.self) {
        try await broker.open("unix://\(folder / name)", on: lane).close()
      }
      #expect(failure?.description.hasPrefix("connect \(folder / name): ") == true)
      #expect(failure?.description.contains(reason) == true)
    }
  }

  @Test("has a path of 107 bytes at most")
  func length() {
    #expect(throws: Never.self) { try EndpointURL("unix:///" + String(repeating: "a", count: 106)) }
    let problem = #expect(throws: URLProblem.self) { try EndpointURL("unix:///" + String(repeating: "a", count: 107)) }
    #expect(problem?.message == "the path of a socket has 107 bytes at most")
  }
}
