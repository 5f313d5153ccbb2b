// What a starter's environment says of the sockets it hands over, and what becomes of it when that makes no sense.

import CLinux
import Glibc
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("What the environment says of inherited sockets")
struct HandoverTests {
  @Test("is for the process it names; the variables are gone then, and names are optional", arguments: [true, false])
  func taken(isForUs: Bool) async {
    await #expect(processExitsWith: .success) { [isForUs = isForUs as Bool] in
      // 3 and 4 are somebody else's here, and nothing else happens in this process.
      try #require(dup2(1, 3) == 3 && dup2(1, 4) == 4)
      setenv("LISTEN_PID", "\(isForUs ? getpid() : getppid())", 1)
      setenv("LISTEN_FDS", "2", 1)
      setenv("LISTEN_FDNAMES", "gps", 1)
      let handover = Handover.take()
      let isTold = handover.problem?.hasPrefix("LISTEN_PID is not this process") ?? false
      let wanted = [Handover.Item(raw: 3, name: "gps"), Handover.Item(raw: 4, name: nil)]
      guard isTold == !isForUs, handover.items == (isForUs ? wanted : []) else { _exit(1) }
      for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] where getenv(name) != nil { _exit(2) }
      _exit(0)
    }
  }

  @Test("is told of and left alone where it makes no sense", arguments: ["-1", "x", "", "4097", "99999999999"])
  func nonsense(count: String) {
    let handover = Handover(process: "\(getpid())", count: count, names: "a:b")
    #expect(handover.items.isEmpty)
    #expect(handover.problem?.hasPrefix("LISTEN_FDS is no number from 0 to 4096") == true)
  }

  @Test(
    "is nothing without both variables, or for none",
    arguments: [(nil, "1"), ("1", nil), ("\(getpid())", "0")] as [(String?, String?)])
  func nothing(process: String?, count: String?) {
    let handover = Handover(process: process, count: count, names: nil)
    #expect(handover.items.isEmpty && handover.problem == nil)
  }

  @Test("never reaches descriptors of our own, nor such as are not open")
  func ours() throws {
    let handover = Handover(process: "\(getpid())", count: "4096", names: nil)
    let ours = try Descriptor.socket(.ipv4)
    let number = ours.raw
    #expect(!handover.items.contains { $0.raw == number })
    #expect(handover.problem?.hasSuffix("of these descriptors are not open") == true)
    _ = consume ours
  }
}
