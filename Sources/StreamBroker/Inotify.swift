// An inotify(7) instance on its way between lane and queue: a lane reads it, a queue sets watches and closes.

import ByteStreams
import CLinux
import Dispatch
import Glibc

public struct Inotify: Sendable {
  public let raw: Int32
  private let parcel: DescriptorParcel

  public static func open() -> Result<Inotify, SystemError> {
    let raw = inotify_init1(Int32(IN_NONBLOCK | IN_CLOEXEC))
    guard raw >= 0 else { return .failure(SystemError("inotify_init1")) }
    return .success(Inotify(raw: raw, parcel: DescriptorParcel(Descriptor(owning: raw))))
  }

  /// Watches `path` for events of `mask`. Looking up the path may block.
  public func watch(_ path: String, _ mask: Int32) throws(SystemError) {
    guard inotify_add_watch(raw, path, UInt32(mask)) >= 0 else { throw SystemError("inotify_add_watch") }
  }

  /// Closes behind what is under way on `queue`.
  public func close(on queue: DispatchQueue) {
    queue.async { [parcel] in _ = parcel.take() }
  }

  /// Reads what fits until an event (watch, mask, name) `matters`. Whether one did; those behind it are dropped.
  public func read(until matters: (Int32, UInt32, UnsafePointer<CChar>?) -> Bool) -> Bool {
    withUnsafeTemporaryAllocation(byteCount: 16384, alignment: MemoryLayout<inotify_event>.alignment) { buffer in
      let count = Glibc.read(raw, buffer.baseAddress!, buffer.count)
      var place = 0
      while place < count {
        let event = buffer.load(fromByteOffset: place, as: inotify_event.self)
        let start = buffer.baseAddress! + place + MemoryLayout<inotify_event>.size
        let name = event.len > 0 ? UnsafePointer(start.assumingMemoryBound(to: CChar.self)) : nil
        if matters(event.wd, event.mask, name) { return true }
        place += MemoryLayout<inotify_event>.size + Int(event.len)
      }
      return false
    }
  }
}
