// Examples of /proc/self/cgroup and /proc/self/mountinfo from machines and containers.

import Synchronization
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("The files that limit memory")
struct MemoryLimitTests {
  @Test("are those of the unit and its slices, on a machine with v2 (Debian 12)")
  func unified() {
    let mounts = """
      24 30 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc rw
      33 23 0:29 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
      """
    #expect(
      MemoryLimitFiles.paths(cgroup: "0::/system.slice/baudway.service\n", mountinfo: mounts) == [
        "/sys/fs/cgroup/system.slice/baudway.service/memory.max", "/sys/fs/cgroup/system.slice/memory.max",
        "/sys/fs/cgroup/memory.max",
      ])
  }

  @Test("are in the visible root, in a container with a cgroup namespace")
  func namespace() {
    let mounts = "1204 1203 0:29 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n"
    #expect(MemoryLimitFiles.paths(cgroup: "0::/\n", mountinfo: mounts) == ["/sys/fs/cgroup/memory.max"])
    // A process moved out of the namespace's root, and a mount of a parent namespace.
    #expect(MemoryLimitFiles.paths(cgroup: "0::/../other\n", mountinfo: mounts) == ["/sys/fs/cgroup/memory.max"])
    let outer = "1204 1203 0:29 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    #expect(MemoryLimitFiles.paths(cgroup: "0::/\n", mountinfo: outer) == ["/sys/fs/cgroup/memory.max"])
  }

  @Test("are only those of v1's memory controller, on a machine with v1 (Debian 10)")
  func legacy() {
    let cgroup = """
      12:pids:/user.slice/user-0.slice
      9:cpu,cpuacct:/
      4:memory:/user.slice/user-0.slice/session-1.scope
      1:name=systemd:/user.slice/user-0.slice/session-1.scope
      """
    let mounts = """
      33 25 0:28 / /sys/fs/cgroup/systemd rw,nosuid,nodev,noexec,relatime shared:11 - cgroup cgroup rw,xattr,name=systemd
      38 25 0:33 / /sys/fs/cgroup/memory rw,nosuid,nodev,noexec,relatime shared:16 - cgroup cgroup rw,memory
      39 25 0:34 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:17 - cgroup cgroup rw,cpu,cpuacct
      """
    #expect(
      MemoryLimitFiles.paths(cgroup: cgroup, mountinfo: mounts) == [
        "/sys/fs/cgroup/memory/user.slice/user-0.slice/session-1.scope/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/user.slice/user-0.slice/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/user.slice/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
      ])
  }

  @Test("are both on a hybrid machine; the hierarchy without the controller has no such file")
  func hybrid() {
    let cgroup = "10:memory:/lab\n1:name=systemd:/lab\n0::/lab\n"
    let mounts = """
      29 28 0:25 / /sys/fs/cgroup/unified rw,relatime shared:8 - cgroup2 cgroup2 rw
      31 28 0:27 / /sys/fs/cgroup/memory rw,relatime shared:10 - cgroup cgroup rw,memory
      """
    #expect(
      MemoryLimitFiles.paths(cgroup: cgroup, mountinfo: mounts) == [
        "/sys/fs/cgroup/memory/lab/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/unified/lab/memory.max", "/sys/fs/cgroup/unified/memory.max",
      ])
  }

  @Test("are the container's own if its cgroup is mounted as the root (docker with v1)")
  func boundMount() {
    let cgroup = "4:memory:/docker/1f2e3d\n"
    let mounts =
      "812 805 0:33 /docker/1f2e3d /sys/fs/cgroup/memory ro,nosuid,nodev,noexec,relatime master:16 - cgroup cgroup rw,memory\n"
    #expect(
      MemoryLimitFiles.paths(cgroup: cgroup, mountinfo: mounts) == ["/sys/fs/cgroup/memory/memory.limit_in_bytes"])
    #expect(
      MemoryLimitFiles.paths(cgroup: "4:memory:/docker/1f2e3d/inner\n", mountinfo: mounts) == [
        "/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
      ])
    // "/docker/1f2e3d4" is not below "/docker/1f2e3d".
    #expect(
      MemoryLimitFiles.paths(cgroup: "4:memory:/docker/1f2e3d4\n", mountinfo: mounts) == [
        "/sys/fs/cgroup/memory/memory.limit_in_bytes"
      ])
  }

  @Test("are found at unusual mount points, and in a removed cgroup")
  func odd() {
    let mounts = "33 23 0:29 / /mnt/c\\040g rw - cgroup2 none rw\n"
    #expect(
      MemoryLimitFiles.paths(cgroup: "0::/a b (deleted)\n", mountinfo: mounts) == [
        "/mnt/c g/a b/memory.max", "/mnt/c g/memory.max",
      ])
  }

  @Test(
    "are none without cgroups, or with invalid text",
    arguments: ["", "0::/\n", "x\n::\n0:\n", "4:memory:/a\n"])
  func none(cgroup: String) {
    #expect(MemoryLimitFiles.paths(cgroup: cgroup, mountinfo: "") == [])
    #expect(MemoryLimitFiles.paths(cgroup: cgroup, mountinfo: "1 2 3\n\n- - - - - - -\n36 25 0:30 / /x rw -\n") == [])
  }

  @Test(
    "contain a number of bytes, or no limit",
    arguments: [
      ("max\n", nil), ("125829120\n", 125_829_120), ("0\n", 0), ("9223372036854771712\n", nil), ("", nil),
      ("-1\n", nil),
      ("18446744073709551615\n", nil),
    ] as [(String, Int?)])
  func values(text: String, bytes: Int?) { #expect(MemoryLimit.bytes(in: text) == bytes) }

  @Test("of this machine are read without a fault")
  func here() { #expect(MemoryLimit.current() > 1 << 20) }
}

@Suite("The limit of unfinished handshakes")
struct HandshakeBoundTests {
  private func config(_ listen: String, limits: String = "") throws -> Config {
    try ConfigFile.read(
      Array("\(limits)\nroutes: { x: { listen: '\(listen)', endpoint: 'exec:/bin/cat' } }\n".utf8))
  }

  @Test("is half of the free descriptors or a quarter of the memory, whichever allows fewer")
  func auto() throws {
    let config = try config("ws://127.0.0.1:0")
    let few = HandshakeLimit(config, ProcessLimits(descriptors: 300, memory: 64 << 30))
    #expect((80...140).contains(few.most))
    let little = HandshakeLimit(config, ProcessLimits(descriptors: 1 << 20, memory: 120 << 20))
    #expect(little.most == (30 << 20) / little.bytesEach && little.memory <= 30 << 20)
    let bothSmall = HandshakeLimit(config, ProcessLimits(descriptors: 40, memory: 1 << 20))
    #expect(bothSmall.most == 8)
    let addresses = ProcessLimits(descriptors: 1 << 20, memory: 64 << 30, addressSpace: 40 << 20)
    #expect(HandshakeLimit(config, addresses).most == (20 << 20) / little.bytesEach)
    #expect(HandshakeLimit(config, ProcessLimits(descriptors: .max, memory: .max)).most == 1_000_000)
  }

  @Test("leaves the descriptors of recordings to them")
  func recordings() throws {
    let most = try ["off", "{ file: '{route}.raw' }"].map { capture in
      let routes = ["x", "y"].map {
        "\($0): { listen: 'ws://127.0.0.1:0/\($0)', endpoint: 'sim://echo', capture: \(capture) }"
      }
      let config = try ConfigFile.read(Array("routes: { \(routes.joined(separator: ", ")) }\n".utf8))
      return HandshakeLimit(config, ProcessLimits(descriptors: 300, memory: 64 << 30)).most
    }
    #expect(most[1] == most[0] - 1, "half of two")
  }

  @Test("is the configured number, if there is one")
  func given() throws {
    let config = try config("ws://127.0.0.1:0", limits: "limits: { handshakes: 17 }")
    #expect(HandshakeLimit(config, ProcessLimits(descriptors: 300, memory: 1 << 30)).most == 17)
  }
}

@Suite("A budget of descriptors")
struct DescriptorBudgetTests {
  @Test("admits one more client as long as the reserve is left, and follows reservations")
  func admits() {
    let budget = DescriptorBudget(limit: 100, standing: 10)
    #expect(budget.admits(89) && !budget.admits(90))
    var device: DescriptorReservation? = budget.reserve(5)
    #expect(budget.admits(84) && !budget.admits(85))
    withExtendedLifetime(device) {}
    device = nil
    #expect(budget.admits(89))
  }

  @Test("admits every client while it is switched off")
  func off() {
    let budget = DescriptorBudget(limit: 100, standing: 10)
    budget.set(isOn: false)
    #expect(budget.admits(99))
    budget.set(isOn: true)
    #expect(budget.admits(89) && !budget.admits(90))
  }
}

@Suite("A plan for the heap")
struct HeapPlanTests {
  @Test("does nothing for few departures, and trims after a wave of them")
  func wave() {
    var plan = HeapTrimming()
    #expect([63, 64, 6000].map { plan.haveLeft($0) } == [false, true, false])
    #expect(plan.look() == .again)
    #expect(plan.haveLeft(10_000) == false)
    #expect(plan.look() == .again)
    #expect(plan.haveLeft(10_200) == false)
    #expect(plan.look() == .trim)
    #expect([10_263, 10_264].map { plan.haveLeft($0) } == [false, true])
    #expect(plan.look() == .trim)
  }

  @Test("trims from time to time while clients come and go without end")
  func steady() {
    var plan = HeapTrimming()
    #expect(plan.haveLeft(1000) == true)
    var looks = 1
    var gone: UInt64 = 2000
    _ = plan.haveLeft(gone)
    while plan.look() == .again {
      looks += 1
      gone += 1000
      _ = plan.haveLeft(gone)
    }
    #expect((10...40).contains(looks))
  }

  @Test("counts the two-millionth departure as fast as the first", .timed)
  func millions() {
    let departures = Departures()
    let received = Atomic<UInt64>(0)
    departures.whenMany { received.store($0, ordering: .relaxed) }
    let label = AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:1")
    let event = StatusEvent.sessionEnded(route: "gps", number: 1, label, SessionReport(ending: Ending(.clientLeft)))
    func report(of count: Int) -> Duration {
      ContinuousClock().measure { for _ in 0..<count { departures.observe(event) } }
    }
    let first = report(of: 64_000)
    _ = report(of: 1_872_000)
    let last = report(of: 64_000)
    #expect(received.load(ordering: .relaxed) == 2_000_000)
    #expect(last < first * 10, "\(first) for the first, \(last) for the last")
  }
}
