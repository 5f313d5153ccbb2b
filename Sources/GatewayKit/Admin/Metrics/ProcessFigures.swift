// What the system knows about this process, under the names that Prometheus' own libraries use.

import Glibc

struct ProcessFigures: Sendable {
  /// Bytes.
  var memory = 0
  var addressSpace = 0
  var descriptors = 0
  /// Nil for no limit.
  var mostDescriptors: Int?
  var processorSeconds = 0.0
  /// Seconds since 1970.
  var startTime = 0.0

  init() {}

  /// Blocks: it reads files under /proc. `age` is the time since the start, in nanoseconds.
  init(age: UInt64) {
    memory = ResourceLimit.residentMemory
    addressSpace = ResourceLimit.addressSpaceInUse
    mostDescriptors = ResourceLimit.current(.descriptors)
    if let folder = opendir("/proc/self/fd") {
      while readdir(folder) != nil { descriptors += 1 }
      closedir(folder)
      descriptors = max(0, descriptors - 3)  // "." and "..", and the folder itself
    }
    var usage = rusage()
    if getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &usage) == 0 {
      processorSeconds = Self.seconds(usage.ru_utime) + Self.seconds(usage.ru_stime)
    }
    var now = timespec()
    clock_gettime(CLOCK_REALTIME, &now)
    startTime = Double(now.tv_sec) - (Double(age) / 1e9).rounded()
  }

  private static func seconds(_ time: timeval) -> Double { Double(time.tv_sec) + Double(time.tv_usec) / 1e6 }
}
