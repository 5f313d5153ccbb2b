// The end of a Bluetooth stream, played by local stream sockets, which report a hang-up in the same way.

import ByteStreams
import CLinux
import Glibc
import StreamTestKit
import Testing

@testable import StreamBrokerBluetooth

@Suite("A Bluetooth stream", .timeLimit(.minutes(5)))
struct BluetoothStreamTests {
  private static func pair() throws -> (near: DescriptorParcel, far: DescriptorParcel) {
    var ends: [Int32] = [-1, -1]
    let type = Int32(SOCK_STREAM.rawValue) | Int32(SOCK_NONBLOCK.rawValue) | Int32(SOCK_CLOEXEC.rawValue)
    guard socketpair(AF_UNIX, type, 0, &ends) == 0 else { throw SystemError("socketpair") }
    return (DescriptorParcel(Descriptor(owning: ends[0])), DescriptorParcel(Descriptor(owning: ends[1])))
  }

  private static func stream(
    _ parcel: DescriptorParcel, hangsUpInOrder: Bool, on lane: isolated Lane
  ) throws -> BluetoothStream {
    guard let descriptor = parcel.take() else { throw SystemError("socketpair", EBADF) }
    return BluetoothStream(descriptor, hangsUpInOrder: hangsUpInOrder, on: lane.poller)
  }

  @Test(
    "is not lost by a hang-up during a write where a hang-up is the normal end",
    arguments: [true, false])
  func leaves(inOrder: Bool) async throws {
    let (near, far) = try Self.pair()
    try await onLane { lane in
      let stream = try Self.stream(near, hangsUpInOrder: inOrder, on: lane)
      defer { stream.close() }
      // The unread byte turns the close into a reset.
      #expect(try [1].withUnsafeBytes { try stream.write($0) } == .moved(8))
      _ = far.take()
      var thrown: SystemError?
      // A program that is just being forked holds a copy for a moment.
      for _ in 0..<10_000 where thrown == nil {
        do {
          _ = try [UInt8(2)].withUnsafeBytes { try stream.write($0) }
          usleep(1000)
        } catch {
          thrown = error as? SystemError
        }
      }
      #expect(thrown?.errno == (inOrder ? EPIPE : ECONNRESET))
      #expect(throws: SystemError.self) { try [UInt8(2)].withUnsafeBytes { try stream.write($0) } }
      var buffer = [UInt8](repeating: 0, count: 8)
      #expect(try buffer.withUnsafeMutableBytes { try stream.read(into: $0) } == .ended)
    }
  }

  @Test("reports once that the other side has left while nothing reads")
  func unread() async throws {
    let (near, far) = try Self.pair()
    try await onLane { lane in
      let stream = try Self.stream(near, hangsUpInOrder: true, on: lane)
      defer { stream.close() }
      let reported = Gate()
      let recorder = EventRecorder { if $0 == .inputEnded { reported.open() } }
      stream.delegate = recorder
      // As a session does that waits for its turn to write.
      stream.readerWaits = .readable
      stream.readerWaits = []
      _ = far.take()
      await reported.wait(on: lane)
      let later = Gate()
      lane.poller.timers.after(.milliseconds(20)) { later.open() }
      await later.wait(on: lane)
      #expect(recorder.events == [.inputEnded])
    }
  }
}
