// The management channel on a lane: sends commands and reports events. One per attempt, not one per process: every such
// socket gets all events, so attempts need not know each other. The kernel forgets an attempt whose socket is closed.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBrokerCore

final class ManagementSocket: PollHandler {
  private let poller: Poller
  private var descriptor: Descriptor?
  private var isInPoller = false
  private var buffer = [UInt8](repeating: 0, count: 4096)  // an advertisement has some 1700 bytes at most
  private let handle: (Result<ManagementEvent, SystemError>) -> Void

  /// Opens a socket. Call it off the lane: the kernel may load a module first.
  static func open() -> Result<DescriptorParcel, OpenFailure> {
    let raw = bluetooth_management_socket()
    guard raw < 0 else { return .success(DescriptorParcel(Descriptor(owning: raw))) }
    let error = SystemError("socket")
    let isMissing = error.errno == EAFNOSUPPORT || error.errno == EPROTONOSUPPORT
    return .failure(
      OpenFailure(
        "open Bluetooth's management channel", error,
        advice: isMissing ? BluetoothTarget.missing : nil))
  }

  /// How a socket is made off the lane: by `make` below, unless a test simulates the kernel.
  typealias Making = (Poller, @escaping (Result<DescriptorParcel, OpenFailure>) -> Void) -> any Opening

  // Only loading the kernel's module can hang, and then it hangs for all.
  private static let mostAttempts = 1024

  /// The same, off the lane of `poller`; `done` is called on that lane.
  static func make(
    on poller: Poller, _ done: @escaping (Result<DescriptorParcel, OpenFailure>) -> Void
  ) -> any Opening {
    DeviceQueue.of("bluetooth").open(
      "management channel", most: mostAttempts, on: poller, open, undo: { _ = $0.take() }, done)
  }

  /// `handle` is called with every event, and once with the error that broke the socket.
  init(
    _ socket: DescriptorParcel, on poller: Poller, _ handle: @escaping (Result<ManagementEvent, SystemError>) -> Void
  ) {
    descriptor = socket.take()
    self.poller = poller
    self.handle = handle
  }

  func start(_ command: ManagementCommand? = nil) {
    guard let raw = descriptor?.raw else { return handle(.failure(SystemError("send", EBADF))) }
    do throws(SystemError) {
      try poller.add(raw, handler: self, for: .readable)
      isInPoller = true
    } catch {
      return handle(.failure(error))
    }
    if let command { send(command) }
  }

  /// The kernel accepts a command at once; the answer is an event. For a command that it refuses, write(2) returns 0,
  /// and the answer follows all the same.
  func send(_ command: ManagementCommand) {
    guard let raw = descriptor?.raw else { return }
    let bytes = command.encoded
    guard Glibc.write(raw, bytes, bytes.count) >= 0 else { return handle(.failure(SystemError("write"))) }
  }

  /// Events of scans are passed on only while this is set: otherwise any program's scan would wake every open stream. A
  /// new socket does not get them.
  func hearScans(_ isWanted: Bool) {
    if let raw = descriptor?.raw { bluetooth_receive_scan_events(raw, isWanted ? 1 : 0) }
  }

  func ready(_ events: PollEvents) { readAll(isHungUp: !events.isDisjoint(with: .hangUp)) }

  /// Reports all events that are queued.
  func readAll(isHungUp: Bool = false) {
    while let raw = descriptor?.raw {
      let count = Glibc.read(raw, &buffer, buffer.count)
      if count > 0 {
        if let event = ManagementEvent(Array(buffer[..<count])) { handle(.success(event)) }
      } else if count < 0, errno == EINTR {
        continue
      } else if count < 0, errno == EAGAIN, !isHungUp {
        return
      } else {
        return handle(.failure(count < 0 ? SystemError("read") : SystemError("read", ECONNRESET)))
      }
    }
  }

  func close() {
    if isInPoller, let raw = descriptor?.raw { poller.remove(raw, isClosing: true) }
    isInPoller = false
    descriptor = nil
  }
}
