// Changes of a pty's settings as requests of the line.

import CLinux
import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The control channel of a pty", .timeLimit(.minutes(5)))
struct PtyControlTests {
  private func requests(
    offered: LineSettings, _ events: [ControlChannelEvent] = [], _ changes: (inout linux_termios) -> Void...
  ) throws -> [ControlChannelRequest] {
    let poller = try Poller { _ in }
    var name = [CChar](repeating: 0, count: 64)
    let master = linux_open_pty(&name, name.count)
    let slave = Descriptor(owning: open(name, O_RDWR | O_NOCTTY | O_NONBLOCK))
    PtySettings(offered).show(at: master)
    let stream = PtyClientStream(Descriptor(owning: master), offered: PtySettings(offered), on: poller)
    defer { stream.close() }
    let control = PtyControl(stream)
    for event in events { #expect(control.send(event)) }
    var requests: [ControlChannelRequest] = []
    for change in changes {
      var modes = linux_termios()
      #expect(linux_tcgets2(slave.raw, &modes) == 0)
      change(&modes)
      #expect(linux_tcsets2(slave.raw, &modes) == 0)
      #expect(try stream.read() == .blocked(until: .readable))
      while let request = control.takeRequest() { requests.append(try request.get().request) }
    }
    return requests
  }

  @Test("asks for what has changed and no more")
  func changes() throws {
    let asked = try requests(
      offered: LineSettings(),
      [],
      { $0.output_rate = 1_000_000 },
      { $0.cflag |= UInt32(CSTOPB) },
      {
        $0.iflag |= UInt32(IXON | IXOFF)
        $0.output_rate = 50
      })
    #expect(
      asked == [
        .line(.init(bitsPerSecond: 1_000_000)), .line(.init(stopBits: .two)),
        .line(.init(bitsPerSecond: 50, flowControl: .xonxoff)),
      ])
  }

  @Test("asks for nothing where a pty tells nothing: modes of the terminal, a rate of 0 or one that no line has")
  func nothing() throws {
    let asked = try requests(
      offered: LineSettings(), [],
      { $0.lflag |= UInt32(ICANON | ECHO) }, { $0.output_rate = 0 }, { $0.output_rate = 30_000_000 },
      { $0.cflag |= UInt32(bitPattern: Int32(bitPattern: CRTSCTS)) })
    #expect(asked.isEmpty)
  }

  @Test("returns to the line's other flow control when XON/XOFF ends")
  func flowControl() throws {
    let line = LineSettings(flowControl: .rtscts)
    let asked = try requests(
      offered: line, [.line(line)], { $0.iflag |= UInt32(IXON | IXOFF) }, { $0.iflag &= ~UInt32(IXON | IXOFF) })
    #expect(asked == [.line(.init(flowControl: .xonxoff)), .line(.init(flowControl: .rtscts))])
  }
}
