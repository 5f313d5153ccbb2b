// Makes a pseudo-terminal that acts as a serial port for programs on this machine, and the symbolic link by which they
// find it. The endpoint `pty://` and the listener of that name use it. Everything here may block: for a queue, never
// for a lane.

import ByteStreams
import CLinux
import Glibc

package struct Pseudoterminal: Sendable {
  /// Our side, non-blocking. When it closes, the programs see a hang-up, and the kernel discards the bytes that they
  /// have not read.
  package let master: DescriptorParcel
  /// The programs' side, open from the start. While any process has it open, the master sees no hang-up.
  package let slave: DescriptorParcel
  /// "/dev/pts/7"
  package let path: String

  /// Raw, without echo, with the settings `line` and the rights `ownership`. All of this is set before anybody can know
  /// the path.
  package static func make(_ line: LineSettings, _ ownership: NodeOwnership) throws(OpenFailure) -> Pseudoterminal {
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
    guard var modes = line.modes(from: now, hangUpOnClose: false) else { throw SystemError("ioctl TCSETS2", EINVAL) }
    modes.cflag &= ~UInt32(CLOCAL)  // decision N11
    try calls.setModes(slave.raw, modes)
    return slave
  }
}

/// The symbolic link to a pty.
package struct PtyName: Sendable {
  package let path: String
  /// "/dev/pts/7"
  package let target: String

  /// Makes the link. Replaces a stale link of a gateway of the same user, and `old`, which is ours. A link to a pty in
  /// use is EADDRINUSE; any other file with that name is EEXIST.
  package static func link(
    _ path: String, leadingTo target: String, replacing old: PtyName? = nil
  ) throws(OpenFailure) -> PtyName {
    do throws(SystemError) {
      // Try again: the name may have been removed meanwhile, for example by our previous pty.
      var isMade = try make(path, target)
      if !isMade {
        isMade = try SharedFolder.replace(path, byLinkTo: target) { found in
          found.isOurs && (isStale(found) || old.map { found.target == $0.target } ?? false)
        }
      }
      if !isMade { isMade = try make(path, target) }
      guard isMade else {
        let found = SharedFolder.Name(path)
        throw SystemError("symlink", leadsToPty(found) && !isStale(found) ? EADDRINUSE : EEXIST)
      }
    } catch {
      throw OpenFailure("symlink \(path)", error, advice: advice(error))
    }
    return PtyName(path: path, target: target)
  }

  /// False if the name is taken.
  private static func make(_ path: String, _ target: String) throws(SystemError) -> Bool {
    if symlink(target, path) == 0 { return true }
    let error = SystemError("symlink")
    guard error.errno == EEXIST else { throw error }
    return false
  }

  /// False if the link was removed or leads elsewhere.
  package var isThere: Bool { FileSystem.target(of: path) == target }

  /// Removes the link, unless another one has taken its place.
  package func remove() {
    _ = try? SharedFolder.remove(path) { $0.isOurs && $0.target == target }
  }

  private static func leadsToPty(_ link: SharedFolder.Name) -> Bool {
    guard let target = link.target, target.hasPrefix("/dev/pts/") else { return false }
    return Int(target.dropFirst("/dev/pts/".count)) != nil
  }

  /// Whether the link leads to a pty that is gone. Its number may belong to another pty by now, such as a shell's. That
  /// pty is younger than the link by all of its times (chmod(2) updates one of them, use the others). A valid link is
  /// made last, a moment after its pty got its rights. So a link that seems far younger was made before the clock was
  /// set back, as at the start of a machine without a real-time clock.
  private static func isStale(_ found: SharedFolder.Name) -> Bool {
    var node = stat()
    guard leadsToPty(found), let link = found.status, let target = found.target else { return false }
    guard stat(target, &node) == 0 else { return errno == ENOENT }
    let made = link.st_mtim
    let isYounger = [node.st_ctim, node.st_mtim, node.st_atim].allSatisfy {
      (made.tv_sec, made.tv_nsec) < ($0.tv_sec, $0.tv_nsec)
    }
    return isYounger || made.tv_sec > node.st_ctim.tv_sec + longestMaking
  }

  // Seconds from the pty to its link, on a busy machine.
  private static let longestMaking = 10

  private static func advice(_ error: SystemError) -> String? {
    switch error.errno {
    case ENOENT, ENOTDIR: "create its folder first"
    case ELOOP: "symbolic links lead in a circle"
    case ENOSPC, EDQUOT: "the file system is full"
    case EACCES, EPERM, EROFS: "the gateway's user must be able to write to its folder"
    case EADDRINUSE:
      "it points to a pty of another route, gateway or program; it is replaced as soon as that pty is gone"
    case EEXIST:
      "another file has this name, and only the gateway's own links to ptys are replaced; remove it, or use another path"
    default: nil
    }
  }
}
