// The input of a link: a task reads ahead, a bounded number of bytes; the program takes them.

import Foundation
import StreamBroker
import Synchronization

final class InputSide: StreamSide, @unchecked Sendable {
  private let handle: StreamHandle
  private let reading = Mutex<Task<Void, Never>?>(nil)

  init(_ handle: StreamHandle) { self.handle = handle }

  override var readyEvent: Stream.Event { .hasBytesAvailable }
  override func isReady(_ state: State) -> Bool { !state.bytes.isEmpty }
  override func showsEnd(_ state: State) -> Bool { state.bytes.isEmpty }

  func open() {
    let isFirst = change { state in
      defer { state.isOpen = true }
      return !state.isOpen && !state.isClosed
    }
    guard isFirst else { return }
    let task = Task(executorPreference: StreamExecutor.shared) { await self.readAhead() }
    reading.withLock { $0 = task }
    if locked({ $0.isClosed }) { task.cancel() }
  }

  /// While the buffer is full the handle is not read, so the device has to wait.
  private func readAhead() async {
    do {
      while let room = await room() {
        let bytes = try await handle.read(upTo: room)
        guard !bytes.isEmpty else { return finish(.ended) }
        change { if !$0.isClosed { $0.bytes.append(bytes) } }
      }
    } catch is CancellationError {
    } catch {
      finish(.failed(NSError.of(error, url: handle.metadata.url)))
    }
  }

  /// Waits until a good part of the buffer is free; nil when the stream is closed.
  private func room() async -> Int? {
    await next { state -> Int?? in
      if state.isClosed { return .some(nil) }
      let room = Self.capacity - state.bytes.count
      return room >= Self.capacity / 2 ? .some(room) : nil
    }
  }

  /// As `InputStream.read`: waits for bytes; 0 at the end, -1 after an error and if the stream is not open.
  func read(into target: UnsafeMutablePointer<UInt8>, most: Int) -> Int {
    guard most > 0 else { return 0 }
    let count = wait { state -> Int? in
      guard state.isOpen, !state.isClosed else { return -1 }
      guard state.bytes.isEmpty else { return state.bytes.take(into: target, most: most) }
      guard let end = state.end else { return nil }
      if case .ended = end { return 0 }
      return -1
    }
    return moved(count)
  }

  func close() {
    change { state in
      state.isClosed = true
      state.bytes = ByteQueue()
    }
    removeFromRunLoops()
    reading.withLock { $0 }?.cancel()
  }
}
