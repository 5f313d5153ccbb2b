// Whether bluetoothd runs. It has no file or socket of its own that would tell (its name on D-Bus would; that is not spoken here),
// and its process may be in another namespace. But while it runs it holds two well-known PSMs, and they are the kernel's: SDP's, from its
// start on whether there is an adapter or not (unless it is told to speak LE only), and on each adapter it has taken on that of ATT.

internal import CBluetooth
import Glibc
import Synchronization

public enum BluetoothDaemon {
  private static let sdp: UInt16 = 0x0001
  private static let att: UInt16 = 0x001F

  // The number of our own sockets on SDP's PSM, and a lock by which nobody binds it while it is tried.
  private static let own = Mutex(0)

  /// For our own SDP responder, around its bind(2): its PSM is no sign of bluetoothd, and free when it is free. Answers what `bind`
  /// answers, and counts when that is true.
  public static func takeSDP(_ bind: () -> Bool) -> Bool {
    own.withLock { count in
      let isTaken = bind()
      if isTaken { count += 1 }
      return isTaken
    }
  }

  /// When it has closed that socket.
  public static func leaveSDP() { own.withLock { $0 -= 1 } }

  /// Nil when it can't be told, which takes CAP_NET_BIND_SERVICE. May block.
  static func runs(on adapter: BluetoothAddress) -> Bool? {
    let sdpTaken = own.withLock { $0 > 0 ? 0 : bluetooth_psm_is_taken(nil, sdp) }
    let attTaken = bluetooth_psm_is_taken(adapter.bytes, att)
    if sdpTaken == 1 || attTaken == 1 { return true }
    return sdpTaken == 0 && attTaken == 0 ? false : nil
  }
}
