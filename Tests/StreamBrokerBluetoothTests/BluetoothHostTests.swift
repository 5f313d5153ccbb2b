// A host with a played kernel: adapters come and go, and local sockets stand in for Bluetooth's.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerBluetooth

@Suite("A Bluetooth host", .timeLimit(.minutes(5)))
struct BluetoothHostTests {
  /// The kernel's management channel and its sockets.
  final class Machine: Sendable {
    private let management = Mutex<Int32>(-1)
    private let port: MessagePort
    let refusal = Mutex<OpenFailure?>(nil)
    let channels = Mutex<[String]>([])
    let numbers = Mutex<[UInt8?]>([])
    /// Channels that another program uses.
    let taken = Mutex<Set<UInt8>>([])
    /// Blocks the making of a channel while `isSlow` is set.
    let gate = DispatchSemaphore(value: 0)
    let isSlow = Mutex(false)
    /// The settings of hci0: on, connectable, Classic.
    let settings = Mutex<UInt8>(0x83)

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
        if isSlow.withLock({ $0 }), gate.wait(timeout: .now() + 30) == .timedOut {
          return .failure(OpenFailure("wait", nil))
        }
        numbers.withLock { $0.append(offer.channel) }
        if let channel = offer.channel, taken.withLock({ $0.contains(channel) }) {
          return .failure(OpenFailure("listen", SystemError("bind", EADDRINUSE)))
        }
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

    /// Answers questions about adapters, `times` times up to the command `last`. hci0's address ends with `adapter`;
    /// nil: no hci0. Blocks.
    func play(_ adapter: UInt8?, until last: UInt16, times: Int = 1) throws {
      var left = times
      while true {
        let code = try command()
        switch code {
        case 3: say(Self.event(1, 0xFFFF, [3, 0, 0] + (adapter == nil ? [0, 0] : [1, 0, 0, 0])))
        case 4:
          let information = [
            adapter ?? 0, 0, 0, 0, 0, 0, 9, 0xFF, 0xFF, 0xFF, 2, 0, 0, settings.withLock { $0 }, 0, 0, 0, 0, 0, 0,
          ]
          say(Self.event(1, 0, [4, 0, 0] + information))
        default: say(Self.event(1, 0, [UInt8(code), 0, 0]))
        }
        if code == last { left -= 1 }
        if left == 0 { return }
      }
    }

    static func event(_ code: UInt16, _ adapter: UInt16, _ parameters: [UInt8]) -> [UInt8] {
      [code, adapter, UInt16(parameters.count)].flatMap(LittleEndian.bytes) + parameters
    }
  }

  /// What a host reported about an offer.
  final class Story {
    var words: [String] = []
    private var sockets: [DescriptorParcel] = []
    private var gates: [(count: Int, gate: Gate)] = []

