// The control socket from both sides.

import CLinux
import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A control socket", .timeLimit(.minutes(5)))
struct ControlTests {
  private static func path(_ name: String) -> String {
    "/tmp/baudway-control-\(getpid())-\(name).sock"
  }

  private static let healthy = #"{"healthy":true}"#

  private static func ask(_ request: String, _ address: ControlAddress) throws -> String {
    String(decoding: try ControlClient.ask(request, at: address), as: UTF8.self)
  }

  private static func isRefused(_ address: ControlAddress) -> Bool {
    do throws(SystemError) {
      _ = try ControlClient.ask("health", at: address)
      return false
    } catch {
      return error.errno == ECONNREFUSED || error.errno == ENOENT
    }
  }

  /// Serves at `address` while `body` sends requests; `body` may block.
  private func serve(
    _ address: ControlAddress, answerLimit: Duration = ControlConnection.answerLimit, isFast: Bool = false,
    answer: @escaping @Sendable (ControlRequest) -> any ControlAnswer = { _ in
      OneLine(.object(["healthy": .bool(true)]))
    },
    _ body: @escaping @Sendable () throws -> Void
  ) async throws {
    try await onLane(isFast: isFast) { lane in
      let server = ControlServer(address, on: lane.poller, answerLimit: answerLimit) { request, _ in answer(request) }
      let bound = Gate()
      let failure = Kept<OpenFailure>()
      server.start {
        bound.open()
      } failed: { error in
        failure.value = error
        bound.open()
      }
      await bound.wait(on: lane)
      var result: Result<Void, any Error> = .success(())
      if let error = failure.value?.cause {
        result = .failure(error)
      } else {
        do { try await onOwnThread(body) } catch { result = .failure(error) }
      }
      let free = Gate()
      server.stop(cuttingOff: true) { free.open() }
      await free.wait(on: lane)
      try result.get()
    }
  }

  @Test(
    "answers known requests, and refuses others with an error",
    arguments: [ControlAddress.path(path("answers")), .abstract("baudway-test-\(getpid())")])
  func answers(address: ControlAddress) async throws {
    try await serve(address) { () throws in
      for _ in 0..<3 { #expect(try Self.ask("health", address) == Self.healthy) }
      #expect(
        try Self.ask("make coffee", address)
          == #"{"protocol":1,"error":"unknown request; expected one of health, status, reload, kick, reset, release, reopen, capture"}"#
      )
    }
    #expect(Self.isRefused(address))
    #expect(access(address.description, F_OK) != 0)
  }

  @Test("is open to its owner and group, by the file's mode")
  func mode() async throws {
    let path = Self.path("mode")
    try await serve(.path(path)) { () throws in
      var status = stat()
      #expect(lstat(path, &status) == 0 && status.st_mode & 0o7777 == 0o660)
    }
  }

  @Test(
    "at a path accepts only users of its group",
    .enabled(if: geteuid() == 0, "only root can be another user, too"))
  func group() async throws {
    let path = Self.path("group")
    try await serve(.path(path)) { () throws in
      try #require(chown(path, 0, 4711) == 0)
      #expect(try Self.connect(as: 65534, group: 4711, path) == 0)
      #expect(try Self.connect(as: 65534, group: 65534, path) == EACCES)
    }
  }

  /// errno of another user's connection, made in a separate process.
  private static func connect(as user: uid_t, group: gid_t, _ path: String) throws -> Int32 {
    try exitCode(
      of: "import os,socket\nos.setgroups([])\nos.setgid(\(group))\nos.setuid(\(user))\n"
        + "os._exit(socket.socket(socket.AF_UNIX).connect_ex('\(path)'))")
  }

  private static func exitCode(of script: String) throws -> Int32 {
    var words: [UnsafeMutablePointer<CChar>?] = [strdup("/usr/bin/python3"), strdup("-c"), strdup(script), nil]
    defer { for word in words { free(word) } }
    var child = pid_t()
    try #require(posix_spawn(&child, "/usr/bin/python3", nil, nil, &words, environ) == 0)
    var status: Int32 = 0
    try #require(waitpid(child, &status, 0) == child && status & 0x7f == 0)
    return status >> 8
  }

