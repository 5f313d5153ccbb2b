// Every scheme through the same suite. To add one, copy a rig: it says how to make a far end, and nil for what its scheme
// has nothing of.

import ByteStreams
import Dispatch
import StreamTestKit
import Testing

@testable import StreamBroker

@Suite("Every scheme", .timeLimit(.minutes(1)))
struct ConformanceTests {
  @Test("tcp: keeps what a stream promises", arguments: ["127.0.0.1", "::1"])
  func tcp(host: String) async throws { try await StreamConformance(TCPRig(host: host)).run() }

  @Test("tty: keeps what a stream promises")
  func tty() async throws { try await StreamConformance(PtyRig()).run() }

  @Test("sim: keeps what a stream promises")
  func sim() async throws { try await StreamConformance(SimRig()).run() }
}

/// A server on the loopback.
struct TCPRig: StreamRig {
  let host: String

  func farEnd(_ part: FarPart) throws -> String? {
    let listener = try LoopbackListener(host)
    if case .refuse = part {
      listener.close()
    } else {
      DispatchQueue(label: "far end").async {
        do { try listener.accept().play(part) } catch { Issue.record(error) }
        listener.close()
      }
    }
    return "tcp://\(listener.address)"
  }
}

/// The other side of a pty. A serial line knows no end of writing; who hangs up has been pulled out.
struct PtyRig: StreamRig {
  func farEnd(_ part: FarPart) throws -> String? {
    let pty = try makePty()
    switch part {
    case .refuse: return "tty:///dev/pts/nobody"
    case .answerAfterTheEnd, .sayAndHangUp: return nil  // Linux may drop what was said when a pty's master closes
    case .echo, .sleepThenCount:
      DispatchQueue(label: "far end").async {
        do { try pty.play(part) } catch { Issue.record(error) }
      }
      return "tty://\(pty.path)"
    }
  }
}

/// Its far ends are built in.
struct SimRig: StreamRig {
  func farEnd(_ part: FarPart) -> String? {
    switch part {
    case .echo, .answerAfterTheEnd: "sim://echo"
    case .sayAndHangUp, .sleepThenCount, .refuse: nil
    }
  }
}
