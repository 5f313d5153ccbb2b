// The link that leads commands to a control socket: whose it may replace, in a folder that others may write to.

import Glibc
import StreamTestKit
import Testing

@testable import GatewayKit
@testable import StreamBroker

@Suite("A link to the control socket")
struct ControlSignpostTests {
  private let folder: TemporaryFolder
  private var path: String { folder / "control-1.sock" }

  init() throws { folder = try TemporaryFolder() }

  @Test("takes the place of an older one, and goes with its socket")
  func replaced() throws {
    let old = try #require(ControlSignpost.raise(at: path, to: "/run/old.sock"))
    let new = try #require(ControlSignpost.raise(at: path, to: "/run/new.sock"))
    #expect(FileSystem.target(of: path) == "/run/new.sock")
    old.remove()
    #expect(FileSystem.target(of: path) == "/run/new.sock")
    new.remove()
    #expect(FileSystem.names(in: folder.path) == [])
  }

  @Test("leaves alone what is no link", arguments: ["file", "folder"])
  func others(kind: String) {
    if kind == "file" { Glibc.close(creat(path, 0o600)) } else { mkdir(path, 0o700) }
    #expect(ControlSignpost.raise(at: path, to: "/run/new.sock") == nil)
    #expect(FileSystem.names(in: folder.path) == ["control-1.sock"] && FileSystem.target(of: path) == nil)
  }

  @Test(
    "leaves alone what another user has put there, at the start and at the end",
    .enabled(if: geteuid() == 0, "only root gives links to other users"))
  func otherUsers() throws {
    #expect(symlink("/run/old.sock", path) == 0 && lchown(path, 4711, 4711) == 0)
    #expect(ControlSignpost.raise(at: path, to: "/run/new.sock") == nil)
    #expect(FileSystem.target(of: path) == "/run/old.sock" && unlink(path) == 0)
    let signpost = try #require(ControlSignpost.raise(at: path, to: "/run/new.sock"))
    #expect(lchown(path, 4711, 4711) == 0)
    signpost.remove()
    #expect(FileSystem.target(of: path) == "/run/new.sock")
  }

  /// The look at a name and the call that acts on it are two.
  @Test(
    "leaves alone what comes there between our look and our call", arguments: ["link", "file", "nothing"],
    [true, false]
  )
  func exchanged(kind: String, isAtEnd: Bool) throws {
    let ours = "/run/new.sock"
    let signpost = try #require(ControlSignpost.raise(at: path, to: isAtEnd ? ours : "/run/old.sock"))
    var isExchanged = false
    let look = { (found: OpenFolder.Name) in
      // What is exchanged for it here is the same user's.
      let isMeant = ControlSignpost.isOurLink(found) && found.target != "/nowhere"
      guard !isExchanged else { return isMeant }
      isExchanged = true
      #expect(unlink(path) == 0)
      if kind == "link" { #expect(symlink("/nowhere", path) == 0) }
      if kind == "file" { Glibc.close(creat(path, 0o600)) }
      return isMeant
    }
    if isAtEnd {
      signpost.remove(if: look)
    } else {
      let isThere = ControlSignpost.raise(at: path, to: ours, if: look) != nil
      #expect(isThere == (kind == "nothing"))
    }
    #expect(isExchanged)
    switch kind {
    case "link": #expect(FileSystem.target(of: path) == "/nowhere")
    case "file": #expect(FileSystem.target(of: path) == nil && access(path, F_OK) == 0)
    default: #expect(FileSystem.target(of: path) == (isAtEnd ? nil : ours))
    }
    #expect(FileSystem.names(in: folder.path) == (kind == "nothing" && isAtEnd ? [] : ["control-1.sock"]))
    unlink(path)
    #expect(rmdir(folder.path) == 0, "something is left in it")
  }
}
