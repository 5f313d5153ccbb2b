// Every scheme runs through the same suite. To add one, copy a rig: it makes the far end of each part, and returns nil
// for parts that its scheme does not support.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("Every scheme", .timeLimit(.minutes(5)))
struct ConformanceTests {
  @Test("tcp: keeps what a stream promises", arguments: ["127.0.0.1", "::1"])
  func tcp(host: String) async throws { try await StreamConformance(TCPRig(host: host)).run() }

  @Test("tls: keeps what a stream promises")
  func tls() async throws { try await StreamConformance(TLSRig()).run() }

  @Test("ws: keeps what a stream promises")
  func ws() async throws { try await StreamConformance(WebSocketRig()).run() }

  @Test("wss: keeps what a stream promises")
  func wss() async throws { try await StreamConformance(WebSocketRig(tls: TLSRig())).run() }

  @Test("rfc2217: keeps what a stream promises")
  func rfc2217() async throws { try await StreamConformance(RemotePortRig(scheme: "rfc2217")).run() }

  @Test("rfc2217s: keeps what a stream promises")
  func rfc2217s() async throws { try await StreamConformance(RemotePortRig(scheme: "rfc2217s", tls: TLSRig())).run() }

  @Test("telnet: keeps what a stream promises")
  func telnet() async throws { try await StreamConformance(RemotePortRig(scheme: "telnet")).run() }

  @Test("tty: keeps what a stream promises")
  func tty() async throws { try await StreamConformance(PtyRig()).run() }

  @Test("unix: keeps what a stream promises")
  func unix() async throws { try await StreamConformance(UnixRig(folder: TemporaryFolder())).run() }

  @Test("pty: keeps what a stream promises")
  func pty() async throws { try await StreamConformance(ProgramRig(folder: TemporaryFolder())).run() }

  @Test("exec: keeps what a stream promises")
  func exec() async throws {
    try ProgramGuard.shared.start()  // keeps one descriptor open for good
    try await StreamConformance(ExecRig(folder: TemporaryFolder())).run()
  }

  @Test("sim: keeps what a stream promises")
  func sim() async throws { try await StreamConformance(SimRig()).run() }
}

/// A server on the loopback.
struct TCPRig: StreamRig {
  let host: String

  func farEnd(_ part: FarPart) throws -> String? {
    // A port that was free a moment ago may belong to another test now; port 1 belongs to no one.
    if case .refuse = part { return SocketAddress(numeric: host, port: 1).map { "tcp://\($0)" } }
    let listener = try LoopbackListener(host)
    DispatchQueue(label: "far end").async {
      do { try listener.accept().play(part) } catch { Issue.record(error) }
      listener.close()
    }
    return "tcp://\(listener.address)"
  }
}

/// The other side of a pty. A serial line has no half-close; a hang-up means that the device was unplugged.
struct PtyRig: StreamRig {
  func farEnd(_ part: FarPart) throws -> String? {
    let pty = try makePty()
    switch part {
    case .refuse: return "tty:///dev/pts/nobody"
    case .answerAfterTheEnd, .sayAndHangUp: return nil  // Linux may drop sent bytes when a pty's master closes
    case .echo, .changingEcho, .sleepThenCount:
      DispatchQueue(label: "far end").async {
        do { try pty.play(part) } catch { Issue.record(error) }
      }
      return "tty://\(pty.path)"
    }
  }
}

/// A server on a socket in the test's own folder.
struct UnixRig: StreamRig {
  let folder: TemporaryFolder

  func farEnd(_ part: FarPart) throws -> String? {
    let path = folder / "\(UInt32.random(in: 0 ... .max)).sock"
    if case .refuse = part { return "unix://\(path)" }
    let listener = try UnixServer(path)
    part.begin { try listener.accept() }
    return "unix://\(path)"
  }
}

/// A program that opens the pty as soon as its link exists. The stream does not end when it hangs up.
struct ProgramRig: StreamRig {
  let folder: TemporaryFolder

  func farEnd(_ part: FarPart) throws -> String? {
    let path = folder / "modem-\(UInt32.random(in: 0 ... .max))"
    switch part {
    case .refuse: return "pty://\(folder / "nowhere")/modem"
    case .answerAfterTheEnd, .sayAndHangUp: return nil
    case .echo, .changingEcho, .sleepThenCount:
      part.begin { try openTerminal(path) }
      return "pty://\(path)"
    }
  }
}

/// Programs that every system has.
struct ExecRig: StreamRig {
  let folder: TemporaryFolder

  func farEnd(_ part: FarPart) throws -> String? {
    let file = folder / "\(UInt32.random(in: 0 ... .max))"
    switch part {
    case .echo: return "exec:/bin/cat"
    case .changingEcho: return nil
    case .sayAndHangUp(let bytes): return shell("printf %s '\(String(decoding: bytes, as: UTF8.self))'")
    case .answerAfterTheEnd: return shell("cat >\(file); cat \(file)")
    case .sleepThenCount(let mayWake):
      guard mkfifo(file, 0o600) == 0 else { throw SystemError("mkfifo") }
      DispatchQueue(label: "far end").async {
        mayWake.wait()
        let raw = open(file, O_WRONLY | O_CLOEXEC)
        Glibc.close(raw)
      }
      return shell("read line <\(file); cat >/dev/null")
    case .refuse: return "exec:\(file)"
    }
  }
}

/// The URL of a shell that runs `script`.
func shell(_ script: String, _ query: String = "") -> String {
  "exec:/bin/sh?arg=-c&arg=\(escaped(script))\(query)"
}

/// Escapes `text` as the value of a parameter.
func escaped(_ text: String) -> String {
  text.unicodeScalars.map { scalar in
    " #%&?\n\t".unicodeScalars.contains(scalar)
      ? "%" + (scalar.value < 16 ? "0" : "") + String(scalar.value, radix: 16)
      : String(scalar)
  }.joined()
}

/// Opens a terminal, as a program does, as soon as its path exists. Blocks for up to ten seconds.
func openTerminal(_ path: String) throws -> FarEnd {
  for _ in 0..<10_000 {
    let raw = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    if raw >= 0 { return FarEnd(Descriptor(owning: raw), isSocket: false) }
    usleep(1000)
  }
  throw SystemError("open")
}

/// Uses the built-in far ends.
struct SimRig: StreamRig {
  func farEnd(_ part: FarPart) -> String? {
    switch part {
    case .echo, .answerAfterTheEnd: "sim://echo"
    case .changingEcho, .sayAndHangUp, .sleepThenCount, .refuse: nil
    }
  }
}
