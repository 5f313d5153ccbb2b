// A test's own folder, removed with its content when the value is released.

import ByteStreams
import Glibc

public final class TemporaryFolder: Sendable {
  public let path: String

  public init() throws(SystemError) {
    var template = Array("/tmp/baudway-test-XXXXXX".utf8CString)
    guard let made = template.withUnsafeMutableBufferPointer({ mkdtemp($0.baseAddress!) }) else {
      throw SystemError("mkdtemp")
    }
    path = String(cString: made)
  }

  deinit { Self.removeAll(path) }

  /// Follows no links.
  private static func removeAll(_ path: String) {
    guard unlink(path) != 0, let folder = opendir(path) else { return }
    while let entry = readdir(folder) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      if name != ".", name != ".." { removeAll("\(path)/\(name)") }
    }
    closedir(folder)
    rmdir(path)
  }

  /// The path of `name` in it.
  public static func / (folder: TemporaryFolder, name: String) -> String { "\(folder.path)/\(name)" }

  /// Makes a file with this content, and its parent folders.
  public func write(_ name: String, _ text: String) throws(SystemError) {
    var folder = path
    for part in name.split(separator: "/").dropLast() {
      folder += "/\(part)"
      guard mkdir(folder, 0o700) == 0 || errno == EEXIST else { throw SystemError("mkdir") }
    }
    let raw = open("\(path)/\(name)", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
    guard raw >= 0 else { throw SystemError("open") }
    let file = Descriptor(owning: raw)
    let bytes = Array(text.utf8)
    guard Glibc.write(file.raw, bytes, bytes.count) == bytes.count else { throw SystemError("write") }
  }
}

/// Sets the modification time of a link, without following it.
public func setTime(of link: String, _ seconds: time_t) {
  let times = [timespec(tv_sec: seconds, tv_nsec: 0), timespec(tv_sec: seconds, tv_nsec: 0)]
  let result = utimensat(AT_FDCWD, link, times, AT_SYMLINK_NOFOLLOW)
  precondition(result == 0)
}