  @Test("closes a request that is too long or never ends, and still answers others", .waits)
  func hostile() async throws {
    let address = ControlAddress.path(Self.path("hostile"))
    try await serve(address) { () throws in
      let long = try Self.connect(address)
      try long.send([UInt8](repeating: 65, count: 1025))
      let answer = try long.receiveToEnd()
      #expect(String(decoding: answer, as: UTF8.self).contains("at most 1024 bytes"))
      let longest = try Self.connect(address)
      try longest.send([UInt8](repeating: 65, count: 1024) + [10])
      #expect(try longest.receiveToEnd().starts(with: #"{"protocol":1,"error":"unknown"#.utf8))
      let silent = try (0..<16).map { _ in try Self.connect(address) }
      #expect(throws: SystemError.self, "sixteen talk already") { try Self.ask("health", address) }
      let before = monotonicNanoseconds()
      for one in silent { #expect(try one.receiveToEnd().isEmpty) }
      #expect(monotonicNanoseconds() - before < 10_000_000_000)
      #expect(try Self.ask("health", address) == Self.healthy)
    }
  }

  @Test("accepts a request that ends with FIN instead of a line end")
  func noLineEnd() async throws {
    let address = ControlAddress.path(Self.path("end"))
    try await serve(address) { () throws in
      let one = try Self.connect(address)
      try one.send(Array("health".utf8))
      one.finishWriting()
      #expect(try one.receiveToEnd() == Array((Self.healthy + "\n").utf8))
    }
  }

  @Test("sends an answer of any size in pieces, as fast as its reader reads")
  func large() async throws {
    let address = ControlAddress.path(Self.path("large"))
    let made = Counter()
    try await serve(address) { _ in
      Pieces(count: 1000, size: 16_384, made)
    } _: { () throws in
      let one = try Self.connect(address)
      try one.send(Array("status\n".utf8))
      _ = try one.receive(exactly: 16_384)
      usleep(200_000)
      // The socket's buffer and a few pieces more: the rest is not made until the client reads.
      #expect(made.value < 100)
      let rest = try one.receiveToEnd()
      #expect(rest.count == 999 * 16_384 + 1 && rest.last == 10)
      #expect(made.value == 1000)
    }
  }

  @Test("disconnects a client that does not read its answer within seconds")
  func slowReader() async throws {
    let address = ControlAddress.path(Self.path("slow"))
    let made = Counter()
    try await serve(address, isFast: true) { request in
      if request == .status { Pieces(count: 100_000, size: 16_384, made) } else { OneLine(.null) }
    } _: { () throws in
      let before = monotonicNanoseconds()
      let all = try (0..<16).map { _ in
        let one = try Self.connect(address)
        try one.send(Array("status\n".utf8))
        return one
      }
      var answer: String?
      while answer == nil, monotonicNanoseconds() - before < Patience.nanoseconds {
        usleep(100_000)
        answer = try? Self.ask("health", address)
      }
      #expect(answer != nil)
      for one in all { one.close() }
    }
  }

  @Test("reports that an answer is late, instead of nothing")
  func tooLate() async throws {
    let address = ControlAddress.path(Self.path("tooLate"))
    try await serve(address, answerLimit: .milliseconds(200)) { _ in
      OneLine()
    } _: { () throws in
      #expect(try Self.ask("reload", address).contains("did not finish within a minute"))
    }
  }

  @Test("replaces a socket file left by a crash, and nothing else")
  func stale() async throws {
    let path = Self.path("stale")
    let address = ControlAddress.path(path)
    try makeLeftOverSocket(at: path)
    try await serve(address) { () throws in
      #expect(try Self.ask("health", address) == Self.healthy)
    }
    Glibc.close(open(path, O_CREAT | O_WRONLY, 0o600))
    await #expect(throws: SystemError("bind", EADDRINUSE)) { try await serve(address) {} }
    #expect(access(path, F_OK) == 0)
    unlink(path)
  }

  @Test("leaves another gateway's socket alone, also when it stops")
  func live() async throws {
    let address = ControlAddress.path(Self.path("live"))
    try await serve(address) { () throws in
      let over = DispatchSemaphore(value: 0)
      let failure = Mutex<OpenFailure?>(nil)
      let lane = try Lane("second gateway")
      let server = LaneRef(on: lane) { lane in ControlServer(address, on: lane.poller) { _, _ in OneLine(.null) } }
      server.post { _, server in
        server.start(failed: { error in
          failure.withLock { $0 = error }
          server.stop(cuttingOff: true) { over.signal() }
        })
      }
      #expect(over.wait(timeout: .now() + .seconds(10)) == .success)
      #expect(failure.withLock(\.self)?.cause == SystemError("bind", EADDRINUSE))
      server.evict()
      lane.stop()
      #expect(try Self.ask("health", address) == Self.healthy)
    }
  }

  @Test("binds as soon as its address is free; stopped meanwhile, it releases the address")
  func late() async throws {
    let address = ControlAddress.path(Self.path("late"))
    try await onLane { lane in
      let first = ControlServer(address, on: lane.poller) { _, _ in OneLine(.null) }
      let gates = (0..<4).map { _ in Gate() }
      first.start { gates[0].open() }
      await gates[0].wait(on: lane)
      let second = ControlServer(address, on: lane.poller) { _, _ in OneLine(.bool(true)) }
      second.start {
        gates[2].open()
      } failed: { _ in
        gates[1].open()
      }
      await gates[1].wait(on: lane)
      first.stop(cuttingOff: true)
      await gates[2].wait(on: lane)
      let answer = try await onOwnThread { try Self.ask("health", address) }
      #expect(answer == "true")
      second.stop(cuttingOff: true) { gates[3].open() }
      await gates[3].wait(on: lane)
      let third = ControlServer(address, on: lane.poller) { _, _ in OneLine(.null) }
      let free = Gate()
      third.start()
      third.stop(cuttingOff: true) { free.open() }
      await free.wait(on: lane)
    }
    #expect(access(address.description, F_OK) != 0)
  }

  @Test("that stops in order still sends a pending answer")
  func moves() async throws {
    let address = ControlAddress.path(Self.path("moves"))
    try await onLane { lane in
      let line = OneLine()
      let asked = Gate()
      let server = ControlServer(address, on: lane.poller) { _, _ in
        asked.open()
        return line
      }
      let bound = Gate()
      server.start { bound.open() }
      await bound.wait(on: lane)
      let answer = Task { try await onOwnThread { try Self.ask("reload", address) } }
      await asked.wait(on: lane)
      server.stop(cuttingOff: false)
      line.give(.text("late"))
      let given = try await answer.value
      #expect(given == "\"late\"")
    }
  }

  @Test(
    "at an abstract address answers only its own user and root",
    .enabled(if: geteuid() == 0, "only root can be another user, too"))
  func otherUser() async throws {
    let address = ControlAddress.abstract("baudway-test-user-\(getpid())")
    try await serve(address) { () throws in
      let script =
        "import os,socket\nos.setuid(65534)\ns=socket.socket(socket.AF_UNIX)\n"
        + "s.connect(b'\\0baudway-test-user-\(getpid())')\ns.settimeout(5)\n"
        + "try:\n s.send(b'health\\n')\n os._exit(len(s.recv(99)))\nexcept OSError: os._exit(0)"
      #expect(try Self.exitCode(of: script) == 0)
      #expect(try Self.ask("health", address) == Self.healthy)
    }
  }

  @Test("has an abstract address that names its owner, for a long path and for a missing file")
  func addresses() throws {
    let long = "/nowhere/" + String(repeating: "long/", count: 40) + "config.yaml"
    for path in [long, "gone.yaml"] {
      // Nil where the machine has a folder for it.
      guard case .abstract(let name)? = ControlAddress(.automatic, configPath: path, environment: [:]) else { continue }
      #expect(ControlAddress.abstract(name).owner == geteuid() && name.utf8.count <= 100)
      #expect(path == long ? name.hasSuffix("/long/config.yaml") : name.hasSuffix("/gone.yaml"))
      #expect(path == long || name.hasPrefix("baudway/\(geteuid())//") || name.utf8.count == 100)
    }
    for name in ["baudway", "baudway/0", "baudway/x/y", "other/0/y", "baudway/-1/y", ""] {
      #expect(ControlAddress.abstract(name).owner == nil)
    }
    #expect(ControlAddress.path("baudway/0/y").owner == nil)
  }

  @Test("is found by the configuration's path as it was given, whatever that leads to")
  func givenPath() throws {
    let folder = try TemporaryFolder()
    let given = folder / "config.yaml"
    let addresses = { (path: String) in
      ControlAddress.addresses(.automatic, configPath: path, environment: ["RUNTIME_DIRECTORY": folder.path])
    }
    for name in ["one", "two"] { try folder.write("\(name)/config.yaml", "") }
    #expect(symlink("one", folder / "..data") == 0 && symlink("..data/config.yaml", given) == 0)
    let before = addresses(given)
    // By the given name first, then by the name of what it leads to: a gateway may have been started with that.
    #expect(before.count == 5 && addresses(folder / "one/config.yaml").allSatisfy(before.contains))
    #expect(symlink("two", folder / "new") == 0 && rename(folder / "new", folder / "..data") == 0)
    let after = addresses(given)
    #expect(after[1] == before[1] && after[3] == before[3])
    #expect(after[2] != before[2] && after[4] != before[4])
    for other in ["/./config.yaml", "//config.yaml", "/one/../config.yaml"] {
      #expect(addresses(folder.path + other) == after)
    }
    #expect(addresses("here.yaml") == addresses(String(cString: getcwd(nil, 0)!) + "/here.yaml"))
  }

  @Test("of a configuration comes before that of the service, which may have been started with another")
  func besideTheService() throws {
    for socket in [Config.Control.Socket.automatic, nil] {
      let found = ControlAddress.addresses(socket, configPath: "/nowhere/my.yaml", environment: [:])
      #expect(found.first == .abstract("baudway/\(geteuid())//nowhere/my.yaml"))
    }
  }

  @Test("reports that a path is too long for it")
  func longPath() throws {
    let address = ControlAddress.path("/tmp/" + String(repeating: "x", count: 200))
    #expect(throws: SystemError("bind", ENAMETOOLONG)) { try ControlClient.ask("health", at: address) }
  }

  static func connect(_ address: ControlAddress) throws -> FarEnd {
    let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    let socket = Descriptor(owning: raw)
    guard try address.withSockaddr({ Glibc.connect(raw, $0, $1) }) == 0 else { throw SystemError("connect") }
    return FarEnd(socket, isSocket: true)
  }
}

@Suite("A client of the control socket", .timeLimit(.minutes(5)))
struct ControlClientTests {
  /// Asks a simulated gateway that behaves oddly. Returns the errno and the time it took.
  private func ask(
    within limit: Duration, _ play: @escaping @Sendable (FarEnd) throws -> Void
  ) async throws -> (errno: Int32?, time: Duration) {
    let address = ControlAddress.abstract("baudway-odd-\(getpid())-\(UInt64.random(in: 0 ... .max))")
    let socket = Descriptor(owning: Glibc.socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0))
    let raw = socket.raw
    try #require(try address.withSockaddr { bind(raw, $0, $1) } == 0 && listen(raw, 4) == 0)
    let player = Task {
      try await onOwnThread {
        let client = Descriptor(owning: accept(raw, nil, nil))
        _ = fcntl(client.raw, F_SETFL, O_NONBLOCK)
        let end = FarEnd(client, isSocket: true)
        try play(end)
        end.close()
      }
    }
    let before = monotonicNanoseconds()
    let errno = try await onOwnThread { () -> Int32? in
      do throws(SystemError) {
        _ = try ControlClient.ask("status", at: address, within: limit)
        return nil
      } catch {
        return error.errno
      }
    }
    let time = Duration.nanoseconds(Int64(monotonicNanoseconds() - before))
    _ = try await player.value
    _ = consume socket
    return (errno, time)
  }

