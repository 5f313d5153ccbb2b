// Sockets that were given up while connecting. A full socket plays a connecting one; it is connected once the device
// has read what fills it.

import CLinux
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import StreamBrokerBluetooth

@Suite("A socket that was given up while it connected", .timeLimit(.minutes(5)))
struct AbandonedConnectsTests {
  /// The far end of a connecting socket.
  private final class Device: Sendable {
    private let descriptor: DescriptorParcel
    private let raw: Int32

    init(_ descriptor: consuming Descriptor) {
      raw = descriptor.raw
      self.descriptor = DescriptorParcel(descriptor)
    }

    /// Reads everything there is; false if the other end is closed.
    @discardableResult
    func accept() -> Bool {
      var buffer = [UInt8](repeating: 0, count: 1 << 16)
      while true {
        let count = recv(raw, &buffer, buffer.count, Int32(MSG_DONTWAIT))
        if count <= 0 { return count < 0 && errno == EAGAIN }
      }
    }
    /// Programs that parallel tests start hold copies of every socket for a moment.
    var isClosed: Bool { get async { await eventually { !self.isKept } } }
    /// Whether the other end is still open. Reads nothing.
    var isKept: Bool {
      var one = pollfd(fd: raw, events: 0, revents: 0)
      return poll(&one, 1, 0) == 0
    }
    func hangUp() { _ = descriptor.take() }
  }

  private static func calling() throws -> (DescriptorParcel, Device) {
    var ends: [Int32] = [-1, -1]
    let type = Int32(SOCK_STREAM.rawValue) | Int32(SOCK_NONBLOCK.rawValue) | Int32(SOCK_CLOEXEC.rawValue)
    guard socketpair(AF_UNIX, type, 0, &ends) == 0 else { throw SystemError("socketpair") }
    let bytes = [UInt8](repeating: 0, count: 1 << 16)
    while send(ends[0], bytes, bytes.count, Int32(MSG_NOSIGNAL)) > 0 {}
    return (DescriptorParcel(Descriptor(owning: ends[0])), Device(Descriptor(owning: ends[1])))
  }

  /// A separate target for each test: another test must not take over a socket that this one gave up.
  private static func target(_ psm: UInt16?, _ security: BluetoothTarget.Security? = nil) -> LateTarget {
    let device = LEAddress(address: Keys.lamp.address, isRandom: true)
    return .le(LETarget(device: device, psm: psm, adapter: Keys.lamp.address, security: security))
  }

  private static func classic(
    _ service: BluetoothTarget.Service, _ security: BluetoothTarget.Security? = nil
  ) -> LateTarget {
    .classic(BluetoothTarget(device: Keys.phone.address, service: service, security: security))
  }

  private static func take(
    _ target: LateTarget, now: UInt64, timeout: Duration = .seconds(10)
  ) -> (socket: DescriptorParcel, since: UInt64)? {
    AbandonedConnects.take(target, now: now, timeout: timeout)
  }

  private static func step(on poller: Poller) -> ConnectStep {
    ConnectStep(ConnectFlow(Keys.lamp, on: 0, timeout: .seconds(30)), on: poller)
  }

  /// A connect in progress.
  private func dial(_ parcel: DescriptorParcel, _ target: LateTarget?, on lane: isolated Lane) async -> ConnectStep {
    let step = Self.step(on: lane.poller)
    let dialled = Gate()
    step.start(
      "x", { .success(parcel) },
      dialling: { _ in
        dialled.open()
        return false
      }, to: target
    ) { _ in Issue.record("it was given up") }
    await dialled.wait(on: lane)
    return step
  }

  @Test("stays open until it is connected, and is then closed")
  func stays() async throws {
    let (parcel, device) = try Self.calling()
    try await onLane { lane in
      let step = await dial(parcel, Self.target(1), on: lane)
      step.cancel()
      #expect(device.isKept)
      let settled = Gate()
      PendingCleanups.settle([lane.poller.abandonedConnects], within: .seconds(30), on: lane.poller) { settled.open() }
      device.accept()
      await settled.wait(on: lane)
      #expect(await device.isClosed)
    }
  }

