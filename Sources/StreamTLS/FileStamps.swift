// Whether files are still the ones that were read.

import Glibc

/// What files looked like. Taken before they are read, so that a change in between is seen.
public struct TLSFileStamps: Hashable, Sendable {
  private struct Stamp: Hashable {
    let device: UInt64
    let inode: UInt64
    let size: Int
    let seconds: Int
    let nanoseconds: Int
  }
  private let stamps: [Stamp?]

  /// Looks at them, through links. Blocks.
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
