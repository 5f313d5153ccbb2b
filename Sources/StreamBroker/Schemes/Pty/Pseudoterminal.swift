// Makes a pseudo-terminal that plays a serial port for programs of this machine, and the symbolic link by which they find
// it. The endpoint `pty://` and the listener of that name use it. Everything here may block: for a queue, never for a lane.

import ByteStreams
import CLinux
import Glibc

public struct Pseudoterminal: Sendable {
  /// Our side, non-blocking. When it closes, the programs see a hang-up, and the kernel throws away what they have not read.
  public let master: DescriptorParcel
  /// The programs' side, open from the start. While somebody has it open, the master sees no hang-up.
  public let slave: DescriptorParcel
  /// "/dev/pts/7"
  public let path: String

  /// Raw, without echo, with `line` as what programs find, and theirs by `ownership`: all of it before anybody can know
  /// the path.
  public static func make(_ line: LineSettings, _ ownership: NodeOwnership) throws(OpenFailure) -> Pseudoterminal {
    var name = [CChar](repeating: 0, count: 64)
    let raw = linux_open_pty(&name, name.count)
    guard raw >= 0 else {
      let error = SystemError("posix_openpt")
      let advice = error.errno == ENOSPC ? "no more ptys; raise kernel.pty.max" : nil
      throw OpenFailure("open /dev/ptmx", error, advice: advice)
    }
    let master = DescriptorParcel(Descriptor(owning: raw))
    let path = String(decoding: name.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    let slave: Descriptor
    do throws(SystemError) {
      slave = try openSlave(path, line)
    } catch {
      throw OpenFailure("\(error.call) \(path)", error)
    }
    try ownership.apply(to: slave.raw, at: path)
    return Pseudoterminal(master: master, slave: DescriptorParcel(slave), path: path)
  }

  private static func openSlave(_ path: String, _ line: LineSettings) throws(SystemError) -> Descriptor {
    let calls = SystemTTYCalls()
    let slave = try calls.open(path)
    let now = try calls.modes(slave.raw)
    guard let modes = line.modes(from: now, hangUpOnClose: false) else { throw SystemError("ioctl TCSETS2", EINVAL) }
    try calls.setModes(slave.raw, modes)
    return slave
  }
}

/// The symbolic link to a pty.
public struct PtyName: Sendable {
  public let path: String
  /// "/dev/pts/7"
  public let target: String

  /// Makes the link. One that a gateway of the same user has left is replaced, and so is `old`, which is ours; one that leads to
  /// somebody's pty is EADDRINUSE, and anything else under that name not ours to touch.
  public static func place(
    _ path: String, leadingTo target: String, replacing old: PtyName? = nil
  ) throws(OpenFailure) -> PtyName {
    do throws(SystemError) {
      // Once more where somebody, such as the pty before this one, has removed what we found.
      var isMade = try make(path, target)
      if !isMade {
        isMade = try OpenFolder.replace(path, byLinkTo: target) { found in
          found.isOurs && (isStale(found) || old.map { found.target == $0.target } ?? false)
        }
      }
      if !isMade { isMade = try make(path, target) }
      guard isMade else {
        let found = OpenFolder.Name(path)
        throw SystemError("symlink", leadsToPty(found) && !isStale(found) ? EADDRINUSE : EEXIST)
      }
    } catch {
      throw OpenFailure("symlink \(path)", error, advice: advice(error))
    }
    return PtyName(path: path, target: target)
  }

  /// False when the name is taken.
  private static func make(_ path: String, _ target: String) throws(SystemError) -> Bool {
    if symlink(target, path) == 0 { return true }
    let error = SystemError("symlink")
    guard error.errno == EEXIST else { throw error }
    return false
  }

  /// False when it was removed, or leads elsewhere.
  public var isThere: Bool { FileSystem.target(of: path) == target }

  /// Removes it, unless somebody else has put another in its place.
  public func remove() {
    _ = try? OpenFolder.remove(path) { $0.isOurs && $0.target == target }
  }

  private static func leadsToPty(_ link: OpenFolder.Name) -> Bool {
    guard let target = link.target, target.hasPrefix("/dev/pts/") else { return false }
    return Int(target.dropFirst("/dev/pts/".count)) != nil
  }

  /// Whether it led to a pty that is gone. Its number may be somebody else's by now, a shell's: then that pty is younger than
  /// the link, by all of its times, of which chmod(2) sets one anew and use the others. A link that is in use is made last, when its
  /// pty has its rights, a moment later: one that seems to be far younger was made
  /// before the clock was set back, as it is at the start of a machine without one of its own.
  private static func isStale(_ found: OpenFolder.Name) -> Bool {
    var node = stat()
    guard leadsToPty(found), let link = found.status, let target = found.target else { return false }
    guard stat(target, &node) == 0 else { return errno == ENOENT }
    let made = link.st_mtim
    let isYounger = [node.st_ctim, node.st_mtim, node.st_atim].allSatisfy {
      (made.tv_sec, made.tv_nsec) < ($0.tv_sec, $0.tv_nsec)
    }
    return isYounger || made.tv_sec - node.st_ctim.tv_sec > longestMaking
  }

  // Seconds, on a busy machine.
  private static let longestMaking = 10

  private static func advice(_ error: SystemError) -> String? {
    switch error.errno {
    case ENOENT: "its folder has to be there"
    case EACCES, EPERM, EROFS: "the folder has to be writable for the gateway's user"
    case EADDRINUSE: "it leads to a pty of another route, gateway or program, and is replaced as soon as that is gone"
    case EEXIST:
      "something else has this name, and only the gateway's own links to ptys are replaced; remove it, or name another place"
    default: nil
    }
  }
}