  @Test("times out after its limit in total, even if bytes keep trickling in")
  func trickle() async throws {
    let (errno, time) = try await ask(within: .milliseconds(500)) { gateway in
      for _ in 0..<600 {
        usleep(50_000)
        do { try gateway.send([65]) } catch { return }
      }
    }
    #expect(errno == ETIMEDOUT && time >= .milliseconds(500) && time < .seconds(20))
  }

  @Test("rejects half an answer")
  func half() async throws {
    let (errno, _) = try await ask(within: .seconds(60)) { gateway in
      _ = try gateway.receive(exactly: 7)  // otherwise sending the request would fail
      try gateway.send(Array(#"{"routes":["#.utf8))
    }
    #expect(errno == ECONNRESET)
  }

  @Test("accepts a complete answer")
  func whole() async throws {
    let (errno, _) = try await ask(within: .seconds(60)) { gateway in
      _ = try gateway.receive(exactly: 7)
      try gateway.send(Array("{}\n".utf8))
    }
    #expect(errno == nil)
  }
}

@Suite("A control socket that another process shuts down", .timeLimit(.minutes(5)))
struct LostControlTests {
  @Test("is noticed, and the address is bound again", .waits, arguments: ["path", "abstract"])
  func boundAnew(kind: String) async throws {
    let folder = try TemporaryFolder()
    let address: ControlAddress = kind == "path" ? .path(folder / "s") : .abstract("baudway-lost-\(getpid())")
    try await onLane { lane in
      let socketLink = kind == "path" ? folder / "socketLink" : nil
      let server = ControlServer(address, socketLink: socketLink, on: lane.poller) { _, _ in
        OneLine(.object(["healthy": .bool(true)]))
      }
      var turns = [Gate(), Gate(), Gate()]
      var failures: [OpenFailure] = []
      server.start {
        turns.removeFirst().open()
      } failed: { failure in
        failures.append(failure)
      }
      for turn in 1...2 {
        await turns[0].wait(on: lane)
        let answer = try await onOwnThread { () throws in try ControlClient.ask("health", at: address) }
        #expect(String(decoding: answer, as: UTF8.self) == #"{"healthy":true}"#)
        #expect(turns.count == 3 - turn && failures.count == turn - 1)
        if turn == 1 { try #require(shutDown(at: address)) }
      }
      #expect(failures.map { $0.cause?.errno } == [EINVAL])
      #expect(failures[0].description.contains("was shut down"))
      if let socketLink { #expect(SharedFolder.Name(socketLink).target == address.description) }
      let free = Gate()
      server.stop(cuttingOff: true) { free.open() }
      await free.wait(on: lane)
    }
  }

  /// Shuts the socket down, as another process with the same socket does. Returns false when no socket listens there.
  private func shutDown(at address: ControlAddress) -> Bool {
    for raw in Int32(3)..<4096 {
      var listens = Int32(0)
      var length = socklen_t(4)
      guard getsockopt(raw, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0, listens == 1 else { continue }
      if UnixAddress(localOf: raw) == address { return shutdown(raw, Int32(SHUT_RDWR)) == 0 }
    }
    return false
  }
}

/// An answer of many pieces.
private final class Pieces: ControlAnswer {
  private var left: Int
  private let size: Int
  private let made: Counter

  init(count: Int, size: Int, _ made: Counter) {
    left = count
    self.size = size
    self.made = made
  }

  func next(_ done: @escaping ([UInt8]?) -> Void) {
    guard left > 0 else { return done(nil) }
    left -= 1
    made.increment()
    done([UInt8](repeating: UInt8(ascii: "x"), count: size) + (left == 0 ? [UInt8(ascii: "\n")] : []))
  }
}

private final class Counter: Sendable {
  private let count = Atomic<Int>(0)
  var value: Int { count.load(ordering: .relaxed) }
  func increment() { count.add(1, ordering: .relaxed) }
}

/// What a callback on the same lane returned.
@Suite("A search for gateways")
struct GatewaySearchTests {
  @Test("finds the abstract sockets of gateways in /proc/net/unix, each once")
  func names() {
    let text = """
      Num       RefCount Protocol Flags    Type St Inode Path
      0000000000000000: 00000002 00000000 00010000 0001 01 17 @baudway/1000/home/ada/my config.yaml
      0000000000000000: 00000003 00000000 00000000 0001 03 18 @baudway/1000/home/ada/my config.yaml
      0000000000000000: 00000002 00000000 00010000 0001 01 19 @baudway/0/etc/b.yaml
      0000000000000000: 00000002 00000000 00010000 0001 01 20 /run/baudway/1000/x
      0000000000000000: 00000002 00000000 00010000 0001 01 21 @baudway/x/y
      0000000000000000: 00000002 00000000 00010000 0001 01 22
      0000000000000000: 00000002 00000000 zz 0001 01 23 @baudway/0/z
      short
      """
    #expect(GatewaySearch.abstractNames(text) == ["baudway/0/etc/b.yaml", "baudway/1000/home/ada/my config.yaml"])
    #expect(GatewaySearch.abstractNames("") == [])
  }

  @Test("takes no listener in the runtime folder for a control socket")
  func paths() {
    let names = ["control.sock", "control-1f.sock", "gps.sock", "control-1f", "xcontrol.sock"]
    #expect(names.filter(ControlAddress.isOfControl) == ["control.sock", "control-1f.sock"])
  }
}

private final class Kept<Value> {
  var value: Value?
}
