// Whether bluetoothd runs. It has no file or socket of its own to look for (only a name on D-Bus, which we do not use).
// Its process may be in another namespace. But while it runs it binds two well-known PSMs in the kernel. It binds SDP's
// from its start, even without an adapter (unless it is set to LE only), and ATT's on each adapter that it manages.

internal import CBluetooth
import ByteStreams
import Glibc
import Synchronization

enum BluetoothDaemon {
  private static let sdp: UInt16 = 0x0001
  private static let att: UInt16 = 0x001F

  private struct Own {
    var sockets = 0
    var mark: DescriptorParcel?
  }
  // Our own sockets on SDP's PSM. The lock keeps our sockets and the probe in `runs` from binding that PSM at the same
  // time.
  private static let own = Mutex(Own())
  // By this name our other processes know that one of ours holds SDP's PSM. Name and PSM both end with the process.
  static let mark = UnixAddress.abstract("baudway-sdp")
  // The previous holder releases the name a moment after the PSM.
  static let mostTries = 50
  private static let betweenTries: useconds_t = 10_000

  /// Binds the socket of our own SDP responder: `runs` then does not take its PSM for bluetoothd's, and does not probe
  /// it meanwhile. Returns what `bind` returns; if true, call `leaveSDP` later. May block.
  static func takeSDP(_ mark: UnixAddress = mark, tries: Int = mostTries, _ bind: () -> Bool) -> Bool {
    let isTaken = own.withLock { own in
      guard bind() else { return false }
      own.sockets += 1
      return true
    }
    guard isTaken else { return false }
    // Release the lock between two tries: lanes may wait for it.
    for number in 0..<tries {
      if number > 0 { usleep(betweenTries) }
      let isMarked = own.withLock { own in
        if own.mark == nil { own.mark = setMark(mark) }
        return own.mark != nil
      }
      if isMarked { break }
    }
    return true
  }

  /// Whether this process, or another of ours, holds SDP's PSM.
  static func isSDPOurs(_ mark: UnixAddress = mark) -> Bool { own.withLock { $0.sockets > 0 || isSet(mark) } }

  /// Call this after closing the socket on SDP's PSM.
  static func leaveSDP() {
    own.withLock { own in
      own.sockets -= 1
      if own.sockets == 0 { own.mark = nil }
    }
  }

  /// Binds the name. Nil if another process has it.
  static func setMark(_ mark: UnixAddress) -> DescriptorParcel? {
    guard let socket = markSocket(), (try? mark.withSockaddr { bind(socket.raw, $0, $1) }) == 0 else { return nil }
    return DescriptorParcel(socket)
  }

  /// Whether a process holds the name.
  static func isSet(_ mark: UnixAddress) -> Bool {
    guard let socket = markSocket() else { return false }
    return (try? mark.withSockaddr { connect(socket.raw, $0, $1) }) == 0
  }

  private static func markSocket() -> Descriptor? {
    let raw = socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue) | Int32(SOCK_CLOEXEC.rawValue), 0)
    return raw < 0 ? nil : Descriptor(owning: raw)
  }

  /// Nil if unknown: the probe needs CAP_NET_BIND_SERVICE. May block.
  static func runs(on adapter: BluetoothAddress) -> Bool? {
    let sdpTaken = own.withLock { $0.sockets > 0 || isSet(mark) ? 0 : bluetooth_psm_is_taken(nil, sdp) }
    let attTaken = bluetooth_psm_is_taken(adapter.bytes, att)
    if sdpTaken == 1 || attTaken == 1 { return true }
    return sdpTaken == 0 && attTaken == 0 ? false : nil
  }
}
