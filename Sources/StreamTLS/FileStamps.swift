// Detects whether files have changed since they were read.

import Glibc

/// The identity, size and time of files. Taken before they are read, so that a change in between is detected.
package struct TLSFileStamps: Hashable, Sendable {
  private struct Stamp: Hashable {
    let device: UInt64
    let inode: UInt64
    let size: Int
    let seconds: Int
    let nanoseconds: Int
  }
  private let stamps: [Stamp?]

  /// Follows symbolic links. Blocks.
  init(of files: [String]) {
    stamps = files.map { file in
      var status = stat()
      guard stat(file, &status) == 0 else { return nil }
      return Stamp(
        device: UInt64(status.st_dev), inode: UInt64(status.st_ino), size: Int(status.st_size),
        seconds: status.st_mtim.tv_sec, nanoseconds: status.st_mtim.tv_nsec)
    }
  }
}
