// A host whose kernel is played: adapters come and go, sockets are of this machine.

import ByteStreams
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerBluetooth

@Suite("A Bluetooth host", .timeLimit(.minutes(1)))
struct BluetoothHostTests {
  /// The kernel's management channel and its sockets.
  private final class Machine: Sendable {
    private let management = Mutex<Int32>(-1)
    private let port: MessagePort
    let refusal = Mutex<OpenFailure?>(nil)
    let channels = Mutex<[String]>([])

    init() throws { port = try MessagePort() }

    var sockets: HostSockets {
      HostSockets { [self] in
        var ends: [Int32] = [-1, -1]
        let type = Int32(SOCK_SEQPACKET.rawValue) | Int32(SOCK_NONBLOCK.rawValue) | Int32(SOCK_CLOEXEC.rawValue)
        guard socketpair(AF_UNIX, type, 0, &ends) == 0 else { return .failure(OpenFailure("socketpair", nil)) }
        management.withLock { $0 = ends[1] }
        return .success(DescriptorParcel(Descriptor(owning: ends[0])))
      } channel: { [self] offer, adapter in
        if let refusal = refusal.withLock({ $0.take() }) { return .failure(refusal) }
        channels.withLock { $0.append(adapter?.description ?? "all") }
        do {
          return .success((try port.listen(), Int(offer.channel ?? 9)))
        } catch {
          return .failure(OpenFailure("listen", nil))
        }
      }
    }

    deinit { close(management.withLock { $0 }) }

    func say(_ event: [UInt8]) { _ = send(management.withLock { $0 }, event, event.count, Int32(MSG_NOSIGNAL)) }

    /// The next command's code. Blocks.
    func command() throws -> UInt16 {
      for _ in 0..<4000 {
        var buffer = [UInt8](repeating: 0, count: 600)
        let raw = management.withLock { $0 }
        var one = pollfd(fd: raw, events: Int16(POLLIN), revents: 0)
        if raw >= 0, poll(&one, 1, 5) == 1, recv(raw, &buffer, buffer.count, Int32(MSG_DONTWAIT)) >= 6 {
          return UInt16(buffer[0]) | UInt16(buffer[1]) << 8
        }
        if raw < 0 { usleep(5000) }
      }
      throw SystemError("waiting for a command", ETIMEDOUT)
    }

    /// Answers what is asked of adapters up to a command: hci0 has an address that ends so; with nil there is none. Blocks.
    func play(_ adapter: UInt8?, until last: UInt16) throws {
      while true {
        let code = try command()
        switch code {
        case 3: say(Self.event(1, 0xFFFF, [3, 0, 0] + (adapter == nil ? [0, 0] : [1, 0, 0, 0])))
        case 4:
          let information = [adapter ?? 0, 0, 0, 0, 0, 0, 9, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0x83, 0, 0, 0, 0, 0, 0]
          say(Self.event(1, 0, [4, 0, 0] + information))
        default: say(Self.event(1, 0, [UInt8(code), 0, 0]))
        }
        if code == last { return }
      }
    }

    static func event(_ code: UInt16, _ adapter: UInt16, _ parameters: [UInt8]) -> [UInt8] {
      [code, adapter, UInt16(parameters.count)].flatMap(ATTMessage.bytes) + parameters
    }
  }

  /// What a host has told of an offer.
  private final class Story {
    var words: [String] = []
    private var sockets: [DescriptorParcel] = []
    private var gates: [(count: Int, gate: Gate)] = []

    func hear(_ news: RFCOMMNews) {
      switch news {
      case .listens(let socket, let channel):
        if let socket { sockets.append(socket) }
        words.append("listens on \(channel)\(socket == nil ? " still" : "")")
      case .waits(let failure): words.append("waits: \(failure)")
      case .limited(let limits): words.append("limited: \(limits.map(\.description).joined(separator: " | "))")
      }
      for (count, gate) in gates where words.count >= count { gate.open() }
    }

    func wait(_ count: Int, on lane: isolated Lane) async {
      let gate = Gate()
      if words.count >= count { return }
      gates.append((count, gate))
      await gate.wait(on: lane)
    }
  }

  private func services(_ poller: Poller) -> SDPServer {
    SDPServer(on: poller) { _ in .failure(OpenFailure("list the service", nil, advice: "nobody does")) }
  }

