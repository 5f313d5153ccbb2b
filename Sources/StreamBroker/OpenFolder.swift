// Removes and replaces names in folders that other users may write to. Such a user can rename anything over a name between our
// look and our call. So what has the name is first moved into a folder that is ours alone, looked at there, and put back when it is
// not what was meant. Everything here may block: for a queue, never for a lane.

import ByteStreams
import CLinux
import Glibc

public enum OpenFolder {
  /// A name in an open folder. `AT_FDCWD` stands for the working directory, so that a path is a name, too.
  public struct Name {
    public let folder: Int32
    public let name: String

    /// What has the name now; links are not followed. Nil when nothing has it, or it can't be looked at.
    public var status: stat? {
      var status = stat()
      return fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0 ? status : nil
    }

    /// Whether this process's user has made it. Other users may put what they like into a folder that they can write to; a gateway that is
    /// root leaves that alone.
    public var isOurs: Bool { status?.st_uid == geteuid() }

    /// Where it leads, as it is written. Nil when it is no symbolic link.
    public var target: String? {
      withUnsafeTemporaryAllocation(of: CChar.self, capacity: Int(PATH_MAX)) { buffer in
        let count = readlinkat(folder, name, buffer.baseAddress!, buffer.count - 1)
        guard count > 0 else { return nil }
        buffer[count] = 0
        return String(cString: buffer.baseAddress!)
      }
    }

    /// The first bytes of a small file, 512 at most. Nil when it can't be read, or is a symbolic link: whoever may write to the
    /// folder can point one at a device that does something as soon as it is opened.
    var beginning: [UInt8]? {
      // Non-blocking: what somebody has put there may be a pipe.
      let raw = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
      return raw < 0 ? nil : FileSystem.beginning(of: Descriptor(owning: raw))
    }

    public init(_ path: String) { self.init(in: AT_FDCWD, path) }

    fileprivate init(in folder: Int32, _ name: String) {
      self.folder = folder
      self.name = name
    }
  }

  /// Removes `path` if `isMeant` says so of what has this name. False, and nothing is removed, when it does not.
  @discardableResult
  public static func remove(_ path: String, if isMeant: (Name) -> Bool) throws(SystemError) -> Bool {
    let place = Name(path)
    guard isMeant(place) else { return false }
    let aside = try Aside(beside: path)
    guard linux_rename_new(place.folder, place.name, aside.content.folder, aside.content.name) == 0 else {
      let error = SystemError("rename")
      if error.errno == ENOENT { return false }
      throw error
    }
    return try aside.remove(if: isMeant, returningTo: place)
  }

  /// Makes `path` a symbolic link to `target` in one step, in place of what has this name, if `isMeant` says so of that.
  /// False, and everything is as before, when it does not.
  public static func replace(
    _ path: String, byLinkTo target: String, if isMeant: (Name) -> Bool
  ) throws(SystemError) -> Bool {
    let place = Name(path)
    guard isMeant(place) else { return false }
    let aside = try Aside(beside: path)
    let content = aside.content
    guard symlinkat(target, content.folder, content.name) == 0 else { throw SystemError("symlink") }
    guard linux_exchange(content.folder, content.name, place.folder, place.name) == 0 else {
      let error = SystemError("rename")
      unlinkat(content.folder, content.name, 0)
      // It has gone, or the file system exchanges nothing: the name is free for a moment then.
      if error.errno == EINVAL || error.errno == ENOSYS { _ = try remove(path, if: isMeant) }
      guard [ENOENT, EINVAL, ENOSYS].contains(error.errno) else { throw error }
      return symlink(target, path) == 0
    }
    if isMeant(content) {
      unlinkat(content.folder, content.name, 0)
      return true
    }
    _ = linux_exchange(content.folder, content.name, place.folder, place.name)
    if content.target == target { unlinkat(content.folder, content.name, 0) }
    return false
  }
}

/// A folder beside a path that only this process's user may look into. It goes with the value, unless something is left in it
/// that is not ours and could not be put back.
private struct Aside: ~Copyable {
  private let path: String
  private let folder: Descriptor
  var content: OpenFolder.Name { OpenFolder.Name(in: folder.raw, "it") }

  init(beside place: String) throws(SystemError) {
    let slash = place.lastIndex(of: "/")
    let parent = slash.map { place[...$0] } ?? ""
    var template = Array("\(parent).baudway-XXXXXX".utf8CString)
    guard let made = template.withUnsafeMutableBufferPointer({ mkdtemp($0.baseAddress!) }) else {
      throw SystemError("mkdtemp")
    }
    let path = String(cString: made)
    let raw = Glibc.open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    guard raw >= 0 else { throw SystemError("open") }
    let folder = Descriptor(owning: raw)
    var status = stat()
    // Who may write to the parent can have put another one in its place.
    guard fstat(folder.raw, &status) == 0, status.st_uid == geteuid(), status.st_mode & 0o77 == 0 else {
      throw SystemError("open", EACCES)
    }
    self.path = path
    self.folder = folder
  }

  /// Removes its content, or puts it back. A name that was taken again meanwhile stays with whoever took it, and the content here.
  func remove(if isMeant: (OpenFolder.Name) -> Bool, returningTo place: OpenFolder.Name) throws(SystemError) -> Bool {
    guard isMeant(content) else {
      _ = linux_rename_new(content.folder, content.name, place.folder, place.name)
      return false
    }
    guard unlinkat(content.folder, content.name, 0) == 0 else { throw SystemError("unlink") }
    return true
  }

  deinit { rmdir(path) }
}
