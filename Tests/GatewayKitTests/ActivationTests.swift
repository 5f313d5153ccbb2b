// Sockets that a starter (such as systemd) has bound for us: which ones we take over, which listener gets which, and
// that they outlive their listeners.

import CLinux
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// A socket that a starter has bound, and keeps open.
private final class Bound: Sendable {
  let raw: Int32
  private let parcel: DescriptorParcel

  init(_ descriptor: consuming Descriptor) {
    raw = descriptor.raw
    parcel = DescriptorParcel(descriptor)
    _ = fcntl(raw, F_SETFL, fcntl(raw, F_GETFL) & ~O_NONBLOCK)  // as systemd passes them
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
    Bound(try UnixSocketFile.open(path, NodeOwnership(mode: mode), queue: 8).socket.take()!)
  }

  /// A descriptor as a process gets it through execve(2), for an `InheritedSockets` to own.
  func handedOver(as name: String? = nil) -> ListenFDs.Item { ListenFDs.Item(raw: dup(raw), name: name) }

  var address: SocketAddress { get throws { try #require(try SocketAddress.local(of: raw)) } }
  var url: String { get throws { try "tcp://\(address)" } }
}

extension InheritedSockets {
  /// Closes the descriptors, as the end of a process does.
  fileprivate func closeAll() { for socket in sockets { close(socket.raw) } }
}

private func echo(_ listen: String, _ more: String = "") throws -> Config.Route {
  try routeConfig(more, listen: listen, endpoint: "sim://echo")
}

private func expectEcho(_ client: FarEnd, _ byte: UInt8 = 1) throws {
  try client.send([byte])
  #expect(try client.receive(exactly: 1) == [byte])
}

@Suite("An inherited socket", .timeLimit(.minutes(5)))
struct ActivationTests {
  private func listen(_ url: String) throws -> Config.Listen { try #require(try echo(url).listen.first) }

  /// Takes sockets over for routes that listen at these URLs. Returns them and what was reported.
  private func inherit(
    _ items: [ListenFDs.Item], for urls: String...
  ) throws -> (sockets: InheritedSockets, reported: [String]) {
    var reported: [String] = []
    let sockets = InheritedSockets(ListenFDs(items), for: try urls.map { try echo($0) }) { event in
      if case .inheritedUnused(let socket, let name, let fault) = event {
        reported.append("\(socket) \(name ?? "-") \(fault)")
      }
    }
    return (sockets, reported)
  }

  /// The file behind that descriptor number. Parallel tests reuse numbers as soon as they are free.
  private func identity(_ item: ListenFDs.Item) -> FileIdentity? {
    var status = stat()
    return fstat(item.raw, &status) == 0 ? FileIdentity(device: status.st_dev, number: status.st_ino) : nil
  }

  private struct FileIdentity: Equatable {
    var device: dev_t
    var number: ino_t
  }

  // MARK: - Which listener gets a socket

  @Test(
    "is for the listeners at its address; one bound to all addresses is for listeners at all addresses",
    arguments: [
      ("127.0.0.1", "127.0.0.1", true), ("127.0.0.1", "localhost", true), ("127.0.0.1", "", false),
      ("127.0.0.1", "127.0.0.2", false), ("127.0.0.1", "0.0.0.0", false), ("0.0.0.0", "", true), ("0.0.0.0", "*", true),
      ("0.0.0.0", "0.0.0.0", true), ("0.0.0.0", "[::]", false), ("0.0.0.0", "127.0.0.1", false), ("::", "", true),
      ("::", "[::]", true), ("::", "0.0.0.0", false), ("::1", "[::1]", true), ("::1", "127.0.0.1", false),
    ])
  func matches(bound: String, host: String, isMeant: Bool) throws {
    let place = InheritedSockets.Address.tcp(try #require(SocketAddress(numeric: bound, port: 4001)))
    #expect(try place.isMeant(by: listen("tcp://\(host):4001")) == isMeant)
    #expect(try !place.isMeant(by: listen("tcp://\(host):4002")) && !place.isMeant(by: listen("tcp://\(host):0")))
    #expect(try !place.isMeant(by: listen("unix:///run/4001")))
  }

  @Test("of a path is for the listener at that path, also through a symbolic link to the folder")
  func paths() throws {
    let folder = try TemporaryFolder()
    #expect(mkdir(folder / "run", 0o700) == 0 && symlink("run", folder / "var-run") == 0)
    let files = try [Bound.unix(folder / "run/x"), Bound.unix(folder / "run/y")]
    let place = InheritedSockets.Address.unix(path: folder / "run/x")
    #expect(try place.isMeant(by: listen("unix://\(folder / "run/x")?mode=0600")))
    #expect(try place.isMeant(by: listen("unix://\(folder / "var-run/x")")))
    #expect(try !place.isMeant(by: listen("unix://\(folder / "var-run/y")")))
    #expect(try !place.isMeant(by: listen("unix://\(folder / "other/x")")))
    #expect(try !place.isMeant(by: listen("tcp://:4001")))
    withExtendedLifetime(files) {}
  }

  @Test("is taken over, becomes non-blocking and is not passed on to other programs")
  func takenOver() throws {
    let starter = try Bound.tcp("127.0.0.1")
    let item = starter.handedOver()
    let (sockets, reported) = try inherit([item], for: starter.url)
    #expect(sockets.sockets.map(\.raw) == [item.raw] && reported == [])
    #expect(fcntl(item.raw, F_GETFD) & FD_CLOEXEC != 0 && fcntl(item.raw, F_GETFL) & O_NONBLOCK != 0)
    sockets.closeAll()
  }

  @Test("without a listener at its address is reported and closed")
  func unused() throws {
    let (wanted, unwanted) = (try Bound.tcp("127.0.0.1"), try Bound.tcp("127.0.0.1"))
    let items = [unwanted.handedOver(as: "test"), wanted.handedOver()]
    let handed = try #require(identity(items[0]))
    let (sockets, reported) = try inherit(items, for: wanted.url, "unix:///run/other")
    #expect(sockets.sockets.map(\.raw) == [items[1].raw])
    #expect(try reported == ["\(unwanted.url) test no listener has its address"])
    #expect(identity(items[0]) != handed)
    sockets.closeAll()
  }

  @Test("must be a listening stream socket; any other descriptor is reported and closed")
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
    let (sockets, reported) = try inherit(items, for: deaf.url)
    let noStream = "it is neither a TCP socket nor a unix stream socket with a path"
    #expect(
      reported == [
        "descriptor \(items[0].raw) - it is not a socket", "descriptor \(items[1].raw) - \(noStream)",
        "descriptor \(items[2].raw) - it does not listen", "descriptor \(items[3].raw) - \(noStream)",
      ])
    #expect(sockets.sockets.isEmpty && !handed.contains(nil))
    #expect(!zip(items, handed).contains { identity($0) == $1 })
  }

  @Test("counts once if it is passed twice, but two sockets of one TCP address are both used")
  func twice() throws {
    let folder = try TemporaryFolder()
    let one = try Bound.tcp("127.0.0.1", isReused: true)
    let two = try Bound.tcp("127.0.0.1", port: one.address.port, isReused: true)
    let old = try Bound.unix(folder / "x")
    unlink(folder / "x")
    let new = try Bound.unix(folder / "x")
    let items = [one, one, two, old, new].map { $0.handedOver() }
    let (sockets, reported) = try inherit(items, for: one.url, "unix://\(folder / "x")")
    #expect(sockets.sockets.map(\.raw) == [items[0].raw, items[2].raw, items[3].raw])
    #expect(
      try reported == [
        "\(one.url) - it is the same as descriptor \(items[0].raw)",
        "unix://\(folder / "x") - it is the same as descriptor \(items[3].raw)",
      ])
    sockets.closeAll()
  }

  // MARK: - With a listener

  @Test("is served by its listener, and stays open for the next listener when that one is gone")
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
      // Without a listener clients wait in the backlog; none is refused.
      let client = try connectTCP(address)
      waiting.withLock { $0 = client }
    }
    sockets.closeAll()
  }

  @Test("keeps clients in its backlog while a reload removes its listener, until another reload brings it back")
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
      // On the lane, so that no client is accepted before the listeners stop.
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

  @Test("for IPv4 and one for IPv6 serve one listener at all addresses")
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

  @Test("has the options of the route that listens on it at present")
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
  /// The same route with other listeners.
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
