// The output of a link: the program fills a bounded buffer, and a task sends it.

import Foundation
import StreamBroker
import Synchronization

final class OutputSide: StreamSide, @unchecked Sendable {
  private let handle: StreamHandle
  private let sending = Mutex<Task<Void, Never>?>(nil)

  init(_ handle: StreamHandle) { self.handle = handle }

  override var readyEvent: Stream.Event { .hasSpaceAvailable }
  override func isReady(_ state: State) -> Bool { !state.hasEnded && state.bytes.count < Self.capacity }
  override func showsEnd(_ state: State) -> Bool { true }

  func open() {
    let isFirst = change { state in
      defer { state.isOpen = true }
      return !state.isOpen && !state.isClosed
    }
    guard isFirst else { return }
    let task = Task(executorPreference: StreamExecutor.shared) { await self.send() }
    sending.withLock { $0 = task }
  }

  private func send() async {
    do {
      while let bytes = await unsent() { try await handle.write(bytes) }
      if handle.canHalfClose { try await handle.finishWriting() }
    } catch {
      finish(.failed(NSError.of(error, url: handle.metadata.url)))
    }
  }

  /// Waits for bytes; nil when all are sent and the stream is closed.
  private func unsent() async -> [UInt8]? {
    await next { state -> [UInt8]?? in
      guard state.bytes.isEmpty else { return .some(state.bytes.takeAll()) }
      return state.isClosed ? .some(nil) : nil
    }
  }

  /// As `OutputStream.write`: waits for space and takes what there is room for; -1 after an error, at the end, and if
  /// the stream is not open.
  func write(_ bytes: UnsafeBufferPointer<UInt8>) -> Int {
    guard !bytes.isEmpty else { return 0 }
    let count = wait { state -> Int? in
      guard state.isOpen, !state.isClosed, state.end == nil else { return -1 }
      let room = Self.capacity - state.bytes.count
      guard room > 0 else { return nil }
      let count = min(room, bytes.count)
      state.bytes.append(UnsafeBufferPointer(rebasing: bytes[..<count]))
      return count
    }
    return moved(count)
  }

  /// The bytes that were taken are still sent.
  func close() {
    change { $0.isClosed = true }
    removeFromRunLoops()
  }

  /// Returns when everything is sent, or nothing more can be.
  func finished() async { await sending.withLock { $0 }?.value }
}
