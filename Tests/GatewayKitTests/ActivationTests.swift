// Sockets that a starter has bound for us: which are taken over, who listens on which, and that they outlive their listeners.

import CLinux
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// A socket that a starter has bound, and keeps.
private final class Bound: Sendable {
  let raw: Int32
  private let parcel: DescriptorParcel

  init(_ descriptor: consuming Descriptor) {
    raw = descriptor.raw
    parcel = DescriptorParcel(descriptor)
    _ = fcntl(raw, F_SETFL, fcntl(raw, F_GETFL) & ~O_NONBLOCK)  // as systemd has them
  }

  static func tcp(_ host: String, port: UInt16 = 0, listens: Bool = true, isReused: Bool = false) throws -> Bound {
    let address = try #require(SocketAddress(numeric: host, port: port))
    let socket = Bound(try Descriptor.socket(address.family))
    try SocketOptions.set(socket.raw, SOL_SOCKET, isReused ? SO_REUSEPORT : SO_REUSEADDR, 1)
    if address.family == .ipv6 { try SocketOptions.set(socket.raw, Int32(IPPROTO_IPV6), IPV6_V6ONLY, 1) }
    try #require(address.withSockaddr { bind(socket.raw, $0, $1) } == 0)
    if listens { try #require(listen(socket.raw, 128) == 0) }
    return socket
  }

  static func unix(_ path: String, mode: UInt32 = 0o600) throws -> Bound {
    Bound(try UnixDoor.open(path, NodeOwnership(mode: mode), queue: 8).socket.take()!)
  }

  /// A descriptor as it comes through execve(2), for an `InheritedSockets` to own.
  func handedOver(as name: String? = nil) -> Handover.Item { Handover.Item(raw: dup(raw), name: name) }

  var address: SocketAddress { get throws { try #require(try SocketAddress.local(of: raw)) } }
  var url: String { get throws { try "tcp://\(address)" } }
}

extension InheritedSockets {
  /// What a process does when it ends.
  fileprivate func closeAll() { for socket in sockets { close(socket.raw) } }
}

private func echo(_ listen: String, _ more: String = "") throws -> Config.Route {
  try routeConfig(more, listen: listen, endpoint: "sim://echo")
}

private func expectEcho(_ client: FarEnd, _ byte: UInt8 = 1) throws {
  try client.send([byte])
  #expect(try client.receive(exactly: 1) == [byte])
}

@Suite("An inherited socket", .timeLimit(.minutes(1)))
struct ActivationTests {
  private func listen(_ url: String) throws -> Config.Listen { try #require(try echo(url).listen.first) }

  /// Takes over these for routes that listen there; and what was told of them.
  private func inherit(
    _ items: [Handover.Item], for urls: String...
  ) throws -> (sockets: InheritedSockets, told: [String]) {
    var told: [String] = []
    let sockets = InheritedSockets(Handover(items), for: try urls.map { try echo($0) }) { event in
      if case .inheritedUnused(let socket, let name, let fault) = event {
        told.append("\(socket) \(name ?? "-") \(fault)")
      }
    }
    return (sockets, told)
  }

  /// What is open by that number: tests that run beside this one take numbers as soon as they are free.
  private func identity(_ item: Handover.Item) -> FileIdentity? {
    var status = stat()
    return fstat(item.raw, &status) == 0 ? FileIdentity(device: status.st_dev, number: status.st_ino) : nil
  }

  private struct FileIdentity: Equatable {
    var device: dev_t
    var number: ino_t
  }

  // MARK: - Whose it is

  @Test(
    "is for the listeners that have its address, and for those of all addresses if it means all",
    arguments: [
      ("127.0.0.1", "127.0.0.1", true), ("127.0.0.1", "localhost", true), ("127.0.0.1", "", false),
      ("127.0.0.1", "127.0.0.2", false), ("127.0.0.1", "0.0.0.0", false), ("0.0.0.0", "", true), ("0.0.0.0", "*", true),
      ("0.0.0.0", "0.0.0.0", true), ("0.0.0.0", "[::]", false), ("0.0.0.0", "127.0.0.1", false), ("::", "", true),
      ("::", "[::]", true), ("::", "0.0.0.0", false), ("::1", "[::1]", true), ("::1", "127.0.0.1", false),
    ])
  func matches(bound: String, host: String, isMeant: Bool) throws {
    let place = InheritedSockets.Place.tcp(try #require(SocketAddress(numeric: bound, port: 4001)))
    #expect(try place.isMeant(by: listen("tcp://\(host):4001")) == isMeant)
    #expect(try !place.isMeant(by: listen("tcp://\(host):4002")) && !place.isMeant(by: listen("tcp://\(host):0")))
    #expect(try !place.isMeant(by: listen("unix:///run/4001")))
  }

  @Test("of a path is for the listener at that path, by whatever name the folder goes")
  func paths() throws {
    let folder = try TemporaryFolder()
    #expect(mkdir(folder / "run", 0o700) == 0 && symlink("run", folder / "var-run") == 0)
    let files = try [Bound.unix(folder / "run/x"), Bound.unix(folder / "run/y")]
    let place = InheritedSockets.Place.unix(path: folder / "run/x")
    #expect(try place.isMeant(by: listen("unix://\(folder / "run/x")?mode=0600")))
    #expect(try place.isMeant(by: listen("unix://\(folder / "var-run/x")")))
    #expect(try !place.isMeant(by: listen("unix://\(folder / "var-run/y")")))
    #expect(try !place.isMeant(by: listen("unix://\(folder / "other/x")")))
    #expect(try !place.isMeant(by: listen("tcp://:4001")))
    withExtendedLifetime(files) {}
  }

  @Test("is taken over, does not block and is for no other program")
  func takenOver() throws {
    let starter = try Bound.tcp("127.0.0.1")
    let item = starter.handedOver()
    let (sockets, told) = try inherit([item], for: starter.url)
    #expect(sockets.sockets.map(\.raw) == [item.raw] && told == [])
    #expect(fcntl(item.raw, F_GETFD) & FD_CLOEXEC != 0 && fcntl(item.raw, F_GETFL) & O_NONBLOCK != 0)
    sockets.closeAll()
  }

  @Test("that no listener has the address of is told of and closed")
  func unused() throws {
    let (wanted, unwanted) = (try Bound.tcp("127.0.0.1"), try Bound.tcp("127.0.0.1"))
    let items = [unwanted.handedOver(as: "test"), wanted.handedOver()]
    let handed = try #require(identity(items[0]))
    let (sockets, told) = try inherit(items, for: wanted.url, "unix:///run/other")
    #expect(sockets.sockets.map(\.raw) == [items[1].raw])
    #expect(try told == ["\(unwanted.url) test no listener has its address"])
    #expect(identity(items[0]) != handed)
    sockets.closeAll()
  }

  @Test("is a listening stream socket; whatever else is handed over is told of and closed")
  func otherThings() throws {
    let folder = try TemporaryFolder()
    let file = Bound(Descriptor(owning: open(folder / "file", O_RDONLY | O_CREAT | O_CLOEXEC, 0o600)))
    let datagrams = Bound(try Descriptor.socket(.ipv4, type: Int32(SOCK_DGRAM.rawValue)))
    let deaf = try Bound.tcp("127.0.0.1", listens: false)
    let abstract = Bound(Descriptor(owning: linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)))
    try #require(try UnixAddress.abstract("activation-\(getpid())").withSockaddr { bind(abstract.raw, $0, $1) } == 0)
    try #require(Glibc.listen(abstract.raw, 1) == 0)
    let items = [file, datagrams, deaf, abstract].map { $0.handedOver() }
    let handed = items.map(identity)
    let (sockets, told) = try inherit(items, for: deaf.url)
    let noStream = "it is no TCP socket and no unix stream socket with a path"
    #expect(
      told == [
        "descriptor \(items[0].raw) - it is no socket", "descriptor \(items[1].raw) - \(noStream)",
        "descriptor \(items[2].raw) - it does not listen", "descriptor \(items[3].raw) - \(noStream)",
      ])
    #expect(sockets.sockets.isEmpty && !handed.contains(nil))
    #expect(!zip(items, handed).contains { identity($0) == $1 })
  }

  @Test("counts once, though two of one TCP address are two")
  func twice() throws {
    let folder = try TemporaryFolder()
    let one = try Bound.tcp("127.0.0.1", isReused: true)
    let two = try Bound.tcp("127.0.0.1", port: one.address.port, isReused: true)
    let old = try Bound.unix(folder / "x")
    unlink(folder / "x")
    let new = try Bound.unix(folder / "x")
    let items = [one, one, two, old, new].map { $0.handedOver() }
    let (sockets, told) = try inherit(items, for: one.url, "unix://\(folder / "x")")
    #expect(sockets.sockets.map(\.raw) == [items[0].raw, items[2].raw, items[3].raw])
    #expect(
      try told == [
        "\(one.url) - it is the same as descriptor \(items[0].raw)",
        "unix://\(folder / "x") - it is the same as descriptor \(items[3].raw)",
      ])
    sockets.closeAll()
  }

  // MARK: - With a listener

  @Test("is served by its listener, and waits for another one when that is gone")
  func outlives() async throws {
    let starter = try Bound.tcp("127.0.0.1")
    let (url, address) = (try starter.url, try starter.address)
    let (sockets, _) = try inherit([starter.handedOver()], for: url)
    let waiting = Mutex<FarEnd?>(nil)
    for _ in 0..<3 {
      try await withRoute(echo(url), inherited: sockets) { story, _ in
        #expect(try story.bound() == url)
        if let before = waiting.withLock({ $0.take() }) { try expectEcho(before) }
        try expectEcho(connectTCP(address))
      }
      // Nobody listens, and nobody is refused.
      let client = try connectTCP(address)
      waiting.withLock { $0 = client }
    }
    sockets.closeAll()
  }

  @Test("keeps who has not been accepted when a reload takes its listener away, for the one that brings it back")
  func reload() async throws {
    let folder = try TemporaryFolder()
    let (tcp, unix) = (try Bound.tcp("127.0.0.1"), try Bound.unix(folder / "x"))
    let urls = try [tcp.url, "unix://\(folder / "x")"]
    let address = try tcp.address
    let (sockets, _) = try inherit([tcp.handedOver(), unix.handedOver()], for: urls[0], urls[1])
    let both = try echo("tcp://127.0.0.1:0").listening(at: urls)
    let none = try echo("tcp://127.0.0.1:0")
    try await withRoute(both, inherited: sockets) { story, route in
      _ = try story.bound(of: "x", 1)
      let connector = try Gateway.broker.connector(none.endpoint)
      // On the lane, so that nobody is accepted before the listeners go.
      let clients = try ask(route) { route in
        let clients = [try? connectTCP(address), try? connectUnix(folder / "x")]
        route.update(none, connector: connector)
        return clients
      }
      _ = try story.bound(of: "x", 2)
      #expect(story.opened == 0)
      try ask(route) { $0.update(both, connector: connector) }
      for client in clients { try expectEcho(#require(client)) }
      #expect(story.waits.isEmpty)
    }
    sockets.closeAll()
    var status = stat()
    #expect(lstat(folder / "x", &status) == 0)
  }

  @Test("for IPv4 and one for IPv6 serve one listener for all addresses")
  func both() async throws {
    let v4 = try Bound.tcp("0.0.0.0")
    let port = try v4.address.port
    let v6 = try Bound.tcp("::", port: port)
    let (sockets, _) = try inherit([v4.handedOver(), v6.handedOver()], for: "tcp://:\(port)")
    try await withRoute(echo("tcp://:\(port)"), inherited: sockets) { story, _ in
      #expect(try story.bound() == "tcp://*:\(port)")
      for host in ["127.0.0.1", "::1"] {
        try expectEcho(connectTCP(try #require(SocketAddress(numeric: host, port: port))))
      }
    }
    sockets.closeAll()
  }

  @Test("of a path keeps its file and its mode")
  func file() async throws {
    let folder = try TemporaryFolder()
    let path = folder / "x.sock"
    let starter = try Bound.unix(path, mode: 0o604)
    let (sockets, _) = try inherit([starter.handedOver()], for: "unix://\(path)?mode=0600")
    for _ in 0..<2 {
      try await withRoute(echo("unix://\(path)?mode=0600"), inherited: sockets) { story, _ in
        _ = try story.bound()
        try expectEcho(connectUnix(path))
      }
      var status = stat()
      #expect(lstat(path, &status) == 0 && status.st_mode & 0o777 == 0o604)
    }
    sockets.closeAll()
  }

  @Test("has the options of the route that listens on it now")
  func options() async throws {
    let starter = try Bound.tcp("127.0.0.1")
    let (url, raw) = (try starter.url, starter.raw)
    let (sockets, _) = try inherit([starter.handedOver()], for: url)
    let option = { @Sendable (level: Int32, name: Int32) -> Int32 in
      var value: Int32 = -1
      var length = socklen_t(MemoryLayout<Int32>.size)
      getsockopt(raw, level, name, &value, &length)
      return value
    }
    for isShared in [true, false, true] {
      let more = "link: \(isShared ? "shared" : "per-client"), clients: { keepalive: \(isShared ? "on" : "off") }"
      try await withRoute(echo(url, more), inherited: sockets) { story, _ in
        _ = try story.bound()
        #expect(option(Int32(IPPROTO_TCP), TCP_NODELAY) == 1)
        #expect(option(SOL_SOCKET, SO_KEEPALIVE) == (isShared ? 1 : 0))
        #expect(option(Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT) == (isShared ? SocketOptions.notSentLowWater : 0))
      }
    }
    sockets.closeAll()
  }
}

extension Config.Route {
  /// The same with other listeners.
  fileprivate func listening(at urls: [String]) throws -> Config.Route {
    var route = self
    route.listen = try urls.map { try #require(try echo($0).listen.first) }
    return route
  }
}

extension Story {
  fileprivate var waits: [OpenFailure] {
    all.compactMap { event in if case .listenerWaits(_, _, let failure, _) = event { failure } else { nil } }
  }
}
