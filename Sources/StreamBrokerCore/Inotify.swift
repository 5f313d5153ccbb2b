// An inotify(7) instance, shared by a lane and a queue: the lane reads it; the queue sets watches and closes it.

import ByteStreams
import CLinux
import Dispatch
import Glibc

package struct Inotify: Sendable {
  package let raw: Int32
  private let parcel: DescriptorParcel

  package static func open() -> Result<Inotify, SystemError> {
    let raw = inotify_init1(Int32(IN_NONBLOCK | IN_CLOEXEC))
    guard raw >= 0 else { return .failure(SystemError("inotify_init1")) }
    return .success(Inotify(raw: raw, parcel: DescriptorParcel(Descriptor(owning: raw))))
  }

  /// Watches `path` for events of `mask`. Looking up the path may block.
  package func watch(_ path: String, _ mask: Int32) throws(SystemError) {
    guard inotify_add_watch(raw, path, UInt32(mask)) >= 0 else { throw SystemError("inotify_add_watch") }
  }

  /// Closes after the calls already queued on `queue`.
  package func close(on queue: DispatchQueue) {
    queue.async { [parcel] in _ = parcel.take() }
  }

  /// Reads once, up to the first event (watch, mask, name) that `matters`. Returns whether there was one; later events
  /// of that read are dropped.
  package func read(until matters: (Int32, UInt32, UnsafePointer<CChar>?) -> Bool) -> Bool {
    withUnsafeTemporaryAllocation(byteCount: 16384, alignment: MemoryLayout<inotify_event>.alignment) { buffer in
      let count = Glibc.read(raw, buffer.baseAddress!, buffer.count)
      var offset = 0
      while offset < count {
        let event = buffer.load(fromByteOffset: offset, as: inotify_event.self)
        let start = buffer.baseAddress! + offset + MemoryLayout<inotify_event>.size
        let name = event.len > 0 ? UnsafePointer(start.assumingMemoryBound(to: CChar.self)) : nil
        if matters(event.wd, event.mask, name) { return true }
        offset += MemoryLayout<inotify_event>.size + Int(event.len)
      }
      return false
    }
  }
}
