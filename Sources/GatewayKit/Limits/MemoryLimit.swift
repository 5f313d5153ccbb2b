// How much memory the process may use: the smallest limit of its cgroup and each parent (cgroups(7),
// proc_pid_mountinfo(5)), and of the machine. The parsers are pure functions of the files' text.

import ByteStreams
import Glibc

enum MemoryLimit {
  /// The smallest limit, in bytes. Blocks: it reads files under /proc and /sys.
  static func current() -> Int {
    let cgroup = text("/proc/self/cgroup")
    let mounts = text("/proc/self/mountinfo")
    let files = MemoryLimitFiles.paths(cgroup: cgroup, mountinfo: mounts)
    let machine = Int(clamping: sysconf(Int32(_SC_PHYS_PAGES))) * Int(clamping: sysconf(Int32(_SC_PAGESIZE)))
    return files.compactMap { bytes(in: text($0)) }.reduce(machine, min)
  }

  /// The bytes in a limit's file; nil for no limit. cgroup v1 writes a number just below 2^63 for that.
  static func bytes(in text: String) -> Int? {
    guard let number = Int(text.split(whereSeparator: \.isWhitespace).first ?? ""), number >= 0, number < 1 << 60 else {
      return nil  // "max"
    }
    return number
  }

  private static func text(_ path: String) -> String {
    // A machine with many containers has thousands of mounts, of some hundred bytes each.
    (try? FileBytes.read(path, limit: 4 << 20)).map { String(decoding: $0, as: UTF8.self) } ?? ""
  }
}

/// Finds the files that limit the memory of a process.
enum MemoryLimitFiles {
  /// The file of the process's own cgroup first, then of each visible parent: `memory.max` for v2,
  /// `memory.limit_in_bytes` for v1. On a hybrid machine only one of the two has the controller; the reader skips
  /// missing files.
  static func paths(cgroup: String, mountinfo: String) -> [String] {
    let groups = parts(of: cgroup[...], at: "\n").compactMap(Group.init)
    let mounts = parts(of: mountinfo[...], at: "\n").compactMap(Mount.init)
    var paths: [String] = []
    for group in groups {
      guard let file = group.isUnified ? "memory.max" : group.hasMemory ? "memory.limit_in_bytes" : nil else {
        continue
      }
      for mount in mounts where group.isUnified ? mount.kind == "cgroup2" : mount.hasMemory {
        paths += folders(of: group.path, in: mount).map { "\($0)/\(file)" }
      }
    }
    return paths
  }

  /// By bytes: by Characters it would be a tenth of the start's work.
  private static func parts(of text: Substring, at separator: Unicode.Scalar) -> [Substring] {
    text.utf8.split(separator: UInt8(ascii: separator)).map(Substring.init)
  }

  /// The folders of the cgroup and its parents, up to the mount point.
  private static func folders(of path: String, in mount: Mount) -> [String] {
    // A mount can begin below the root of the hierarchy, as in a container without its own cgroup namespace. If the
    // cgroup is not below the mount (its path then contains "/.."), the mount's root is the nearest folder.
    let names = relative(path, to: mount.root) ?? []
    let base = mount.point == "/" ? "" : mount.point
    return (0...names.count).reversed().map { count in ([base] + names.prefix(count)).joined(separator: "/") }
  }

  private static func relative(_ path: String, to root: String) -> [String]? {
    let names = path.split(separator: "/").map(String.init)
    let above = root.split(separator: "/").map(String.init)
    guard !names.contains(".."), names.starts(with: above) else { return nil }
    return Array(names.dropFirst(above.count))
  }

  /// A line of /proc/PID/cgroup: "0::/system.slice/baudway.service", "4:memory:/docker/1f2e".
  private struct Group {
    let isUnified: Bool
    let hasMemory: Bool
    let path: String

    init?(_ line: Substring) {
      let parts = line.split(separator: ":", maxSplits: 2, omittingEmptySubsequences: false)
      guard parts.count == 3 else { return nil }
      isUnified = parts[0] == "0" && parts[1].isEmpty
      hasMemory = parts[1].split(separator: ",").contains("memory")
      // The kernel adds " (deleted)" if the cgroup was removed while the process was in it.
      path = String(parts[2].hasSuffix(" (deleted)") ? parts[2].dropLast(10) : parts[2])
    }
  }

  /// A line of /proc/PID/mountinfo: "36 25 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory".
  private struct Mount {
    let root: String
    let point: String
    let kind: Substring
    let hasMemory: Bool

    init?(_ line: Substring) {
      let fields = MemoryLimitFiles.parts(of: line, at: " ")
      guard let dash = fields.firstIndex(of: "-"), dash >= 6, fields.count > dash + 1 else { return nil }
      kind = fields[dash + 1]
      guard kind == "cgroup" || kind == "cgroup2" else { return nil }
      hasMemory = kind == "cgroup" && (fields.last?.split(separator: ",").contains("memory") ?? false)
      root = Self.unescaped(fields[3])
      point = Self.unescaped(fields[4])
    }

    /// Decodes spaces and similar characters, which are written as a backslash and three octal digits.
    private static func unescaped(_ field: Substring) -> String {
      var bytes: [UInt8] = []
      var rest = Array(field.utf8)[...]
      while let byte = rest.popFirst() {
        let digits = String(decoding: rest.prefix(3), as: UTF8.self)
        if byte == UInt8(ascii: "\\"), rest.count >= 3, let code = UInt8(digits, radix: 8) {
          bytes.append(code)
          rest = rest.dropFirst(3)
        } else {
          bytes.append(byte)
        }
      }
      return String(decoding: bytes, as: UTF8.self)
    }
  }
}
