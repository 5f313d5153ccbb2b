// Whether the process's limits are enough to start: `serve`, `connect` and `scan` check that before their first thread. Without a
// descriptor Dispatch traps, and without a thread it waits for one without end; both would be a crash or a hang without a word.

import ByteStreams
import CLinux
import Glibc
import StreamBroker

/// Descriptors and threads beyond those that the process has already.
public struct StartNeeds: Hashable, Sendable {
  let descriptors: Int
  let threads: Int

  // A lane: an epoll set, its eventfd, its timerfd.
  private static let perLane = 3
  // Dispatch's own epoll set, eventfd and timerfds, a signalfd each for three signals, an endpoint.
  private static let beside = 12
  // The control socket with a spare and a conversation; files that are read, such as certificates; a client.
  private static let forGateway = 12
  // Queues beside the lanes: the log, reloads, devices, names, and Dispatch's own two.
  private static let threadsBeside = 8
  /// What malloc, rings and OpenSSL take before the first client.
  private static let heap = 24 << 20

  init(lanes: Int, listeners: Int) {
    // Each listener has a spare besides.
    descriptors = lanes * Self.perLane + Self.beside + (listeners > 0 ? Self.forGateway + listeners * 2 : 0)
    threads = lanes + Self.threadsBeside
  }

  /// Of a command that speaks to one endpoint or adapter.
  public static let oneLane = StartNeeds(lanes: 1, listeners: 0)

  /// Of the gateway: its lanes and its listeners. Devices and clients come later, and a limit that is too small for all of them is
  /// no reason to serve nobody.
  public static func serving(_ config: Config) -> StartNeeds {
    StartNeeds(lanes: Gateway.laneCount, listeners: Set(config.routes.flatMap(\.listen).map(\.bindingPlace)).count)
  }

  /// Tries all of it, and gives it back.
  public func check() throws(StartShortage) {
    try checkDescriptors()
    try checkMemory()
    // Last: memory for a stack that is not there is the same error.
    let error = linux_try_threads(Int32(threads))
    if error != 0 { throw .threads(needed: threads, SystemError("pthread_create", error)) }
  }

  private func checkDescriptors() throws(StartShortage) {
    var taken: [Int32] = []
    defer { for raw in taken { close(raw) } }
    while taken.count < descriptors {
      let raw = open("/dev/null", O_RDONLY | O_CLOEXEC)
      if raw >= 0 {
        taken.append(raw)
        continue
      }
      let error = SystemError("open")
      guard error.errno == EMFILE else { throw .files(error) }
      let limit = ResourceLimit.current(.descriptors) ?? 0
      // All below the limit are in use now: those of before, and those that were tried.
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
public enum StartShortage: Error, Hashable, Sendable, CustomStringConvertible {
  /// Of the process, counted with those it has.
  case descriptors(limit: Int, needed: Int)
  /// Of the whole system.
  case files(SystemError)
  case addressSpace(limit: Int, needed: Int)
  case memory(needed: Int, SystemError)
  case threads(needed: Int, SystemError)

  public var description: String {
    switch self {
    case .descriptors(let limit, let needed):
      "the limit of \(limit) open files is too small to start: \(needed) are needed (ulimit -n, LimitNOFILE= of a unit)"
    case .files(let error): "can't start: the system has no more open files (\(error); fs.file-max of sysctl)"
    case .addressSpace(let limit, let needed):
      "the limit of \(limit >> 10) KiB of address space is too small to start: \((needed + 1023) >> 10) KiB are needed "
        + "(ulimit -v, LimitAS= of a unit)"
    case .memory(let needed, let error):
      "can't start: the system does not give the \(needed >> 20) MiB of memory that are needed (\(error); ulimit -d, "
        + "vm.overcommit_memory of sysctl)"
    case .threads(let needed, let error):
      "can't start: the system does not give the \(needed) threads that are needed (\(error); ulimit -u, TasksMax= of a unit, "
        + "pids.max of a cgroup)"
    }
  }
}

/// What getrlimit(2) says.
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

  /// Bytes of all mappings (statm of proc_pid_statm(5)).
  static var addressSpaceInUse: Int {
    let pages = (try? FileBytes.read("/proc/self/statm", limit: 4096)).flatMap { bytes in
      Int(String(decoding: bytes.prefix { $0 != UInt8(ascii: " ") }, as: UTF8.self))
    }
    return (pages ?? 0) * Int(sysconf(Int32(_SC_PAGESIZE)))
  }
}

extension Config.Listen {
  /// What it takes an address for: routes that share a port bind it once.
  fileprivate var bindingPlace: String {
    port == 0 || !(usesTLS || usesWebSocket) ? url.description : "\(host ?? "*"):\(port)"
  }
}
