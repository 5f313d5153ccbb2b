// The pty that the gateway makes for programs, its symbolic link, and its owner.

import ByteStreams
import CLinux
import Glibc
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A pseudo-terminal of ours")
struct PseudoterminalTests {
  @Test("is raw, without echo, at the line's rate and with the requested mode, before it gets its link")
  func fresh() throws {
    let line = LineSettings(bitsPerSecond: 250_000)
    let pty = try Pseudoterminal.make(line, NodeOwnership(mode: 0o640))
    let slave = Descriptor(owning: open(pty.path, O_RDWR | O_NOCTTY))
    var modes = linux_termios()
    #expect(linux_tcgets2(slave.raw, &modes) == 0)
    #expect(modes.lflag == 0 && modes.oflag == 0 && modes.iflag == 0 && modes.min == 1)
    #expect(modes.output_rate == 250_000)
    var status = stat()
    #expect(stat(pty.path, &status) == 0 && status.st_mode & 0o7777 == 0o640)
  }

  @Test("accepts users and groups by name and by number, and reports an unknown one")
  func names() throws {
    #expect(try NodeOwnership.user("root") == 0 && NodeOwnership.group("root") == 0)
    #expect(try NodeOwnership.user("4711") == 4711 && NodeOwnership.group("4711") == 4711)
    let failure = #expect(throws: OpenFailure.self) { try NodeOwnership(owner: "nobody.here").apply(to: 0, at: "x") }
    #expect(failure?.description == "look up user nobody.here: this system has no such name")
  }

  @Test(
    "belongs to whom the URL says, by name or number",
    .enabled(if: geteuid() == 0, "only root gives nodes to other users"))
  func ownership() throws {
    let pty = try Pseudoterminal.make(LineSettings(), NodeOwnership(owner: "4711", group: "nogroup"))
    var status = stat()
    #expect(stat(pty.path, &status) == 0 && status.st_uid == 4711)
    #expect(try status.st_gid == NodeOwnership.group("nogroup"))
  }

  @Test("replaces a link to a pty that is gone")
  func staleLink() throws {
    let folder = try TemporaryFolder()
    #expect(symlink("/dev/pts/999999", folder / "modem") == 0)
    let name = try PtyName.link(folder / "modem", leadingTo: "/dev/pts/999997")
    #expect(FileSystem.target(of: folder / "modem") == "/dev/pts/999997")
    name.remove()
    #expect(FileSystem.target(of: folder / "modem") == nil)
  }

