// Where services are listed: in our own list or in bluetoothd's, played by local sockets that keep message boundaries
// as L2CAP does.

import ByteStreams
import CLinux
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerBluetooth

/// A listening socket like one of L2CAP, and the clients that connect to it.
struct MessagePort {
  let folder: TemporaryFolder
  private var path: String { folder / "psm" }

  init() throws { folder = try TemporaryFolder() }

  static func socket(_ type: __socket_type) throws -> Descriptor {
    let raw = linux_socket(AF_UNIX, Int32(type.rawValue), 0)
    guard raw >= 0 else { throw SystemError("socket") }
    return Descriptor(owning: raw)
  }

  func listen() throws -> DescriptorParcel {
    let socket = try Self.socket(SOCK_SEQPACKET)
    unlink(path)
    guard try UnixAddress.path(path).withSockaddr({ bind(socket.raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    guard Glibc.listen(socket.raw, 64) == 0 else { throw SystemError("listen") }
    return DescriptorParcel(socket)
  }

  func connect() throws -> GATTStreamTests.Device {
    let socket = try Self.socket(SOCK_SEQPACKET)
    guard try UnixAddress.path(path).withSockaddr({ Glibc.connect(socket.raw, $0, $1) }) == 0 else {
      throw SystemError("connect")
    }
    return GATTStreamTests.Device(socket)
  }
}

@Suite("A service list on a lane", .timeLimit(.minutes(5)))
struct SDPServerTests {
  private typealias Device = GATTStreamTests.Device
  private static func offer(_ text: String = "") throws -> RFCOMMOffer {
    RFCOMMOffer(try EndpointURL("sim://echo"), name: "gps")
  }

  private static func own(_ port: MessagePort) -> Result<SDPServer.Owner, OpenFailure> {
    do { return .success(.own(try port.listen(), nil)) } catch { return .failure(OpenFailure("listen", nil)) }
  }

  /// Whether the connection is closed. Programs that parallel tests start hold copies of every socket for a moment.
  private func isLetGo(_ device: Device) async -> Bool {
    await eventually { (try? device.say([0])) == nil }
  }

  /// What was reported, in order.
  private final class Told {
    private(set) var all: [OpenFailure?] = []
    private var gates: [(count: Int, gate: Gate)] = []
    func handle(_ failure: OpenFailure?) {
      all.append(failure)
      for (count, gate) in gates where all.count >= count { gate.open() }
    }
    func wait(_ count: Int, on lane: isolated Lane) async {
      if all.count >= count { return }
      let gate = Gate()
      gates.append((count, gate))
      await gate.wait(on: lane)
    }
  }

  /// Waits for a message to the device. Blocks the test, not the lane.
  private func handle(_ device: Device) async throws -> [UInt8] {
    try await onOwnThread {
      var one = pollfd(fd: device.raw, events: Int16(POLLIN), revents: 0)
      guard poll(&one, 1, 20_000) == 1, let message = device.handle() else { throw SystemError("poll", ETIMEDOUT) }
      return message
    }
  }

  @Test("answers several clients, and closes the one that was silent longest")
  func responds() async throws {
    let port = try MessagePort()
    try await onLane { lane in
      guard let socket = try port.listen().take() else { throw SystemError("listen") }
      let responder = try SDPResponder(socket, on: lane.poller)
      _ = responder.list.add(BluetoothUUID(0x1101), channel: 3, name: "gps")
      let request = ServiceListTests.searchAttributes(BluetoothUUID(0x1101))
      let first = try port.connect()
      try first.say(request)
      // L2CAP's smallest MTU, because this socket does not report its own.
      let answer = try await handle(first)
      #expect(answer[0] == 7 && answer.count == 48)
      var others: [Device] = []
      for _ in 0..<7 {
        others.append(try port.connect())
        try others.last?.say(request)
        _ = try await handle(others[others.count - 1])
      }
      try first.say(request)
      _ = try await handle(first)
      // One client too many: the one that was silent longest is closed. That is not `first`, which has just asked.
      let last = try port.connect()
      try last.say(request)
      _ = try await handle(last)
      #expect(await isLetGo(others[0]))
      for device in [first, last] + others.dropFirst() {
        try device.say(request)
        _ = try await handle(device)
      }
      responder.close()
      #expect(await isLetGo(first))
    }
  }

  /// What a server's `find` returns, one after another; the last one repeats.
  private final class Finds: Sendable {
    private let answers: Mutex<[@Sendable () -> Result<SDPServer.Owner, OpenFailure>]>
    private let asked = Mutex<[Bool]>([])
    init(_ answers: (@Sendable () -> Result<SDPServer.Owner, OpenFailure>)...) { self.answers = Mutex(answers) }
    var wishes: [Bool] { asked.withLock { $0 } }
    func find(_ mayOpenOwn: Bool) -> Result<SDPServer.Owner, OpenFailure> {
      asked.withLock { $0.append(mayOpenOwn) }
      return answers.withLock { $0.count > 1 ? $0.removeFirst() : $0[0] }()
    }
  }

  @Test("is our own if the place is free, and is given up with the last service")
  func own() async throws {
    let port = try MessagePort()
    try await onLane { lane in
      let finds = Finds { Self.own(port) }
      let server = SDPServer(on: lane.poller, find: { finds.find($0) })
      for number in 1...2 as ClosedRange<UInt64> {
        let listed = Gate()
        server.add(number, try Self.offer(), channel: UInt8(number)) { failure in
          #expect(failure == nil)
          listed.open()
        }
        await listed.wait(on: lane)
      }
      #expect(finds.wishes == [true])
      let device = try port.connect()
      try device.say(ServiceListTests.request(2, [0x35, 3, 0x19, 0x11, 0x01, 0, 9]))
      #expect(try await handle(device)[5...6] == [0, 2])
      server.remove(1)
      try device.say(ServiceListTests.request(2, [0x35, 3, 0x19, 0x11, 0x01, 0, 9]))
      #expect(try await handle(device)[5...6] == [0, 1])
      server.remove(2)
      #expect(await eventually { (try? port.connect()) == nil })
    }
  }

  @Test("is bluetoothd's if that accepts records, while it runs, and its place is not taken", .waits)
  func daemon() async throws {
    let folder = try TemporaryFolder()
    let bluetoothd = try UnixServer(folder / "sdp")
    let port = try MessagePort()
    try await onLane { lane in
      let finds = Finds(
        {
          do throws(OpenFailure) {
            guard let socket = try ServiceListOwner.connect(bluetoothd.path) else {
              return .failure(OpenFailure("x", nil))
            }
            return .success(.daemon(socket))
          } catch {
            return .failure(error)
          }
        }, { Self.own(port) })
      let daemonGrace = Duration.seconds(3)
      let times = Mutex<[UInt64]>([])
      let server = SDPServer(on: lane.poller, daemonGrace: daemonGrace) { mayOpenOwn in
        times.withLock { $0.append(monotonicNanoseconds()) }
        let place = finds.find(mayOpenOwn)
        if !mayOpenOwn, case .success(.own) = place { return .failure(OpenFailure("register", nil)) }
        return place
      }
      let reported = Told()
      server.add(1, try Self.offer(), channel: 7) { reported.handle($0) }
      let connection = try await onOwnThread { try bluetoothd.accept() }
      let record = ServiceRecord(BluetoothUUID(0x1101), channel: 7, name: "gps")
      let request = ServiceRegistration.request(record, transaction: 1)
      #expect(try await onOwnThread { try connection.receive(exactly: request.count) } == request)
      try await onOwnThread { try connection.send([0x76, 0, 1, 0, 4, 0, 1, 0, 9]) }
      await reported.wait(1, on: lane)
      let end = monotonicNanoseconds()
      connection.close()
      // bluetoothd does not come back, so the server makes its own list.
      await reported.wait(3, on: lane)
      #expect(reported.all.count == 3 && reported.all[0] == nil && reported.all[2] == nil)
      #expect(reported.all[1]?.description.contains("bluetoothd has ended") == true)
      // During the wait for bluetoothd the server does not open its own list.
      let wishes = Array(zip(finds.wishes, times.withLock { $0 }))
      #expect(wishes.first?.0 == true && wishes.last?.0 == true && wishes.contains { !$0.0 })
      for (mayOpenOwn, time) in wishes.dropFirst() where mayOpenOwn {
        #expect(time >= end + daemonGrace.nanoseconds)
      }
      server.remove(1)
    }
    bluetoothd.close()
  }

  @Test("is requested for each offer in turn if bluetoothd refuses, and all are notified", .waits)
  func refuses() async throws {
    let folder = try TemporaryFolder()
    let bluetoothd = try UnixServer(folder / "sdp")
    try await onLane { lane in
      let path = bluetoothd.path
      let server = SDPServer(on: lane.poller) { _ in
        do throws(OpenFailure) {
          guard let socket = try ServiceListOwner.connect(path) else { return .failure(OpenFailure("x", nil)) }
          return .success(.daemon(socket))
        } catch {
          return .failure(error)
        }
      }
      let stories = [Told(), Told()]
      for number in 0..<2 {
        server.add(UInt64(number), try Self.offer(), channel: UInt8(7 + number)) { stories[number].handle($0) }
      }
      var connections: [FarEnd] = []
      for channel in [7, 8, 7] as [UInt8] {
        let connection = try await onOwnThread { try bluetoothd.accept() }
        connections.append(connection)
        let record = ServiceRecord(BluetoothUUID(0x1101), channel: channel, name: "gps")
        let request = ServiceRegistration.request(record, transaction: 1)
        #expect(try await onOwnThread { try connection.receive(exactly: request.count) } == request)
        let refusal: [UInt8] = [0x01, 0, 1, 0, 2, 0, 3]
        let answer: [UInt8] = connections.count == 1 ? refusal : [0x76, 0, 1, 0, 4, 0, 1, 0, 9]
        try await onOwnThread { try connection.send(answer) }
        if connections.count == 1 { for story in stories { await story.wait(1, on: lane) } }
      }
      for story in stories {
        await story.wait(2, on: lane)
        #expect(story.all.count == 2 && story.all[0] != nil && story.all[1] == nil)
      }
      for number in 0..<2 { server.remove(UInt64(number)) }
      for connection in connections { connection.close() }
    }
    bluetoothd.close()
  }

  @Test("reports once why it fails, and tries again")
  func retries() async throws {
    let port = try MessagePort()
    try await onLane(isFast: true) { lane in
      let taken: @Sendable () -> Result<SDPServer.Owner, OpenFailure> = {
        let advice = ServiceListOwner.advice(EADDRINUSE)
        return .failure(OpenFailure("list the service", SystemError("bind", EADDRINUSE), advice: advice))
      }
      let finds = Finds(
        taken, taken, { Self.own(port) })
      let server = SDPServer(on: lane.poller, daemonGrace: .zero, find: { finds.find($0) })
      let reported = Told()
      server.add(1, try Self.offer(), channel: 7) { reported.handle($0) }
      await reported.wait(2, on: lane)
      // The first time the PSM was free, the server left it to the program that had it before.
      #expect(finds.wishes.count == 4)
      #expect(
        reported.all.count == 2 && reported.all[0]?.description.contains("--compat") == true && reported.all[1] == nil)
      server.remove(1)
    }
  }

  @Test("is taken over silently as soon as another gateway releases it")
  func restart() async throws {
    let port = try MessagePort()
    try await onLane { lane in
      let finds = Finds({ .success(.gateway) }, { .success(.gateway) }, { Self.own(port) })
      let server = SDPServer(on: lane.poller, daemonGrace: .seconds(600), find: { finds.find($0) })
      let reported = Told()
      server.add(1, try Self.offer(), channel: 7) { reported.handle($0) }
      await reported.wait(1, on: lane)
      #expect(reported.all == [nil] && finds.wishes == [true, true, true])
      server.remove(1)
    }
  }

  @Test("of another gateway is reported, and waited for")
  func another() async throws {
    let port = try MessagePort()
    let isLeaving = Mutex(false)
    try await onLane(isFast: true) { lane in
      let server = SDPServer(on: lane.poller, daemonGrace: .seconds(600)) { _ in
        isLeaving.withLock { $0 } ? Self.own(port) : .success(.gateway)
      }
      let reported = Told()
      server.add(1, try Self.offer(), channel: 7) { reported.handle($0) }
      await reported.wait(1, on: lane)
      #expect(reported.all.first??.description.contains("another gateway") == true)
      isLeaving.withLock { $0 = true }
      await reported.wait(2, on: lane)
      #expect(reported.all.count == 2 && reported.all.last == .some(nil))
      server.remove(1)
    }
  }

  @Test("is not touched by an offer that is removed before the list was found")
  func left() async throws {
    let port = try MessagePort()
    try await onLane { lane in
      let server = SDPServer(
        on: lane.poller, find: { _ in Self.own(port) })
      server.add(1, try Self.offer(), channel: 7) { _ in Issue.record("it was given up") }
      server.remove(1)
      server.remove(1)
      let turn = Gate()
      lane.poller.timers.after(.milliseconds(100)) { turn.open() }
      await turn.wait(on: lane)
    }
  }
}
