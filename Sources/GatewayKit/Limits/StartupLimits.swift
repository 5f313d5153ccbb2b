// Checks whether the process's limits are enough to start: `serve`, `connect` and `scan` do this before their first
// thread. Without a free descriptor Dispatch traps, and without a thread it waits for ever: a crash or a hang without a
// message.

import ByteStreams
import CLinux
import Glibc
import StreamBroker

/// Descriptors and threads needed beyond those that the process already has.
package struct StartupLimits: Hashable, Sendable {
  let descriptors: Int
  let threads: Int

  // Each lane has an epoll set, its eventfd and its timerfd.
  private static let perLane = 3
  // Dispatch's own epoll set, eventfd and timerfds, one signalfd for each of three signals, and one endpoint.
  private static let beside = 12
  // The control socket, its spare and one connection to it; files that the gateway reads, such as certificates; one
  // client.
  private static let forGateway = 12
  // Queues beside the lanes: the log, reloads, devices, names, and Dispatch's own two.
  private static let threadsBeside = 8
  /// Bytes that malloc, rings and OpenSSL use before the first client.
  private static let heap = 24 << 20

  init(lanes: Int, listeners: Int) {
    // Each listener also has a spare.
    descriptors = lanes * Self.perLane + Self.beside + (listeners > 0 ? Self.forGateway + listeners * 2 : 0)
    threads = lanes + Self.threadsBeside
  }

  /// For a command that uses one endpoint or adapter.
  package static let oneLane = StartupLimits(lanes: 1, listeners: 0)

  /// For the gateway: its lanes and listeners. Devices and clients are not counted: a limit that is too small for all
  /// of them must not prevent serving some.
  package static func serving(_ config: Config) -> StartupLimits {
    let listeners = config.routes.flatMap(\.listen) + config.admin.listen
    return StartupLimits(lanes: Gateway.laneCount, listeners: Set(listeners.map(\.socketAddress)).count)
  }

  /// Allocates everything, and releases it.
  package func check() throws(StartShortage) {
    try checkDescriptors()
    try checkMemory()
    // Threads come last: a lack of memory for their stacks gives the same error as a lack of threads.
    let error = linux_try_threads(Int32(threads))
    if error != 0 { throw .threads(needed: threads, SystemError("pthread_create", error)) }
  }

  private func checkDescriptors() throws(StartShortage) {
    var taken: [Int32] = []
    defer { for raw in taken { close(raw) } }
    while taken.count < descriptors {
      let raw = eventfd(0, Int32(EFD_CLOEXEC))
      if raw >= 0 {
        taken.append(raw)
        continue
      }
      let error = SystemError("eventfd")
      guard error.errno == EMFILE else { throw .files(error) }
      let limit = ResourceLimit.current(.descriptors) ?? 0
      // All descriptors below the limit are now in use: earlier ones and the `taken` ones.
      throw .descriptors(limit: limit, needed: limit - taken.count + descriptors)
    }
  }

  private func checkMemory() throws(StartShortage) {
    let limit = ResourceLimit.current(.addressSpace)
    let wanted = Self.heap + threads * linux_thread_size()
    let error = linux_try_memory(wanted)
    guard error != 0 else { return }
    guard let limit else { throw .memory(needed: wanted, SystemError("mmap", error)) }
    throw .addressSpace(limit: limit, needed: ResourceLimit.addressSpaceInUse + wanted)
  }
}

/// Which limit is too small, and how much is needed.
package enum StartShortage: Error, Hashable, Sendable, CustomStringConvertible {
  /// The process's limit; `needed` includes the descriptors that it already has.
  case descriptors(limit: Int, needed: Int)
  /// The limit of the whole system.
  case files(SystemError)
  case addressSpace(limit: Int, needed: Int)
  case memory(needed: Int, SystemError)
  case threads(needed: Int, SystemError)

  package var description: String {
    switch self {
    case .descriptors(let limit, let needed):
      "the limit of \(limit) open files is too small to start: \(needed) are needed (ulimit -n, LimitNOFILE= of a unit)"
    case .files(let error): "can't start: the system has no more open files (\(error); fs.file-max of sysctl)"
    case .addressSpace(let limit, let needed):
      "the limit of \(limit >> 10) KiB of address space is too small to start: \((needed + 1023) >> 10) KiB are needed "
        + "(ulimit -v, LimitAS= of a unit)"
    case .memory(let needed, let error):
      "can't start: the system refused \(needed >> 20) MiB of memory (\(error); ulimit -d, "
        + "vm.overcommit_memory of sysctl)"
    case .threads(let needed, let error):
      "can't start: the system refused \(needed) threads (\(error); ulimit -u, TasksMax= of a unit, "
        + "pids.max of a cgroup)"
    }
  }
}

/// Limits from getrlimit(2).
enum ResourceLimit {
  case descriptors, addressSpace

  /// Nil for no limit.
  static func current(_ resource: ResourceLimit) -> Int? {
    let number = resource == .descriptors ? RLIMIT_NOFILE : RLIMIT_AS
    var limit = rlimit()
    guard getrlimit(__rlimit_resource_t(number.rawValue), &limit) == 0, limit.rlim_cur != rlim_t.max else {
      return nil
    }
    return Int(clamping: limit.rlim_cur)
  }

  /// Bytes of all mappings, from /proc/self/statm (proc_pid_statm(5)).
  static var addressSpaceInUse: Int { memory(field: 0) }
  /// Bytes of memory in use, shared pages included.
  static var residentMemory: Int { memory(field: 1) }

  private static func memory(field: Int) -> Int {
    let text = (try? FileBytes.read("/proc/self/statm", limit: 4096)).map { String(decoding: $0, as: UTF8.self) } ?? ""
    let pages = text.split(separator: " ").dropFirst(field).first.flatMap { Int($0) }
    return (pages ?? 0) * Int(sysconf(Int32(_SC_PAGESIZE)))
  }
}

extension Config.Listen {
  /// Equal for listeners that share one socket: routes that share a port bind it once.
  fileprivate var socketAddress: String {
    port == 0 || !traits.canSharePort ? url.description : "\(host ?? "*"):\(port)"
  }
}
