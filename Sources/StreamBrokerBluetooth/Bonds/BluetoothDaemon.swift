// Whether bluetoothd runs. It has no file or socket of its own that would tell (its name on D-Bus would; that is not spoken here),
// and its process may be in another namespace. But while it runs it holds two well-known PSMs, and they are the kernel's: SDP's, from its
// start on whether there is an adapter or not (unless it is told to speak LE only), and on each adapter it has taken on that of ATT.

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
  // Our own sockets on SDP's PSM, and a lock by which nobody binds it while it is tried.
  private static let own = Mutex(Own())
  // By this name other processes of ours know that it is we who hold that PSM; both go with the process.
  static let mark = UnixAddress.abstract("baudway-sdp")
  // Who had the place before us lets go of the name a moment after it.
  static let mostTries = 50
  private static let betweenTries: useconds_t = 10_000

  /// For our own SDP responder, around its bind(2): its PSM is no sign of bluetoothd, and free when it is free. Answers what `bind`
  /// answers, and counts when that is true. May block.
  static func takeSDP(_ mark: UnixAddress = mark, tries: Int = mostTries, _ bind: () -> Bool) -> Bool {
    let isTaken = own.withLock { own in
      guard bind() else { return false }
      own.sockets += 1
      return true
    }
    guard isTaken else { return false }
    // Between two tries others may have the lock: some of them are lanes.
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

  /// Whether its PSM is held by this process, or by another of ours.
  static func isSDPOurs(_ mark: UnixAddress = mark) -> Bool { own.withLock { $0.sockets > 0 || isSet(mark) } }

  /// When it has closed that socket.
  static func leaveSDP() {
    own.withLock { own in
      own.sockets -= 1
      if own.sockets == 0 { own.mark = nil }
    }
  }

  /// Nil where it is there already.
  static func setMark(_ mark: UnixAddress) -> DescriptorParcel? {
    guard let socket = markSocket(), (try? mark.withSockaddr { bind(socket.raw, $0, $1) }) == 0 else { return nil }
    return DescriptorParcel(socket)
  }

  /// Whether a process holds it.
  static func isSet(_ mark: UnixAddress) -> Bool {
    guard let socket = markSocket() else { return false }
    return (try? mark.withSockaddr { connect(socket.raw, $0, $1) }) == 0
  }

  private static func markSocket() -> Descriptor? {
    let raw = socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue) | Int32(SOCK_CLOEXEC.rawValue), 0)
    return raw < 0 ? nil : Descriptor(owning: raw)
  }

  /// Nil when it can't be told, which takes CAP_NET_BIND_SERVICE. May block.
  static func runs(on adapter: BluetoothAddress) -> Bool? {
    let sdpTaken = own.withLock { $0.sockets > 0 || isSet(mark) ? 0 : bluetooth_psm_is_taken(nil, sdp) }
    let attTaken = bluetooth_psm_is_taken(adapter.bytes, att)
    if sdpTaken == 1 || attTaken == 1 { return true }
    return sdpTaken == 0 && attTaken == 0 ? false : nil
  }
}
