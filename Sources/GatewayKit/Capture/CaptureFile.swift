// One file of a recording: made under a new name, with mode 0600, and cut back to whole events if a write fails. All calls
// may block.

import ByteStreams
import Glibc

struct CaptureFile: ~Copyable {
  let path: String
  private let descriptor: Descriptor
  /// Bytes written, all of them whole events.
  private(set) var length = 0

  /// The file itself. Its folder is read before it is opened, and again before its reservation ends.
  static let descriptorsNeeded = 1
  private static let mode: mode_t = 0o600
  private static let folderMode: mode_t = 0o700
  private static let mostTries = 100

  /// Makes the next file, and the folders above it that are missing.
  init(_ name: CaptureName, at time: UInt64) throws(SystemError) {
    try Self.makeFolders(name.folder)
    var mark = name.next(at: time, after: Self.names(in: name.folder))
    var failure = SystemError("open", EEXIST)
    for _ in 0..<Self.mostTries {
      let path = name.folder + name.name(mark)
      let raw = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, Self.mode)
      guard raw < 0 else {
        self.path = path
        descriptor = Descriptor(owning: raw)
        return
      }
      failure = SystemError("open")
      guard failure.errno == EEXIST else { break }
      mark.number += 1
    }
    throw failure
  }

  private static func makeFolders(_ folder: String) throws(SystemError) {
    if access(folder, F_OK) == 0 { return }
    var path = ""
    for name in folder.split(separator: "/") {
      path += "/\(name)"
      guard mkdir(path, folderMode) != 0 else { continue }
      let failure = SystemError("mkdir")
      if access(path, F_OK) != 0 { throw failure }
    }
  }

  private static func names(in folder: String) -> [String] {
    guard let stream = opendir(folder) else { return [] }
    defer { closedir(stream) }
    var names: [String] = []
    while let entry = readdir(stream) {
      withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { names.append(String(cString: $0)) }
      }
    }
    return names
  }

  /// Writes whole events, which end at these places. After a failure the file has those that fit, and `length` tells how
  /// far it got.
  mutating func write(_ bytes: [UInt8], ends: some BidirectionalCollection<Int>) throws(SystemError) {
    var written = 0
    while written < bytes.count {
      let count = bytes.withUnsafeBytes { Glibc.write(descriptor.raw, $0.baseAddress! + written, $0.count - written) }
      if count < 0, errno == EINTR { continue }
      guard count > 0 else {
        let failure = count < 0 ? SystemError("write") : SystemError("write", ENOSPC)
        length += ends.last { $0 <= written } ?? 0
        _ = ftruncate(descriptor.raw, off_t(length))
        throw failure
      }
      written += count
    }
    length += bytes.count
  }

  /// Removes the oldest files of this recording, except `keep` and the one at `current`, which a clock that was set back
  /// makes the oldest. A file that a crash has left empty takes no other's place.
  static func prune(_ name: CaptureName, keep: Int, besides current: String) {
    let old = names(in: name.folder).compactMap { file in name.mark(of: file).map { (mark: $0, file: file) } }
      .filter { name.folder + $0.file != current }
    var kept = 0
    for (_, file) in old.sorted(by: { $0.mark > $1.mark }) {
      var facts = stat()
      let path = name.folder + file
      guard lstat(path, &facts) == 0, facts.st_mode & S_IFMT == S_IFREG else { continue }
      if facts.st_size == 0 || kept == keep { unlink(path) } else { kept += 1 }
    }
  }
}
