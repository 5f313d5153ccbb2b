// The link that leads commands to the control socket: which links it may replace, in a folder that others may write to.

import Glibc
import StreamTestKit
import Testing

@testable import GatewayKit
import StreamBroker
@testable import StreamBrokerCore

@Suite("A link to the control socket")
struct ControlSocketLinkTests {
  private let folder: TemporaryFolder
  private var path: String { folder / "control-1.sock" }

  init() throws { folder = try TemporaryFolder() }

  @Test("replaces an older one, and is removed with its socket")
  func replaced() throws {
    let old = try #require(ControlSocketLink.create(at: path, to: "/run/old.sock"))
    let new = try #require(ControlSocketLink.create(at: path, to: "/run/new.sock"))
    #expect(FileSystem.target(of: path) == "/run/new.sock")
    old.remove()
    #expect(FileSystem.target(of: path) == "/run/new.sock")
    new.remove()
    #expect(FileSystem.names(in: folder.path) == [])
  }

  @Test("leaves alone a file or a folder", arguments: ["file", "folder"])
  func others(kind: String) {
    if kind == "file" { Glibc.close(creat(path, 0o600)) } else { mkdir(path, 0o700) }
    #expect(ControlSocketLink.create(at: path, to: "/run/new.sock") == nil)
    #expect(FileSystem.names(in: folder.path) == ["control-1.sock"] && FileSystem.target(of: path) == nil)
  }

  @Test(
    "leaves alone another user's link, when it is made and when it is removed",
    .enabled(if: geteuid() == 0, "only root gives links to other users"))
  func otherUsers() throws {
    #expect(symlink("/run/old.sock", path) == 0 && lchown(path, 4711, 4711) == 0)
    #expect(ControlSocketLink.create(at: path, to: "/run/new.sock") == nil)
    #expect(FileSystem.target(of: path) == "/run/old.sock" && unlink(path) == 0)
    let socketLink = try #require(ControlSocketLink.create(at: path, to: "/run/new.sock"))
    #expect(lchown(path, 4711, 4711) == 0)
    socketLink.remove()
    #expect(FileSystem.target(of: path) == "/run/new.sock")
  }

  /// Looking at a name and acting on it are two separate calls.
  @Test(
    "leaves alone what appears at its path between our look and our call", arguments: ["link", "file", "nothing"],
    [true, false]
  )
  func exchanged(kind: String, isAtEnd: Bool) throws {
    let ours = "/run/new.sock"
    let socketLink = try #require(ControlSocketLink.create(at: path, to: isAtEnd ? ours : "/run/old.sock"))
    var isExchanged = false
    let look = { (found: SharedFolder.Name) in
      // The replacement here belongs to the same user.
      let isMeant = ControlSocketLink.isOurLink(found) && found.target != "/nowhere"
      guard !isExchanged else { return isMeant }
      isExchanged = true
      #expect(unlink(path) == 0)
      if kind == "link" { #expect(symlink("/nowhere", path) == 0) }
      if kind == "file" { Glibc.close(creat(path, 0o600)) }
      return isMeant
    }
    if isAtEnd {
      socketLink.remove(if: look)
    } else {
      let isThere = ControlSocketLink.create(at: path, to: ours, if: look) != nil
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