    func handle(_ news: RFCOMMNews) {
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

  func services(_ poller: Poller) -> SDPServer {
    SDPServer(on: poller) { _ in .failure(OpenFailure("list the service", nil, advice: "nobody does")) }
  }

  /// A host that waits for the kernel's answers as long as a busy machine may need.
  func host(_ machine: Machine, bonds keeper: BondKeeper? = nil, on lane: isolated Lane) -> BluetoothHost {
    BluetoothHost(
      on: lane.poller, services: services(lane.poller), sockets: machine.sockets, bonds: keeper, timeout: .seconds(60))
  }

  static func offer(_ text: String) throws -> RFCOMMOffer {
    let grammar = SchemeGrammar(
      "rfcomm", example: "rfcomm://", authority: .none,
      parameters: [
        .init("channel", .integer(1...30), ""), .init("adapter", .text, ""), .init("name", .text, ""),
        .init("uuid", .uuid, ""), .init("discoverable", .flag, ""),
        .init("security", .words(["low", "medium", "high"]), ""),
      ])
    return RFCOMMOffer(try EndpointURL("rfcomm://\(text)", schemes: [grammar]), name: "route")
  }

  /// Records what is reported about an offer from now on.
  func open(
    _ text: String, _ number: UInt64 = 1, of host: BluetoothHost, on lane: isolated Lane
  ) throws -> Story {
    let story = Story()
    let reported = LaneRef(story, on: lane)
    host.open(number, try Self.offer(text)) { news in reported.post { _, story in story.handle(news) } }
    return story
  }

  @Test("listens while there is an adapter, keeps its socket while there is none, and reports each change once")
  func comesAndGoes() async throws {
    let machine = try Machine()
    try await onLane { lane in
      let host = self.host(machine, on: lane)
      let story = try open("?channel=3", of: host, on: lane)
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
      await story.wait(6, on: lane)
      host.close(1)
      #expect(
        story.words == [
          "waits: choose an adapter: this machine has no Bluetooth adapter; waiting for it", "listens on 3",
          "limited: list the service: nobody does",
          "waits: choose an adapter: this machine has no Bluetooth adapter; waiting for it", "listens on 3 still",
          "limited: list the service: nobody does",
        ])
      #expect(machine.channels.withLock { $0 } == ["all"])
    }
  }

  @Test("binds to the named adapter, and again when another one has its name")
  func rebinds() async throws {
    let machine = try Machine()
    try await onLane { lane in
      let host = self.host(machine, on: lane)
      let story = try open("?adapter=hci0", of: host, on: lane)
      try await onOwnThread { try machine.play(0, until: 4) }
      await story.wait(2, on: lane)
      try await onOwnThread {
        machine.say(Machine.event(5, 0, []))
        try machine.play(5, until: 4)
      }
      await story.wait(3, on: lane)
      #expect(machine.channels.withLock { $0 } == ["00:00:00:00:00:00", "00:00:00:00:00:05"])
      #expect(story.words.filter { $0 == "listens on 30" }.count == 2)
      host.close(1)
    }
  }

  @Test("chooses channels that are free and not named, and gives up one that is named later", .waits)
  func chooses() async throws {
    let machine = try Machine()
    machine.taken.withLock { $0 = [29] }
    try await onLane { lane in
      let host = self.host(machine, on: lane)
      var stories: [Story] = []
      for (number, text) in ["?channel=30", "", "?adapter=hci0"].enumerated() {
        stories.append(try open(text, UInt64(number), of: host, on: lane))
      }
      // Each offer asks the kernel itself.
      try await onOwnThread { try machine.play(0, until: 4, times: 3) }
      for story in stories { await story.wait(2, on: lane) }
      #expect(stories[0].words[0] == "listens on 30")
      #expect(Set([stories[1].words[0], stories[2].words[0]]) == ["listens on 28", "listens on 27"])
      stories.append(try open("?channel=27", 3, of: host, on: lane))
      try await onOwnThread { try machine.play(0, until: 4) }
      await stories[3].wait(1, on: lane)
      #expect(stories[3].words[0].contains("another listener"))
      try await onOwnThread { try machine.play(0, until: 4) }
      await stories[3].wait(2, on: lane)
      #expect(stories[3].words[1] == "listens on 27")
      let moved = stories[1].words[0] == "listens on 27" ? stories[1] : stories[2]
      await moved.wait(3, on: lane)
      #expect(moved.words[2] == "listens on 26")
      // The service is listed again, with its new channel.
      await moved.wait(4, on: lane)
      #expect(moved.words[3] == "limited: list the service: nobody does")
      for number in 0..<4 as Range<UInt64> { host.close(number) }
    }
  }

  @Test("reports that no channel is left")
  func full() async throws {
    let machine = try Machine()
    machine.taken.withLock { $0 = Set(1...30) }
    try await onLane { lane in
      let host = self.host(machine, on: lane)
      let story = try open("", of: host, on: lane)
      try await onOwnThread { try machine.play(0, until: 4) }
      await story.wait(1, on: lane)
      #expect(story.words[0].contains("no channel is free"))
      #expect(machine.numbers.withLock { $0 } == (1...30).reversed())
      host.close(1)
    }
  }

