// Removes and replaces names in folders that other users may write to. Such a user can rename anything over a name
// between our check and our call. So the file is first moved into a folder that only we can access, checked there, and
// put back if it is the wrong one. Everything here may block: for a queue, never for a lane.

import ByteStreams
import CLinux
import Glibc

package enum SharedFolder {
  /// A name in an open folder. `AT_FDCWD` is the working directory; with it, `name` may be a path.
  package struct Name {
    package let folder: Int32
    package let name: String

    /// The status of the file with this name; links are not followed. Nil if there is none, or it can't be checked.
    package var status: stat? {
      var status = stat()
      return fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0 ? status : nil
    }

    /// Whether this process's user created it. Other users may put anything into a folder that they can write to; a
    /// gateway that runs as root does not touch that.
    package var isOurs: Bool { status?.st_uid == geteuid() }

    /// The target of the link, as stored in it. Nil if it is not a symbolic link.
    package var target: String? {
      withUnsafeTemporaryAllocation(of: CChar.self, capacity: Int(PATH_MAX)) { buffer in
        let count = readlinkat(folder, name, buffer.baseAddress!, buffer.count - 1)
        guard count > 0 else { return nil }
        buffer[count] = 0
        return String(cString: buffer.baseAddress!)
      }
    }

    /// The first bytes of a small file, 512 at most. Nil if it can't be read or is a symbolic link: another user could
    /// point a link at a device that reacts to being opened.
    var beginning: [UInt8]? {
      // Non-blocking: another user may have put a pipe there.
      let raw = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
      return raw < 0 ? nil : FileSystem.beginning(of: Descriptor(owning: raw))
    }

    package init(_ path: String) { self.init(in: AT_FDCWD, path) }

    fileprivate init(in folder: Int32, _ name: String) {
      self.folder = folder
      self.name = name
    }
  }

  /// Removes `path` if `isMeant` accepts the file with this name. Otherwise returns false, and removes nothing.
  @discardableResult
  package static func remove(_ path: String, if isMeant: (Name) -> Bool) throws(SystemError) -> Bool {
    let name = Name(path)
    guard isMeant(name) else { return false }
    let aside = try PrivateFolder(beside: path)
    guard linux_rename_new(name.folder, name.name, aside.content.folder, aside.content.name) == 0 else {
      let error = SystemError("rename")
      if error.errno == ENOENT { return false }
      throw error
    }
    return try aside.remove(if: isMeant, returningTo: name)
  }

  /// Replaces `path` by a symbolic link to `target` in one step, if `isMeant` accepts the file with this name.
  /// Otherwise returns false, and changes nothing.
  package static func replace(
    _ path: String, byLinkTo target: String, if isMeant: (Name) -> Bool
  ) throws(SystemError) -> Bool {
    let name = Name(path)
    guard isMeant(name) else { return false }
    let aside = try PrivateFolder(beside: path)
    let content = aside.content
    guard symlinkat(target, content.folder, content.name) == 0 else { throw SystemError("symlink") }
    guard linux_exchange(content.folder, content.name, name.folder, name.name) == 0 else {
      let error = SystemError("rename")
      unlinkat(content.folder, content.name, 0)
      // The file is gone, or the file system can't exchange names: then the name is free for a moment.
      if error.errno == EINVAL || error.errno == ENOSYS { _ = try remove(path, if: isMeant) }
      guard [ENOENT, EINVAL, ENOSYS].contains(error.errno) else { throw error }
      return symlink(target, path) == 0
    }
    if isMeant(content) {
      unlinkat(content.folder, content.name, 0)
      return true
    }
    _ = linux_exchange(content.folder, content.name, name.folder, name.name)
    if content.target == target { unlinkat(content.folder, content.name, 0) }
    return false
  }
}

/// A folder beside a path that only this process's user may access. It is removed with the value, unless it still
/// contains a file that is not ours and could not be put back.
private struct PrivateFolder: ~Copyable {
  private let path: String
  private let folder: Descriptor
  var content: SharedFolder.Name { SharedFolder.Name(in: folder.raw, "it") }

  init(beside name: String) throws(SystemError) {
    let slash = name.lastIndex(of: "/")
    let parent = slash.map { name[...$0] } ?? ""
    var template = Array("\(parent).baudway-XXXXXX".utf8CString)
    guard let made = template.withUnsafeMutableBufferPointer({ mkdtemp($0.baseAddress!) }) else {
      throw SystemError("mkdtemp")
    }
    let path = String(cString: made)
    let raw = Glibc.open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    guard raw >= 0 else {
      let error = SystemError("open")
      rmdir(path)
      throw error
    }
    let folder = Descriptor(owning: raw)
    var status = stat()
    // A user who may write to the parent can have replaced the folder.
    guard fstat(folder.raw, &status) == 0, status.st_uid == geteuid(), status.st_mode & 0o77 == 0 else {
      throw SystemError("open", EACCES)
    }
    self.path = path
    self.folder = folder
  }

  /// Removes its content, or puts it back. If the name is in use again, the new file stays there, and the content stays
  /// here.
  func remove(if isMeant: (SharedFolder.Name) -> Bool, returningTo name: SharedFolder.Name) throws(SystemError) -> Bool
  {
    guard isMeant(content) else {
      _ = linux_rename_new(content.folder, content.name, name.folder, name.name)
      return false
    }
    guard unlinkat(content.folder, content.name, 0) == 0 else { throw SystemError("unlink") }
    return true
  }

  deinit { rmdir(path) }
}
