// Whose this machine's list of services is, by a mark that is tried for in turn with others. One at a time: the mark is the process's.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerBluetooth

@Suite("The place of a service list", .serialized, .timeLimit(.minutes(1)))
struct ServicePlaceTests {
  @Test("is another gateway's where that has left its mark, before or after the place was tried")
  func mark() throws {
    let mark = UnixAddress.abstract("baudway-place-\(getpid())")
    func place(_ bind: () -> Bool) -> String {
      do throws(SystemError) {
        guard let socket = try? MessagePort.socket(SOCK_SEQPACKET) else { return "no socket" }
        switch try ServicePlace.place(for: DescriptorParcel(socket), marking: mark, tries: 2000, bind) {
        case .own(_, let hold):
          return withExtendedLifetime(hold) { BluetoothDaemon.isSet(mark) ? "own" : "own, unmarked" }
        case .daemon: return "bluetoothd's"
        case .gateway: return "another gateway's"
        }
      } catch {
        return error.name
      }
    }
    func fail(_ number: Int32) -> Bool {
      errno = number
      return false
    }
    #expect(place { fail(EADDRINUSE) } == "EADDRINUSE")
    var held = BluetoothDaemon.setMark(mark)
    #expect(place { fail(EADDRINUSE) } == "another gateway's")
    #expect(place { fail(EACCES) } == "EACCES")
    // It goes between the two.
    let left = place {
      _ = held?.take()
      held = nil
      return fail(EADDRINUSE)
    }
    #expect(left == "another gateway's")
    let came = place {
      held = BluetoothDaemon.setMark(mark)
      return fail(EADDRINUSE)
    }
    #expect(came == "another gateway's")
    // Its place is let go of before its name.
    let leaving = held
    DispatchQueue(label: "leaves").asyncAfter(deadline: .now() + .milliseconds(50)) { _ = leaving?.take() }
    held = nil
    #expect(place { true } == "own")
    #expect(!BluetoothDaemon.isSet(mark))
  }

  @Test("is marked without keeping those waiting who ask whose it is, while the mark is another's still")
  func waits() async throws {
    let mark = UnixAddress.abstract("baudway-waits-\(getpid())")
    let held = BluetoothDaemon.setMark(mark)
    let isBound = DispatchSemaphore(value: 0)
    let isOver = Mutex(false)
    async let taken = onOwnThread {
      let isTaken = BluetoothDaemon.takeSDP(mark, tries: 2000) {
        isBound.signal()
        return true
      }
      isOver.withLock { $0 = true }
      return isTaken
    }
    try await onOwnThread { isBound.wait() }
    #expect(BluetoothDaemon.isSDPOurs(mark))
    #expect(!isOver.withLock { $0 })
    _ = held?.take()
    #expect(try await taken)
    BluetoothDaemon.leaveSDP()
    #expect(!BluetoothDaemon.isSet(mark))
  }
}
