// Whether bluetoothd runs. It has no file or socket of its own that would tell (its name on D-Bus would; that is not spoken here),
// and its process may be in another namespace. But while it runs it holds two well-known PSMs, and they are the kernel's: SDP's, from its
// start on whether there is an adapter or not (unless it is told to speak LE only), and on each adapter it has taken on that of ATT.

internal import CBluetooth
import Glibc

enum BluetoothDaemon {
  private static let sdp: UInt16 = 0x0001
  private static let att: UInt16 = 0x001F

  /// Nil when it can't be told, which takes CAP_NET_BIND_SERVICE. May block.
  static func runs(on adapter: BluetoothAddress) -> Bool? {
    var sdpTaken = bluetooth_psm_is_taken(nil, sdp)
    // A list of services of our own is no sign of bluetoothd, but of its absence when it was opened.
    if sdpTaken == 1, bluetooth_psm_is_ours(sdp) == 1 { sdpTaken = 0 }
    let attTaken = bluetooth_psm_is_taken(adapter.bytes, att)
    if sdpTaken == 1 || attTaken == 1 { return true }
    return sdpTaken == 0 && attTaken == 0 ? false : nil
  }
}
