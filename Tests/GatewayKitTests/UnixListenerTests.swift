// Unix listeners: the owner of the file, which clients may connect, and when the file is replaced or removed.

import CLinux
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A unix listener", .timeLimit(.minutes(5)))
struct UnixListenerTests {
  private func status(of path: String) -> stat? {
    var status = stat()
    return lstat(path, &status) == 0 ? status : nil
  }

  @Test(
    "gives its file the mode, owner and group of its URL",
    .enabled(if: geteuid() == 0, "only root gives nodes to other users"))
  func rights() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "gps.sock"
    let url = "unix://\(path)?mode=0622&owner=4711&group=nogroup"
    try await withRoute(routeConfig(listen: url, endpoint: "sim://echo")) { story, _ in
      #expect(try story.bound() == "unix://\(path)")
      let status = try #require(self.status(of: path))
      #expect(status.st_mode & 0o7777 == 0o622 && status.st_uid == 4711)
      #expect(try status.st_gid == NodeOwnership.group("nogroup"))
    }
    #expect(status(of: path) == nil)
  }

  @Test("reports its clients by user and process")
  func credentials() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "gps.sock"
    try await withRoute(routeConfig(listen: "unix://\(path)", endpoint: "sim://echo")) { story, _ in
      _ = try story.bound()
      let client = try connectUnix(path)
      let label = try story.wait { events in
        events.compactMap { event in if case .sessionOpened(_, _, let label) = event { label } else { nil } }.first
      }
      #expect(label.client == "uid \(geteuid()), pid \(getpid())")
      client.close()
    }
  }

  @Test("waits for the folder of its path")
  func missingFolder() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "later/gps.sock"
    try await withRoute(routeConfig(listen: "unix://\(path)", endpoint: "sim://echo")) { story, _ in
      let failure = try story.wait { events in
        events.compactMap { event in if case .listenerWaits(_, _, let error, _) = event { error } else { nil } }.first
      }
      #expect(failure.description == "bind \(path): No such file or directory (ENOENT); create its folder first")
      mkdir(folder / "later", 0o700)
      _ = try story.bound()
      try connectUnix(path).close()
    }
  }

  @Test("forwards half-closes, after the bytes before them")
  func halfClose() async throws {
    let server = try LoopbackListener()
    let folder = try TemporaryFolder()
    let config = try routeConfig(listen: "unix://\(folder / "x")", endpoint: "tcp://\(server.address)")
    try await withRoute(config) { story, _ in
      _ = try story.bound()
      let client = try connectUnix(folder / "x")
      let endpoint = try server.accept()
      try client.send([1, 2, 3])
      client.finishWriting()
      #expect(try endpoint.receiveToEnd() == [1, 2, 3])
      try endpoint.send([4, 5])
      endpoint.finishWriting()
      #expect(try client.receiveToEnd() == [4, 5])
    }
    server.close()
  }

  @Test(
    "takes its path again when a check finds its file removed or replaced",
    arguments: [false, true])
  func removed(isTaken: Bool) async throws {
    let folder = try TemporaryFolder()
    let path = folder / "x"
    try await withRoute(routeConfig(listen: "unix://\(path)", endpoint: "sim://echo")) { story, route in
      _ = try story.bound()
      let client = try connectUnix(path)
      try client.send([1])
      #expect(try client.receive(exactly: 1) == [1])
      checkSocketFiles(of: route)
      #expect(!story.all.contains { if case .listenerWaits = $0 { true } else { false } })
      try #require(unlink(path) == 0)
      if isTaken { try folder.write("x", "somebody's") }
      checkSocketFiles(of: route)
      let reasons = story.all.compactMap { event in
        if case .listenerWaits(_, _, let failure, _) = event { failure.description } else { nil }
      }
      #expect(reasons.first == "look at \(path): it was removed or replaced; creating it again")
      #expect(reasons.count == (isTaken ? 2 : 1))
      if isTaken { try #require(unlink(path) == 0) }
      _ = try story.bound(of: "x", 1)
      let second = try connectUnix(path)
      for one in [client, second] { try one.send([2]) }
      for one in [client, second] { #expect(try one.receive(exactly: 1) == [2]) }
    }
    #expect(access(path, F_OK) != 0)
  }

  @Test("makes way for another listener of its route at a reload, with another mode")
  func reload() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "x"
    try await withRoute(routeConfig(listen: "unix://\(path)", endpoint: "sim://echo")) { story, route in
      _ = try story.bound()
      let client = try connectUnix(path)
      try client.send([1])
      #expect(try client.receive(exactly: 1) == [1])
      let config = try routeConfig(listen: "unix://\(path)?mode=0600", endpoint: "sim://echo")
      let connector = try Gateway.broker.connector(config.endpoint)
      route.post { _, route in route.update(config, connector: connector) }
      _ = try story.bound(of: "x", 1)
      #expect(try #require(self.status(of: path)).st_mode & 0o777 == 0o600)
      #expect(!story.all.contains { if case .listenerWaits = $0 { true } else { false } })
      let second = try connectUnix(path)
      for one in [client, second] { try one.send([2]) }
      for one in [client, second] { #expect(try one.receive(exactly: 1) == [2]) }
    }
  }
}

@Suite("A unix listener at reloads", .timeLimit(.minutes(5)))
struct UnixListenerReloadTests {
  @Test("is the last of two that are configured while the former one is closing")
  func twice() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "x"
    try await withRoute(routeConfig(listen: "unix://\(path)", endpoint: "sim://echo")) { story, route in
      _ = try story.bound()
      let configs = try ["0600", "0640"].map { mode in
        try routeConfig(listen: "unix://\(path)?mode=\(mode)", endpoint: "sim://echo")
      }
      let connector = try Gateway.broker.connector(configs[0].endpoint)
      route.post { _, route in
        for config in configs { route.update(config, connector: connector) }
      }
      // Until then the reload does not count as done.
      let board = StatusBoard()
      try ask(route) { _ in story.all.forEach(board.observe) }
      #expect(board.listeners(of: "x").map(\.url) == ["unix://\(path)"])
      _ = try story.bound(of: "x", 1)
      #expect(
        try ask(route) { $0.listeners.map { $0.listen.url.description } } == [configs[1].listen[0].url.description])
      var status = stat()
      #expect(lstat(path, &status) == 0 && status.st_mode & 0o777 == 0o640)
    }
    #expect(access(path, F_OK) != 0)
  }
}

