// Bluetooth listeners with a simulated kernel: adapters are answers on a socket, channels are unix sockets of this
// machine.

import CLinux
import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit
@testable import StreamBrokerBluetooth

@Suite("An rfcomm listener", .timeLimit(.minutes(5)))
struct RFCOMMListenerTests {
  /// A kernel with one adapter that is ready, or none. It answers at once.
  private final class Machine: Sendable {
    let folder: TemporaryFolder
    private let isThere: Bool
    /// Another process's copy of the listening socket.
    private let copy = Mutex<Int32>(-1)

    init(hasAdapter: Bool = true) throws {
      isThere = hasAdapter
      folder = try TemporaryFolder()
    }

    deinit { close(copy.withLock { $0 }) }

    func path(_ channel: Int) -> String { folder / "channel-\(channel)" }

    func shutDown() { #expect(shutdown(copy.withLock { $0 }, Int32(SHUT_RDWR)) == 0) }

    @Sendable func host(_ poller: Poller) -> BluetoothHost {
      BluetoothHost(
        on: poller,
        services: SDPServer(on: poller) { _ in .failure(OpenFailure("list the service", nil, advice: "nobody does")) },
        sockets: HostSockets {
          self.manage()
        } channel: { offer, _ in
          self.listen(Int(offer.channel ?? 1))
        })
    }

    private func manage() -> Result<DescriptorParcel, OpenFailure> {
      var ends: [Int32] = [-1, -1]
      guard linux_socketpair(AF_UNIX, Int32(SOCK_SEQPACKET.rawValue), &ends) == 0 else {
        return .failure(OpenFailure("socketpair", SystemError("socketpair")))
      }
      let kernel = DescriptorParcel(Descriptor(owning: ends[1]))
      let isThere = isThere
      // On a thread of its own, since it waits as long as the gateway lives.
      DispatchQueue(label: "kernel").async { Self.answer(kernel, isThere) }
      return .success(DescriptorParcel(Descriptor(owning: ends[0])))
    }

    /// Runs until the other side closes.
    private static func answer(_ kernel: DescriptorParcel, _ isThere: Bool) {
      guard let socket = kernel.take() else { return }
      var buffer = [UInt8](repeating: 0, count: 64)
      while true {
        var one = pollfd(fd: socket.raw, events: Int16(POLLIN), revents: 0)
        guard poll(&one, 1, 60_000) == 1, recv(socket.raw, &buffer, buffer.count, 0) >= 6 else { return }
        var content: [UInt8] = []
        if buffer[0] == 3 { content = isThere ? [1, 0, 0, 0] : [0, 0] }
        if buffer[0] == 4 { content = [1, 0, 0, 0, 0, 0, 9, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0x83, 0, 0, 0, 0, 0, 0] }
        let event = [1, 0, buffer[2], buffer[3], UInt8(3 + content.count), 0, buffer[0], 0, 0] + content
        guard send(socket.raw, event, event.count, Int32(MSG_NOSIGNAL)) == event.count else { return }
      }
    }

    private func listen(_ channel: Int) -> Result<(DescriptorParcel, Int), OpenFailure> {
      do throws(SystemError) {
        let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
        guard raw >= 0 else { throw SystemError("socket") }
        let socket = DescriptorParcel(Descriptor(owning: raw))
        unlink(path(channel))
        let isBound = try UnixAddress.path(path(channel)).withSockaddr { bind(raw, $0, $1) } == 0
        guard isBound else { throw SystemError("bind") }
        guard Glibc.listen(raw, 16) == 0 else { throw SystemError("listen") }
        copy.withLock { copy in
          close(copy)
          copy = fcntl(raw, F_DUPFD_CLOEXEC, 0)
        }
        return .success((socket, channel))
      } catch {
        return .failure(OpenFailure(error.call, error))
      }
    }
  }

  @Test("serves its clients, and reports its channel and its limitations")
  func serves() async throws {
    let machine = try Machine()
    let config = try routeConfig(listen: "rfcomm://?channel=3&name=gps", endpoint: "sim://echo")
    try await withRoute(config, bluetooth: machine.host) { story, _ in
      #expect(try story.bound() == "rfcomm://?channel=3&name=gps")
      let limits = try story.wait { events in
        events.compactMap { event in if case .listenerLimited("x", _, let limits) = event { limits } else { nil } }
          .first
      }
      #expect(limits.map(\.description) == ["list the service: nobody does"])
      let client = try connectUnix(machine.path(3))
      try client.send([1, 2, 3])
      #expect(try client.receive(exactly: 3) == [1, 2, 3])
      client.close()
      #expect(try story.reports(atLeast: 1)[0].ending.word == .clientLeft)
    }
  }