  @Test("is reachable all the time while its link is replaced, and leaves nothing else")
  func noGap() throws {
    let folder = try TemporaryFolder()
    _ = try PtyName.link(folder / "modem", leadingTo: "/dev/pts/999997")
    let inotify = Descriptor(owning: inotify_init1(Int32(IN_NONBLOCK | IN_CLOEXEC)))
    try #require(inotify_add_watch(inotify.raw, folder / "", UInt32(IN_DELETE | IN_MOVED_TO)) >= 0)
    _ = try PtyName.link(folder / "modem", leadingTo: "/dev/pts/999998")
    var seen: [String] = []
    var bytes = [UInt8](repeating: 0, count: 4096)
    let count = read(inotify.raw, &bytes, bytes.count)
    bytes.withUnsafeBytes { bytes in
      var offset = 0
      while offset < count {
        let event = bytes.loadUnaligned(fromByteOffset: offset, as: inotify_event.self)
        let name = bytes[(offset + MemoryLayout<inotify_event>.size)...].prefix(8)
        seen.append(
          (event.mask & UInt32(IN_DELETE) != 0 ? "deleted " : "moved to ")
            + String(decoding: name.prefix { $0 != 0 }, as: UTF8.self))
        offset += MemoryLayout<inotify_event>.size + Int(event.len)
      }
    }
    #expect(seen == ["moved to modem", "deleted .baudway"])
    #expect(
      FileSystem.names(in: folder / "") == ["modem"] && FileSystem.target(of: folder / "modem") == "/dev/pts/999998")
  }

  @Test(
    "leaves alone what another user has put there, even a link to a pty that is gone",
    .enabled(if: geteuid() == 0, "only root gives nodes to other users"))
  func otherUsers() throws {
    let folder = try TemporaryFolder()
    let path = folder / "modem"
    #expect(symlink("/dev/pts/999999", path) == 0 && lchown(path, 4711, 4711) == 0)
    let failure = #expect(throws: OpenFailure.self) { try PtyName.link(path, leadingTo: "/dev/pts/999997") }
    #expect(failure?.cause?.errno == EEXIST && FileSystem.target(of: path) == "/dev/pts/999999")
    #expect(unlink(path) == 0)
    let name = try PtyName.link(path, leadingTo: "/dev/pts/999997")
    #expect(lchown(path, 4711, 4711) == 0)
    name.remove()
    #expect(FileSystem.target(of: path) == "/dev/pts/999997")
  }

  // Checking a name and the call that acts on it are two steps.
  @Test("leaves alone what appears there between our check and our call", arguments: ["link", "file", "nothing"])
  func exchanged(kind: String) throws {
    let folder = try TemporaryFolder()
    let path = folder / "modem"
    #expect(symlink("/dev/pts/999999", path) == 0)
    var looks = 0
    let isReplaced = try SharedFolder.replace(path, byLinkTo: "/dev/pts/999997") { found in
      looks += 1
      if looks > 1 { return found.target == "/dev/pts/999999" }
      #expect(unlink(path) == 0)
      if kind == "link" { #expect(symlink("/nowhere", path) == 0) }
      if kind == "file" { Glibc.close(creat(path, 0o600)) }
      return true
    }
    switch kind {
    case "link": #expect(!isReplaced && FileSystem.target(of: path) == "/nowhere")
    case "file": #expect(!isReplaced && FileSystem.target(of: path) == nil && access(path, F_OK) == 0)
    default: #expect(isReplaced && FileSystem.target(of: path) == "/dev/pts/999997")
    }
    #expect(FileSystem.names(in: folder.path) == ["modem"] && rmdir(folder.path) != 0)
    unlink(path)
    #expect(rmdir(folder.path) == 0, "something is left in it")
  }

  @Test("replaces nothing else", arguments: ["file", "folder", "link to a file", "link to nothing"])
  func others(kind: String) throws {
    let folder = try TemporaryFolder()
    let path = folder / "modem"
    switch kind {
    case "file": Glibc.close(creat(path, 0o600))
    case "folder": mkdir(path, 0o700)
    case "link to a file": #expect(symlink("/etc/passwd", path) == 0)
    default: #expect(symlink("/nowhere", path) == 0)
    }
    let failure = #expect(throws: OpenFailure.self) { try PtyName.link(path, leadingTo: "/dev/pts/999997") }
    #expect(failure?.cause?.errno == EEXIST)
    var status = stat()
    #expect(lstat(path, &status) == 0)
  }

  @Test(
    "replaces a link that is far older than its pty, or far younger because the clock was set back",
    arguments: [-60, 3600])
  func otherTimes(seconds: Int) throws {
    let folder = try TemporaryFolder()
    let other = try makePty()
    #expect(symlink(other.node, folder / "modem") == 0)
    setTime(of: folder / "modem", time(nil) + seconds)
    _ = try PtyName.link(folder / "modem", leadingTo: "/dev/pts/999997")
    #expect(FileSystem.target(of: folder / "modem") == "/dev/pts/999997")
  }

  @Test("leaves the link to another program's pty alone while that exists, and replaces its own")
  func liveLink() throws {
    let folder = try TemporaryFolder()
    let pty = try Pseudoterminal.make(LineSettings(), NodeOwnership(mode: 0o640))
    let name = try PtyName.link(folder / "modem", leadingTo: pty.path)
    let failure = #expect(throws: OpenFailure.self) {
      try PtyName.link(folder / "modem", leadingTo: "/dev/pts/999998")
    }
    #expect(failure?.cause?.errno == EADDRINUSE && name.isThere)
    let other = try PtyName.link(folder / "modem", leadingTo: "/dev/pts/999998", replacing: name)
    #expect(other.isThere && !name.isThere)
    _ = pty.master.take()
  }

  @Test("leaves a link that another program has put in place of its own")
  func foreignLink() throws {
    let folder = try TemporaryFolder()
    let name = try PtyName.link(folder / "modem", leadingTo: "/dev/pts/999997")
    _ = try PtyName.link(folder / "modem", leadingTo: "/dev/pts/999998")
    name.remove()
    #expect(FileSystem.target(of: folder / "modem") == "/dev/pts/999998")
  }

  @Test("reports what is missing when the link can't be made")
  func noFolder() throws {
    let failure = #expect(throws: OpenFailure.self) {
      try PtyName.link("/nowhere/modem", leadingTo: "/dev/pts/999997")
    }
    #expect(failure?.description.contains("create its folder first") == true)
  }
}