  @Test("waits and reports it if the kernel does not answer")
  func silent() async throws {
    let machine = try Machine()
    try await onLane(isFast: true) { lane in
      let host = BluetoothHost(
        on: lane.poller, services: services(lane.poller), sockets: machine.sockets, timeout: .milliseconds(50))
      let story = try open("", of: host, on: lane)
      await story.wait(1, on: lane)
      #expect(story.words[0].contains("did not answer"))
      // The host asks again.
      #expect(try await onOwnThread { [try machine.command(), try machine.command()] } == [3, 3])
      host.close(1)
    }
  }

  @Test("makes another socket if the adapter changed meanwhile")
  func changes() async throws {
    let machine = try Machine()
    machine.isSlow.withLock { $0 = true }
    try await onLane { lane in
      let host = self.host(machine, on: lane)
      let story = try open("?adapter=hci0", of: host, on: lane)
      try await onOwnThread {
        try machine.play(0, until: 4)
        machine.say(Machine.event(5, 0, []))
        try machine.play(5, until: 4)
        // It asks again only after it has received that answer.
        machine.say(Machine.event(6, 0, [0, 0, 0, 0]))
        try machine.play(5, until: 4)
      }
      machine.gate.signal()
      machine.gate.signal()
      // Two reports that it listens and one of a limit, which may come between them.
      await story.wait(3, on: lane)
      #expect(machine.channels.withLock { $0 } == ["00:00:00:00:00:00", "00:00:00:00:00:05"])
      host.close(1)
    }
  }

  @Test(
    "reports that no device can pair where pairing is required",
    arguments: [("high", 0x83, true), ("high", 0x93, false), ("low", 0x83, false)])
  func pairing(security: String, settings: UInt8, isSaid: Bool) async throws {
    let machine = try Machine()
    machine.settings.withLock { $0 = settings }
    try await onLane { lane in
      let host = self.host(machine, on: lane)
      let story = try open("?security=\(security)", of: host, on: lane)
      try await onOwnThread { try machine.play(0, until: 4) }
      await story.wait(2, on: lane)
      #expect(story.words[1].contains("bluetoothctl agent on") == isSaid)
      host.close(1)
    }
  }

  @Test("tries again if a channel is taken, and reports if it may not be discoverable", .waits)
  func taken() async throws {
    let machine = try Machine()
    machine.refusal.withLock { $0 = OpenFailure("listen on channel 3", SystemError("bind", EADDRINUSE)) }
    try await onLane { lane in
      let host = self.host(machine, on: lane)
      let story = try open("?channel=3&discoverable=yes", of: host, on: lane)
      try await onOwnThread { try machine.play(0, until: 6) }
      await story.wait(1, on: lane)
      #expect(story.words.first?.contains("EADDRINUSE") == true)
      // Two seconds later it checks everything again.
      try await onOwnThread { try machine.play(0, until: 6) }
      await story.wait(3, on: lane)
      #expect(story.words[1] == "listens on 3")
      host.close(1)
      host.close(1)
    }
  }

  @Test("reports a kernel without Bluetooth, and drops earlier offers silently")
  func none() async throws {
    try await onLane { lane in
      var sockets = HostSockets()
      sockets.management = { .failure(OpenFailure("open", SystemError("socket", EAFNOSUPPORT))) }
      let host = BluetoothHost(on: lane.poller, services: services(lane.poller), sockets: sockets)
      let story = try open("", of: host, on: lane)
      await story.wait(1, on: lane)
      #expect(story.words[0].contains("EAFNOSUPPORT"))
      host.open(2, try Self.offer("")) { _ in Issue.record("it was given up") }
      host.close(2)
      host.close(1)
    }
  }
}