@Suite("A unix socket's file")
struct UnixSocketFileTests {
  private let folder: TemporaryFolder
  private let path: String

  init() throws {
    folder = try TemporaryFolder()
    path = folder / "door"
  }

  private func open() throws(OpenFailure) -> UnixSocketFile { try UnixSocketFile.open(path, NodeOwnership(), queue: 1) }

  /// A socket bound at the path, not listening.
  private func bound(_ type: __socket_type = SOCK_STREAM) throws -> Descriptor {
    let socket = Descriptor(owning: linux_socket(AF_UNIX, Int32(type.rawValue), 0))
    let raw = socket.raw
    let answer = try UnixAddress.path(path).withSockaddr { Glibc.bind(raw, $0, $1) }
    try #require(answer == 0)
    return socket
  }

  @Test("is replaced when its socket is gone")
  func leftOver() throws {
    try makeLeftOverSocket(at: path)
    let socketFile = try open()
    try connectUnix(path).close()
    socketFile.removeFile()
    #expect(access(path, F_OK) != 0)
  }

  @Test("stays when its socket exists, though it does not listen yet, or is of another type", arguments: [1, 2, 5])
  func inUse(type: UInt32) throws {
    let other = try bound(__socket_type(type))
    #expect(throws: OpenFailure.self) { try open() }
    #expect(access(path, F_OK) == 0)
    _ = consume other
  }

  @Test("can be checked for a crashed owner without its listener noticing")
  func unnoticed() throws {
    let socketFile = try open()
    #expect(throws: OpenFailure.self) { try open() }
    let socket = socketFile.socket.take()!
    #expect(linux_accept(socket.raw, nil, nil) == -1 && errno == EAGAIN)
  }