  @Test("is reported with the channel that it got")
  func free() async throws {
    let machine = try Machine()
    let config = try routeConfig(listen: "rfcomm://?name=a%20b&role=monitor", endpoint: "sim://echo")
    try await withRoute(config, bluetooth: machine.host) { story, _ in
      let bound = try story.bound()
      #expect(bound == "rfcomm://?channel=30&name=a%20b")
    }
  }

  @Test("waits for an adapter")
  func noAdapter() async throws {
    let machine = try Machine(hasAdapter: false)
    try await withRoute(routeConfig(listen: "rfcomm://", endpoint: "sim://echo"), bluetooth: machine.host) { story, _ in
      let failure = try story.wait { events in
        events.compactMap { event in if case .listenerWaits(_, "rfcomm://", let why, _) = event { why } else { nil } }
          .first
      }
      #expect(failure.description.contains("no Bluetooth adapter"))
    }
  }

  @Test("whose socket another process shuts down gets a new one, after a pause that doubles", .waits)
  func shutDown() async throws {
    let machine = try Machine()
    let config = try routeConfig(listen: "rfcomm://?channel=3", endpoint: "sim://echo")
    try await withRoute(config, bluetooth: machine.host) { story, _ in
      for turn in 1...3 {
        #expect(try story.bound(of: "x", turn - 1) == "rfcomm://?channel=3")
        let client = try connectUnix(machine.path(3))
        try client.send([UInt8(turn)])
        #expect(try client.receive(exactly: 1) == [UInt8(turn)])
        client.close()
        machine.shutDown()
        let losses = try story.wait { events in
          let waits = events.compactMap { event in
            if case .listenerWaits(_, _, let why, let pause) = event { (why.description, pause) } else { nil }
          }
          return waits.count == turn ? waits : nil
        }
        #expect(losses.allSatisfy { $0.0.contains("was shut down") })
        #expect(losses.map(\.1) == [1, 2, 4].prefix(turn).map { .seconds($0) })
      }
    }
  }

  @Test("makes way for another one on its channel at a reload, and its clients stay")
  func reload() async throws {
    let machine = try Machine()
    let old = try routeConfig(listen: "rfcomm://?channel=3&name=old", endpoint: "sim://echo")
    let new = try routeConfig(listen: "rfcomm://?channel=3&name=new", endpoint: "sim://echo")
    try await withRoute(old, bluetooth: machine.host) { story, route in
      _ = try story.bound()
      let client = try connectUnix(machine.path(3))
      try client.send([1])
      #expect(try client.receive(exactly: 1) == [1])
      try ask(route) { $0.update(new, connector: $0.settings.connector) }
      #expect(try story.bound(of: "x", 1) == "rfcomm://?channel=3&name=new")
      try client.send([2])
      #expect(try client.receive(exactly: 1) == [2])
      let another = try connectUnix(machine.path(3))
      try another.send([3])
      #expect(try another.receive(exactly: 1) == [3])
      for one in [client, another] { one.close() }
    }
  }

  @Test(
    "collides with one on the same channel",
    arguments: [
      ("?channel=3", "?channel=3", true), ("?channel=3", "?channel=4", false), ("", "", false),
      ("?channel=3", "", false),
      ("?channel=3&adapter=hci0", "?channel=3", true), ("?channel=3&adapter=hci0", "?channel=3&adapter=hci1", false),
      ("?channel=3&adapter=hci0", "?channel=3&adapter=HCI0&name=x", true),
    ])
  func collisions(one: String, other: String, does: Bool) throws {
    let listens = try [one, other].map {
      try #require(try routeConfig(listen: "rfcomm://\($0)", endpoint: "sim://echo").listen.first)
    }
    #expect(listens[0].collides(with: listens[1]) == does && listens[1].collides(with: listens[0]) == does)
    let port = try #require(try routeConfig(listen: "tcp://:3", endpoint: "sim://echo").listen.first)
    #expect(!port.collides(with: listens[0]) && !listens[0].collides(with: port))
  }
}
