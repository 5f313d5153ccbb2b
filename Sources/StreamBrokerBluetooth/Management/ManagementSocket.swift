// The management channel on a lane: sends commands, tells of events. One per attempt, not one per process: events reach every
// such socket, so attempts need not know of each other, and whose socket is closed is forgotten.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBroker

final class ManagementSocket: PollHandler {
  private let poller: Poller
  private var descriptor: Descriptor?
  private var isInPoller = false
  private var buffer = [UInt8](repeating: 0, count: 4096)  // what is advertised has some 1700 bytes at most
  private let hear: (Result<ManagementEvent, SystemError>) -> Void

  /// Opens one; off the lane, as the kernel may load a module first.
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

  /// How one is made off the lane; `make` below, unless a test plays the kernel.
  typealias Making = (Poller, @escaping (Result<DescriptorParcel, OpenFailure>) -> Void) -> any Opening

  // What can hang there is the loading of the kernel's module, and that hangs for all.
  private static let mostAttempts = 1024

  /// The same off the lane of `poller`, and back on it.
  static func make(
    on poller: Poller, _ done: @escaping (Result<DescriptorParcel, OpenFailure>) -> Void
  ) -> any Opening {
    DeviceQueue.of("bluetooth").open(
      "management channel", most: mostAttempts, on: poller, open, undo: { _ = $0.take() }, done)
  }

  /// `hear` is told of every event, and once of what broke the socket.
  init(_ socket: DescriptorParcel, on poller: Poller, _ hear: @escaping (Result<ManagementEvent, SystemError>) -> Void)
  {
    descriptor = socket.take()
    self.poller = poller
    self.hear = hear
  }

  func start(_ command: ManagementCommand? = nil) {
    guard let raw = descriptor?.raw else { return hear(.failure(SystemError("send", EBADF))) }
    do throws(SystemError) {
      try poller.add(raw, handler: self, for: .readable)
      isInPoller = true
    } catch {
      return hear(.failure(error))
    }
    if let command { send(command) }
  }

  /// The kernel takes a command at once; the answer is an event. Of one that it refuses it says 0 bytes were written, and answers.
  func send(_ command: ManagementCommand) {
    guard let raw = descriptor?.raw else { return }
    let bytes = command.encoded
    guard Glibc.write(raw, bytes, bytes.count) >= 0 else { return hear(.failure(SystemError("write"))) }
  }

  /// What scans tell comes only while that is asked for: anybody's would wake every open stream otherwise. A new socket is deaf to it.
  func hearScans(_ isWanted: Bool) {
    if let raw = descriptor?.raw { bluetooth_hear_scans(raw, isWanted ? 1 : 0) }
  }

  func ready(_ events: PollEvents) { readAll(isHungUp: !events.isDisjoint(with: .hangUp)) }

  /// Hears what has been told already.
  func readAll(isHungUp: Bool = false) {
    while let raw = descriptor?.raw {
      let count = Glibc.read(raw, &buffer, buffer.count)
      if count > 0 {
        if let event = ManagementEvent(Array(buffer[..<count])) { hear(.success(event)) }
      } else if count < 0, errno == EINTR {
        continue
      } else if count < 0, errno == EAGAIN, !isHungUp {
        return
      } else {
        return hear(.failure(count < 0 ? SystemError("read") : SystemError("read", ECONNRESET)))
      }
    }
  }

  func close() {
    if isInPoller, let raw = descriptor?.raw { poller.remove(raw, isClosing: true) }
    isInPoller = false
    descriptor = nil
  }
}