  @Test("replaces nothing but a socket", arguments: ["file", "folder", "link"])
  func others(kind: String) throws {
    switch kind {
    case "file": Glibc.close(creat(path, 0o600))
    case "folder": mkdir(path, 0o700)
    default: #expect(symlink("/nowhere/at/all", path) == 0)
    }
    setTime(of: path, 13_569_465_600)  // the year 2400: its nanoseconds do not fit into 64 bits
    let failure = #expect(throws: OpenFailure.self) { try open() }
    #expect(failure?.cause?.errno == EADDRINUSE)
    var status = stat()
    #expect(lstat(path, &status) == 0)
  }

  @Test("is not removed once another process's file has its place")
  func replaced() throws {
    let socketFile = try open()
    unlink(path)
    let other = try open()
    socketFile.removeFile()
    try connectUnix(path).close()
    other.removeFile()
    #expect(access(path, F_OK) != 0)
  }

  @Test("is not removed when another file has its former inode, as after a restart")
  func inodeOfOther() throws {
    let socketFile = try open()
    _ = socketFile.socket.take()
    usleep(20_000)  // the clock of file systems ticks every 4 ms, or 10
    let other = try open()
    socketFile.removeFile()
    #expect(access(path, F_OK) == 0)
    other.removeFile()
  }

  @Test("does not appear at its path if its owner is unknown")
  func unknownOwner() throws {
    let failure = #expect(throws: OpenFailure.self) {
      try UnixSocketFile.open(path, NodeOwnership(owner: "nobody.here"), queue: 1)
    }
    #expect(failure?.description == "look up user nobody.here: this system has no such name")
    #expect(access(path, F_OK) != 0)
  }

  /// What another user with write access to the folder may do between bind(2) and the change of the file's rights.
  static let exchanges = ["a link to a file", "a hard link to a file", "a socket with another name", "nothing"]

  @Test(
    "is not confused with another file that takes its name: that file keeps its mode and its place",
    arguments: exchanges)
  func exchanged(kind: String) throws {
    let secret = folder / "secret"
    Glibc.close(creat(secret, 0o600))
    let other = try UnixSocketFile.open(folder / "other", NodeOwnership(mode: 0o600), queue: 1)
    let failure = #expect(throws: OpenFailure.self) {
      try UnixSocketFile.open(path, NodeOwnership(mode: 0o666), queue: 1) {
        switch kind {
        case "a link to a file": #expect(symlink(secret, folder / "new") == 0)
        case "a hard link to a file": #expect(link(secret, folder / "new") == 0)
        case "a socket with another name": #expect(link(folder / "other", folder / "new") == 0)
        default: #expect(unlink(path) == 0)
        }
        if kind != "nothing" { #expect(rename(folder / "new", path) == 0) }
      }
    }
    #expect(failure?.description.contains("the file was re") == true, "\(String(describing: failure))")
    for name in ["secret", "other"] {
      var status = stat()
      #expect(stat(folder / name, &status) == 0 && status.st_mode & 0o777 == 0o600)
    }
    var status = stat()
    #expect((lstat(path, &status) == 0) == (kind != "nothing"))
    other.removeFile()
  }

  @Test("stays when it replaces our file at the moment of its removal")
  func exchangedAtTheEnd() throws {
    #expect(symlink("/nowhere", folder / "new") == 0)
    Glibc.close(creat(path, 0o600))
    var looks = 0
    let isRemoved = try SharedFolder.remove(path) { name in
      looks += 1
      if looks > 1 { return name.target == nil }
      #expect(rename(folder / "new", path) == 0)
      return true
    }
    #expect(!isRemoved && looks == 2 && SharedFolder.Name(path).target == "/nowhere")
    // Nothing else is left beside it, hidden or not: rmdir would fail.
    #expect(unlink(path) == 0 && rmdir(folder.path) == 0)
  }
}