  @Test("is reused by the next opening of the same target")
  func handedOn() async throws {
    let (parcel, device) = try Self.calling()
    try await onLane { lane in
      let step = await dial(parcel, Self.target(2), on: lane)
      step.cancel()
      let connected = Gate()
      Self.step(on: lane.poller).start(
        "x", { .failure(OpenFailure("there is one already", nil)) }, dialling: { _ in true }, to: Self.target(2)
      ) { result in
        if case .failure(let failure) = result { Issue.record("\(failure)") }
        _ = try? result.get().take()
        connected.open()
      }
      #expect(device.isKept)
      device.accept()
      await connected.wait(on: lane)
      #expect(await device.isClosed)
      #expect(Self.take(Self.target(2), now: lane.poller.timers.now) == nil)
    }
  }

  @Test("is closed at once if it may be pairing or cannot be reused, but not while a channel is being made")
  func closed() async throws {
    for (target, isKept) in [
      (nil, false), (Self.target(3, .medium), false), (Self.target(3, .low), true), (Self.target(3), true),
      (Self.classic(.rfcomm(channel: 3), .medium), false), (Self.classic(.rfcomm(channel: 3)), true),
      (Self.classic(.sdp, .medium), true),
    ] as [(LateTarget?, Bool)] {
      let (parcel, device) = try Self.calling()
      try await onLane { lane in
        let step = await dial(parcel, target, on: lane)
        step.handle(ManagementEvent(adapter: 0, content: .pairing(.linked(Keys.lamp, name: nil))))
        step.cancel()
        if isKept { #expect(device.isKept) } else { #expect(await device.isClosed) }
        if let target { #expect((Self.take(target, now: lane.poller.timers.now) != nil) == isKept) }
      }
    }
  }

  @Test("is closed after a while, or when the process ends")
  func timeout() async throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    func pass(_ time: Duration) {
      for _ in 0..<Int(time / .milliseconds(50)) {
        clock.advance(by: .milliseconds(50))
        poller.timers.fireDue()
      }
    }
    let (parcel, device) = try Self.calling()
    AbandonedConnects.keep(parcel, for: Self.target(4), since: clock.now, on: poller)
    pass(AbandonedConnects.timeout - .milliseconds(50))
    #expect(device.isKept)
    pass(.milliseconds(100))
    #expect(await device.isClosed)

    let (hurried, other) = try Self.calling()
    AbandonedConnects.keep(hurried, for: Self.target(4), since: clock.now, on: poller)
    var isSettled = false
    PendingCleanups.settle([poller.abandonedConnects], within: .seconds(1), on: poller) { isSettled = true }
    pass(.milliseconds(900))
    #expect(other.isKept && !isSettled)
    pass(.milliseconds(200))
    #expect(isSettled)
    #expect(await other.isClosed)
  }

  @Test(
    "is reused while the kernel pages the device, and closed if that time is too short for the next opening",
    arguments: [
      (target(6), 29, 10), (classic(.rfcomm(channel: 6)), 19, 10), (classic(.rfcomm(channel: 7)), 26, 3),
      // The opening's timeout is longer than the kernel's.
      (target(7), 29, 60), (classic(.rfcomm(channel: 8)), 19, 30),
    ])
  func age(target: LateTarget, seconds: Int, timeout: Int) async throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let (parcel, device) = try Self.calling()
    let began = clock.now
    clock.advance(by: .seconds(seconds))
    AbandonedConnects.keep(parcel, for: target, since: began, on: poller)
    let taken = Self.take(target, now: clock.now, timeout: .seconds(timeout))
    #expect(taken?.since == began && device.isKept)
    guard let taken else { return }
    clock.advance(by: .seconds(1))
    AbandonedConnects.keep(taken.socket, for: target, since: began, on: poller)
    #expect(Self.take(target, now: clock.now, timeout: .seconds(timeout)) == nil)
    #expect(await device.isClosed)
  }

  @Test("is not reused when it broke; one that requires encryption is then closed and blocks nothing")
  func notHandedOn() async throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let (broken, device) = try Self.calling()
    AbandonedConnects.keep(broken, for: Self.target(5), since: clock.now, on: poller)
    device.hangUp()
    #expect(Self.take(Self.target(5), now: clock.now) == nil)
    let (secret, other) = try Self.calling()
    AbandonedConnects.keep(secret, for: Self.target(5, .medium), since: clock.now, on: poller)
    #expect(other.isKept)
    #expect(Self.take(Self.target(5, .medium), now: clock.now) == nil)
    #expect(await other.isClosed)
  }
}