  private static func offer(_ text: String) throws -> RFCOMMOffer {
    let grammar = SchemeGrammar(
      "rfcomm", example: "rfcomm://", authority: .none,
      parameters: [
        .init("channel", .integer(1...30), ""), .init("adapter", .text, ""), .init("name", .text, ""),
        .init("uuid", .uuid, ""), .init("discoverable", .flag, ""), .init("security", .words(["low", "high"]), ""),
      ])
    return RFCOMMOffer(try EndpointURL("rfcomm://\(text)", schemes: [grammar]), name: "route")
  }

  @Test("listens where an adapter is, keeps its socket while there is none, and says each once")
  func comesAndGoes() async throws {
    let machine = try Machine()
    try await onLane { lane in
      let host = BluetoothHost(on: lane.poller, services: services(lane.poller), sockets: machine.sockets)
      let story = Story()
      let told = Resident(story, on: lane)
      host.open(1, try Self.offer("?channel=3")) { news in told.post { _, story in story.hear(news) } }
      try await onOwnThread { try machine.play(nil, until: 3) }
      await story.wait(1, on: lane)
      try await onOwnThread {
        machine.say(Machine.event(4, 0, []))
        try machine.play(0, until: 4)
      }
      await story.wait(3, on: lane)
      try await onOwnThread {
        machine.say(Machine.event(5, 0, []))
        try machine.play(nil, until: 3)
      }
      await story.wait(4, on: lane)
      try await onOwnThread {
        machine.say(Machine.event(4, 0, []))
        try machine.play(0, until: 4)
      }
      await story.wait(5, on: lane)
      host.close(1)
      #expect(
        story.words == [
          "waits: choose an adapter: this machine has no Bluetooth adapter; it is waited for", "listens on 3",
          "limited: list the service: nobody does",
          "waits: choose an adapter: this machine has no Bluetooth adapter; it is waited for", "listens on 3 still",
        ])
      #expect(machine.channels.withLock { $0 } == ["all"])
    }
  }

  @Test("binds to the adapter that is named, anew where another has its name")
  func rebinds() async throws {
    let machine = try Machine()
    try await onLane { lane in
      let host = BluetoothHost(on: lane.poller, services: services(lane.poller), sockets: machine.sockets)
      let story = Story()
      let told = Resident(story, on: lane)
      host.open(1, try Self.offer("?adapter=hci0")) { news in told.post { _, story in story.hear(news) } }
      try await onOwnThread { try machine.play(0, until: 4) }
      await story.wait(2, on: lane)
      try await onOwnThread {
        machine.say(Machine.event(5, 0, []))
        try machine.play(5, until: 4)
      }
      await story.wait(3, on: lane)
      #expect(machine.channels.withLock { $0 } == ["00:00:00:00:00:00", "00:00:00:00:00:05"])
      #expect(story.words.filter { $0 == "listens on 9" }.count == 2)
      host.close(1)
    }
  }

  @Test("tries again where a channel is taken, and tells who may not be found")
  func taken() async throws {
    let machine = try Machine()
    machine.refusal.withLock { $0 = OpenFailure("listen on channel 3", SystemError("bind", EADDRINUSE)) }
    try await onLane { lane in
      let host = BluetoothHost(on: lane.poller, services: services(lane.poller), sockets: machine.sockets)
      let story = Story()
      let told = Resident(story, on: lane)
      host.open(1, try Self.offer("?channel=3&discoverable=yes")) { news in told.post { _, story in story.hear(news) } }
      try await onOwnThread { try machine.play(0, until: 6) }
      await story.wait(1, on: lane)
      #expect(story.words.first?.contains("EADDRINUSE") == true)
      // Two seconds later all of it is looked at again.
      try await onOwnThread { try machine.play(0, until: 6) }
      await story.wait(3, on: lane)
      #expect(story.words[1] == "listens on 3")
      host.close(1)
      host.close(1)
    }
  }

  @Test("says that this kernel has none, and what was offered before goes without a word")
  func none() async throws {
    try await onLane { lane in
      var sockets = HostSockets()
      sockets.management = { .failure(OpenFailure("open", SystemError("socket", EAFNOSUPPORT))) }
      let host = BluetoothHost(on: lane.poller, services: services(lane.poller), sockets: sockets)
      let story = Story()
      let told = Resident(story, on: lane)
      host.open(1, try Self.offer("")) { news in told.post { _, story in story.hear(news) } }
      await story.wait(1, on: lane)
      #expect(story.words[0].contains("EAFNOSUPPORT"))
      host.open(2, try Self.offer("")) { _ in Issue.record("it was given up") }
      host.close(2)
      host.close(1)
    }
  }
}
