// The management channel's socket: scan events wake only a socket that asked for them. The test plays the kernel's end.

import Glibc
import Testing

@testable import ByteStreams
@testable import StreamBrokerBluetooth

@Suite("A socket of the management channel", .timeLimit(.minutes(5)))
struct ManagementSocketTests {
  private typealias Device = GATTStreamTests.Device

  private static let found: [UInt8] = [0x12, 0, 0, 0, 14, 0, 1] + [UInt8](repeating: 0, count: 13)
  private static let discovering: [UInt8] = [0x13, 0, 0, 0, 2, 0, 6, 1]
  private static let added: [UInt8] = [4, 0, 3, 0, 0, 0]

  @Test("receives scan events of any program only while requested")
  func scans() throws {
    let poller = try Poller { _ in }
    let (parcel, kernel) = try Device.pair()
    defer { kernel.hangUp() }
    var received: [ManagementEvent] = []
    let socket = ManagementSocket(parcel, on: poller) { if case .success(let event) = $0 { received.append(event) } }
    defer { socket.close() }
    for (isWanted, count) in [(false, 1), (true, 3), (false, 1), (true, 3)] {
      socket.hearScans(isWanted)
      // When `say` returns, each event has reached the socket or has been dropped.
      for event in [Self.found, Self.discovering, Self.added] { try kernel.say(event) }
      received = []
      socket.readAll()
      #expect(received.count == count)
      #expect(received.last == ManagementEvent(Self.added))
    }
  }
}
