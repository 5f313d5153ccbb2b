// The scan for programs, on a played kernel: local sockets stand in for the management channel.

import ByteStreams
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import StreamBrokerBluetooth

@Suite("A scan for devices nearby", .timeLimit(.minutes(5)))
struct NearbyDevicesTests {
  /// The kernel, with one adapter that is on.
  private final class Kernel: Sendable {
    private let device: GATTStreamTests.Device
    private let parcel: DescriptorParcel

    init() throws { (parcel, device) = try GATTStreamTests.Device.pair() }

    func scan(for duration: Duration? = nil, everySignal: Bool = false) -> NearbyDevices {
      let parcel = parcel
      return NearbyDevices(kinds: .all, adapter: nil, duration: duration, everySignal: everySignal) { _, done in
        done(.success(parcel))
        return CompletedOpening()
      }
    }

    /// Answers until the scan runs.
    func begin() async throws {
      try await answer(.indexList, [1, 0, 0, 0])
      let isOn: [UInt8] = [1, 2, 0, 0]
      try await answer(.information, [1, 0, 0, 0, 0, 0, 9, 0xFF, 0xFF] + isOn + isOn + [0, 0, 0])
      try await answer(.startDiscovery, [6])
    }

    /// Waits for the command, and answers it.
    func answer(_ code: ManagementCommand.Code, _ content: [UInt8]) async throws {
      let device = device
      #expect(await eventually { device.handle()?.first == UInt8(code.rawValue) }, "\(code)")
      let adapter: UInt8 = code == .indexList ? 0xFF : 0
      try device.say([1, 0, adapter, adapter, UInt8(3 + content.count), 0, UInt8(code.rawValue), 0, 0] + content)
    }

    func report(_ name: String, strength: Int8 = -60) throws {
      let last = name.utf8.reduce(0) { $0 ^ $1 }
      let advertisement = [UInt8(name.utf8.count + 1), 9] + Array(name.utf8)
      let head = [last, 0, 0, 0, 0, 0xC0, 1, UInt8(bitPattern: strength), 0, 0, 0, 0, UInt8(advertisement.count), 0]
      try device.say([0x12, 0, 0, 0, UInt8(head.count + advertisement.count), 0] + head + advertisement)
    }

    /// Whether the scan is stopped in the kernel, and then its socket is closed.
    func isStopped() async throws -> Bool {
      try await answer(.stopDiscovery, [6])
      let raw = device.raw
      return await eventually {
        var one = pollfd(fd: raw, events: 0, revents: 0)
        return poll(&one, 1, 0) > 0
      }
    }
  }

  @Test("yields each device, and stops in the kernel when the loop over it ends")
  func loop() async throws {
    let kernel = try Kernel()
    async let names = {
      var names: [String?] = []
      for try await device in kernel.scan() {
        names.append(device.name)
        if names.count == 2 { break }
      }
      return names
    }()
    try await kernel.begin()
    try kernel.report("lamp")
    try kernel.report("lamp", strength: -50)
    try kernel.report("clock")
    #expect(try await names == ["lamp", "clock"])
    #expect(try await kernel.isStopped())
  }

  @Test("ends when its task is cancelled, and stops in the kernel")
  func cancelled() async throws {
    let kernel = try Kernel()
    let task = Task {
      for try await _ in kernel.scan() {}
      return Task.isCancelled
    }
    try await kernel.begin()
    task.cancel()
    #expect(try await task.value)
    #expect(try await kernel.isStopped())
  }

  @Test("ends by itself after its time, with what was found before")
  func time() async throws {
    let kernel = try Kernel()
    let task = Task {
      var devices: [NearbyDevice] = []
      for try await device in kernel.scan(for: .milliseconds(300), everySignal: true) { devices.append(device) }
      return devices
    }
    try await kernel.begin()
    for strength in -60 ... -50 { try kernel.report("lamp", strength: Int8(strength)) }
    #expect(try await kernel.isStopped())
    let devices = try await task.value
    #expect(devices.last?.name == "lamp" && devices.last?.strength == -50)
  }

  @Test("throws what prevents it")
  func failure() async {
    let scan = NearbyDevices(kinds: .all, adapter: nil, duration: nil, everySignal: false) { _, done in
      done(.failure(OpenFailure("open", SystemError("socket", EPERM))))
      return CompletedOpening()
    }
    let error = await #expect(throws: OpenFailure.self) { for try await _ in scan {} }
    #expect(error?.cause?.errno == EPERM)
  }
}
