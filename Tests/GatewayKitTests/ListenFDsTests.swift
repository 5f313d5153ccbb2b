// The environment variables for inherited sockets (sd_listen_fds(3)), and how invalid values are handled.

import CLinux
import Glibc
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The environment for inherited sockets")
struct ListenFDsTests {
  @Test(
    "is valid for the process it names; its variables are removed, and names are optional", arguments: [true, false])
  func taken(isForUs: Bool) async {
    await #expect(processExitsWith: .success) { [isForUs = isForUs as Bool] in
      // 3 and 4 are replaced in this child process, which does nothing else.
      try #require(dup2(1, 3) == 3 && dup2(1, 4) == 4)
      setenv("LISTEN_PID", "\(isForUs ? getpid() : getppid())", 1)
      setenv("LISTEN_FDS", "2", 1)
      setenv("LISTEN_FDNAMES", "gps", 1)
      let handover = ListenFDs.take()
      let isTold = handover.problem?.hasPrefix("LISTEN_PID is not this process") ?? false
      let wanted = [ListenFDs.Item(raw: 3, name: "gps"), ListenFDs.Item(raw: 4, name: nil)]
      guard isTold == !isForUs, handover.items == (isForUs ? wanted : []) else { _exit(1) }
      for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] where getenv(name) != nil { _exit(2) }
      _exit(0)
    }
  }

  @Test("is reported and ignored if it is invalid", arguments: ["-1", "x", "", "4097", "99999999999"])
  func nonsense(count: String) {
    let handover = ListenFDs(process: "\(getpid())", count: count, names: "a:b")
    #expect(handover.items.isEmpty)
    #expect(handover.problem?.hasPrefix("LISTEN_FDS is not a number from 0 to 4096") == true)
  }

  @Test(
    "is empty without both variables, or with a count of 0",
    arguments: [(nil, "1"), ("1", nil), ("\(getpid())", "0")] as [(String?, String?)])
  func nothing(process: String?, count: String?) {
    let handover = ListenFDs(process: process, count: count, names: nil)
    #expect(handover.items.isEmpty && handover.problem == nil)
  }

  @Test("never includes our own descriptors, nor any that are not open")
  func ours() throws {
    let handover = ListenFDs(process: "\(getpid())", count: "4096", names: nil)
    let ours = try Descriptor.socket(.ipv4)
    let number = ours.raw
    #expect(!handover.items.contains { $0.raw == number })
    #expect(handover.problem?.hasSuffix("of these descriptors are not open") == true)
    _ = consume ours
  }
}
