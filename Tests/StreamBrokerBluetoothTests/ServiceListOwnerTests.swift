// Which program owns this machine's list of services, found by a mark (an abstract socket name). Tests run one at a
// time, because the mark belongs to the process.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerBluetooth

@Suite("The place of a service list", .serialized, .timeLimit(.minutes(5)))
struct ServiceListOwnerTests {
  @Test("belongs to another gateway if that has set its mark, before or after the place was tried")
  func mark() throws {
    let mark = UnixAddress.abstract("baudway-place-\(getpid())")
    func place(_ bind: () -> Bool) -> String {
      do throws(SystemError) {
        guard let socket = try? MessagePort.socket(SOCK_SEQPACKET) else { return "no socket" }
        switch try ServiceListOwner.owner(for: DescriptorParcel(socket), marking: mark, tries: 2000, bind) {
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
    // The other gateway ends between the two checks.
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
    // It releases the place before the name.
    let leaving = held
    DispatchQueue(label: "leaves").asyncAfter(deadline: .now() + .milliseconds(50)) { _ = leaving?.take() }
    held = nil
    #expect(place { true } == "own")
    #expect(!BluetoothDaemon.isSet(mark))
  }

  @Test("is marked without blocking other queries while another gateway still has the mark")
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
