// Small queries to the file system. All of them may block: for queues, never for a lane.

import ByteStreams
import Glibc

enum FileSystem {
  /// The names in a folder, unordered, without those that begin with a dot; empty if it can't be read.
  static func names(in path: String) -> [String] {
    guard let folder = opendir(path) else { return [] }
    defer { closedir(folder) }
    var names: [String] = []
    while let entry = readdir(folder) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      if !name.hasPrefix(".") { names.append(name) }
    }
    return names
  }

  /// The target of a symbolic link, as stored in it; nil if `link` is not one.
  static func target(of link: String) -> String? {
    withUnsafeTemporaryAllocation(of: CChar.self, capacity: Int(PATH_MAX)) { buffer in
      let count = readlink(link, buffer.baseAddress!, buffer.count - 1)
      guard count > 0 else { return nil }
      buffer[count] = 0
      return String(cString: buffer.baseAddress!)
    }
  }

  /// The path without symbolic links; nil if it does not exist.
  static func realPath(_ path: String) -> String? {
    guard let resolved = realpath(path, nil) else { return nil }
    defer { free(resolved) }
    return String(cString: resolved)
  }

  /// The first bytes of a small file, 512 at most; nil if it can't be read.
  static func beginning(of path: String) -> [UInt8]? {
    // Non-blocking: another user may have put a pipe there.
    let raw = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
    return raw < 0 ? nil : beginning(of: Descriptor(owning: raw))
  }

  static func beginning(of file: consuming Descriptor) -> [UInt8]? {
    var bytes = [UInt8](repeating: 0, count: 512)
    let count = read(file.raw, &bytes, bytes.count)
    return count < 0 ? nil : Array(bytes[..<count])
  }

  /// The whole text of a file in /proc, whose size is not known in advance; nil if it can't be read or is over 1 MiB.
  static func text(of path: String) -> String? {
    let raw = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY)
    guard raw >= 0 else { return nil }
    let file = Descriptor(owning: raw)
    var bytes: [UInt8] = []
    var piece = [UInt8](repeating: 0, count: 16384)
    while bytes.count < 1 << 20 {
      let count = read(file.raw, &piece, piece.count)
      if count == 0 { return String(decoding: bytes, as: UTF8.self) }
      guard count > 0 else { return nil }
      bytes += piece[..<count]
    }
    return nil
  }

  /// The first line of a small file, mostly in sysfs or procfs; nil if it can't be read or the line is empty.
  static func line(of path: String) -> String? {
    guard let line = beginning(of: path)?.prefix(while: { $0 != UInt8(ascii: "\n") }), !line.isEmpty else { return nil }
    return String(decoding: line, as: UTF8.self)
  }

  /// "ttyUSB0" of "/dev/ttyUSB0".
  static func lastName(of path: String) -> Substring { path.split(separator: "/").last ?? "" }
}
