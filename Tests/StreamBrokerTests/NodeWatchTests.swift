// Nodes, links and directories that appear and disappear in the test's own directory, and ptys.

import ByteStreams
import CLinux
import Glibc
import StreamTestKit
import Synchronization
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A node watch", .timeLimit(.minutes(5)), .serialized)
final class NodeWatchTests: Sendable {
  private let lane: Lane
  private let directory: String

  init() throws {
    lane = try Lane("test")
    var template = Array("/tmp/node-watch-XXXXXX".utf8CString)
    let made = template.withUnsafeMutableBufferPointer { mkdtemp($0.baseAddress!).map { String(cString: $0) } }
    directory = try #require(made)
  }

  deinit { lane.stop() }

  /// Watches `path` and yields, at each change, the result of `look`.
  private func watch<Seen: Sendable>(
    _ path: String, _ look: @escaping @Sendable () -> Seen
  ) async -> (OnLane<NodeWatch>, AsyncStream<Seen>.AsyncIterator) {
    let (changes, feed) = AsyncStream.makeStream(of: Seen.self)
    let watch = await lane.ask { lane, answer in
      answer(OnLane(value: NodeWatch(path: path, on: lane.poller, changed: { feed.yield(look()) })))
    }
    return (watch, changes.makeAsyncIterator())
  }

  private func end(_ watch: OnLane<NodeWatch>) async {
    await lane.ask { _, answer in
      watch.value.cancel()
      watch.value.cancel()
      answer(())
    }
    lane.stop()
    removeAll()
  }

  private func removeAll() {
    for name in ["node", "link", "other", "far/deep/node", "far/deep", "far"] { remove("\(directory)/\(name)") }
    rmdir(directory)
  }

  private func make(_ path: String) { Glibc.close(creat(path, 0o600)) }

  @Test("reports a node each time it appears")
  func appears() async throws {
    let node = "\(directory)/node"
    var (watch, changes) = await watch(node) { [directory] in linkTarget("\(directory)/node") }
    for round in 1...10 {
      #expect(symlink("/dev/null?\(round)", node) == 0 && remove(node) == 0)  // a dangling link is not a change
      let target = String(repeating: "/", count: round) + "dev/null"
      #expect(symlink(target, node) == 0)
      #expect(await changes.reaches(target))
      #expect(remove(node) == 0)
    }
    await end(watch)
  }

  @Test("reports a node in a directory that does not exist yet, however it is made", arguments: [false, true])
  func missingDirectories(isMoved: Bool) async throws {
    let node = "\(directory)/far/deep/node"
    var (watch, changes) = await watch(node) { access(node, F_OK) == 0 }
    let place = isMoved ? "\(directory)/other" : "\(directory)/far"
    mkdir(place, 0o700)
    mkdir("\(place)/deep", 0o700)
    make("\(place)/deep/node")
    if isMoved { #expect(rename(place, "\(directory)/far") == 0) }
    #expect(await changes.next() == true)
    await end(watch)
  }

  @Test("follows links: to a target that appears, and to another target")
  func links() async throws {
    let link = "\(directory)/link"
    #expect(symlink("far/../node", link) == 0)
    mkdir("\(directory)/far", 0o700)
    var (watch, changes) = await watch(link) { linkTarget(link) }
    make("\(directory)/node")
    #expect(await changes.next() == "far/../node")

    make("\(directory)/other")
    #expect(symlink("other", "\(directory)/far/deep") == 0)
    #expect(rename("\(directory)/far/deep", link) == 0)
    #expect(await changes.reaches("other"))
    await end(watch)
  }

  @Test("reports changed permissions of a node, and nothing about its neighbours")
  func permissions() async throws {
    let node = "\(directory)/node"
    make(node)
    let calls = Mutex(0)
    var (watch, changes) = await watch(node) {
      calls.withLock { $0 += 1 }
      return mode(of: node)
    }
    for _ in 0..<1000 {
      make("\(directory)/other")
      remove("\(directory)/other")
    }
    #expect(chmod(node, 0o660) == 0)
    #expect(await changes.reaches(0o660))
    // Once because the node is new (it may have appeared after the failed open), and once for its new mode.
    #expect(calls.withLock { $0 } <= 2)
    await end(watch)
  }

  @Test("reports a pty that comes back under its name")
  func pty() async throws {
    let path = try TTYPair().path  // and closes it: the name is free again
    var (watch, changes) = await watch(path) { access(path, F_OK) == 0 }
    // Other tests make ptys as well: continue until one gets that name.
    var others: [DescriptorParcel] = []
    while others.count < 256, access(path, F_OK) != 0 {
      let pair = try TTYPair()
      others.append(DescriptorParcel(pair.master.duplicate()))
    }
    #expect(await changes.next() == true)
    await end(watch)
  }

  @Test("does not report a node that has existed for long")
  func old() async throws {
    let survey = try await walk("/dev/./pts/../null")
    #expect(survey.exists && survey.error == nil)
    #expect(!survey.changedAfter(survey.startedAt))
    #expect(survey.names.values.contains(["null", "pts"]))
    removeAll()
  }

  @Test("gives up on a circle of links, and reports why a directory can't be watched")
  func hopeless() async throws {
    #expect(symlink("link", "\(directory)/link") == 0)
    #expect(try await !walk("\(directory)/link").exists)
    var full = InotifyCalls()
    full.add = { _, _, _ in
      errno = ENOSPC
      return -1
    }
    let blind = try await walk("/dev/null", full)
    #expect(blind.error == SystemError("inotify_add_watch", ENOSPC))
    #expect(blind.exists)
    removeAll()
  }

  private func walk(_ path: String, _ calls: InotifyCalls = InotifyCalls()) async throws -> NodePathWalk {
    try await onLane { lane in
      lane.poller.inotify.calls = calls
      let user = lane.poller.inotify.join(Nobody())
      return NodePathWalk(of: path, watchingWith: try lane.poller.inotify.adding(for: user).get())
    }
  }

  private final class Nobody: InotifyUser {
    func note(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool { false }
    func filesChanged() {}
    func poll() {}
  }

  @Test(
    "looks where the kernel refuses to watch: a node that appears, a file that is written or replaced, a link",
    arguments: [EMFILE, ENOSPC])
  func refused(error: Int32) async throws {
    let clock = ManualClock()
    let lane = try clock.lane("test")
    let passing = clock.passes()
    defer {
      passing.cancel()
      lane.stop()
    }
    await lane.ask { lane, answer in
      lane.poller.inotify.calls.open = {
        guard error == EMFILE else { return inotify_init1(Int32(IN_NONBLOCK | IN_CLOEXEC)) }
        errno = EMFILE
        return -1
      }
      lane.poller.inotify.calls.add = { _, _, _ in
        errno = ENOSPC
        return -1
      }
      answer(())
    }
    let link = "\(directory)/link"
    let (changes, feed) = AsyncStream.makeStream(of: String?.self)
    let failures = Mutex<[SystemError]>([])
    #expect(symlink("far/deep/node", link) == 0)
    let watch = await lane.ask { lane, answer in
      answer(
        OnLane(
          value: NodeWatch(
            path: link, on: lane.poller, seesWrites: true, changed: { feed.yield(linkTarget(link)) },
            failed: { error in failures.withLock { $0.append(error) } })))
    }
    var news = changes.makeAsyncIterator()
    mkdir("\(directory)/far", 0o700)
    mkdir("\(directory)/far/deep", 0o700)
    make("\(directory)/far/deep/node")
    #expect(await news.next() == "far/deep/node")
    let file = try #require(fopen("\(directory)/far/deep/node", "w"))
    fputs("new", file)
    fclose(file)
    #expect(await news.next() == "far/deep/node")
    make("\(directory)/other")
    #expect(rename("\(directory)/other", "\(directory)/far/deep/node") == 0)
    #expect(await news.next() == "far/deep/node")
    make("\(directory)/other")
    #expect(symlink("other", "\(directory)/far/new") == 0)
    #expect(rename("\(directory)/far/new", link) == 0)
    #expect(await news.next() == "other")
    #expect(failures.withLock { $0.map(\.errno) } == [error])
    await end(watch)
    removeAll()
  }

  @Test("leaves no descriptor open, wherever it is cancelled")
  func cancelled() async throws {
    let path = "\(directory)/node"
    for delay in 0..<20 {
      if delay == 19 { until { watchCount() == 0 } }  // the watch counted below is the one made here
      let watch = await lane.ask { lane, answer in
        answer(OnLane(value: NodeWatch(path: path, on: lane.poller, changed: {})))
      }
      // Cancels a few lane visits later each time, to reach every state.
      for _ in 0..<delay { await lane.ask { _, answer in answer(()) } }
      if delay == 19 { until { watchCount() > 0 } }
      await lane.ask { _, answer in
        watch.value.cancel()
        answer(())
      }
    }
    until { watchCount() == 0 }  // they close on their own queues
    lane.stop()
    removeAll()
  }

  private func until(_ condition: () -> Bool, sourceLocation: SourceLocation = #_sourceLocation) {
    let deadline = monotonicNanoseconds() + Patience.nanoseconds
    while monotonicNanoseconds() < deadline {
      if condition() { return }
      usleep(1000)
    }
    Issue.record("not within \(Patience.seconds) s", sourceLocation: sourceLocation)
  }

  private func watchCount() -> Int { watches(of: directory) }
}

/// How many descriptors of this process watch the file or directory at `path` (proc(5), fdinfo).
func watches(of path: String) -> Int {
  var status = stat()
  guard stat(path, &status) == 0 else { return -1 }
  let ours = "inotify wd:"
  let inode = " ino:\(String(status.st_ino, radix: 16)) "
  return FileSystem.names(in: "/proc/self/fdinfo").count { name in
    guard let text = FileSystem.text(of: "/proc/self/fdinfo/\(name)") else { return false }
    return text.split(separator: "\n").contains {
      $0.hasPrefix(ours) && $0.contains(inode)
    }
  }
}

extension AsyncIteratorProtocol where Element: Equatable, Failure == Never {
  /// Whether `wanted` comes before the sequence ends; the test's time limit ends it.
  fileprivate mutating func reaches(_ wanted: Element) async -> Bool {
    while let element = await next(isolation: #isolation) {
      if element == wanted { return true }
    }
    return false
  }
}

private func linkTarget(_ path: String) -> String? {
  var buffer = [UInt8](repeating: 0, count: 4096)
  let count = buffer.withUnsafeMutableBytes { readlink(path, $0.baseAddress!, $0.count) }
  return count < 0 ? nil : String(decoding: buffer[..<count], as: UTF8.self)
}

private func mode(of path: String) -> UInt32? {
  var status = stat()
  return stat(path, &status) == 0 ? status.st_mode & 0o777 : nil
}

extension Descriptor {
  fileprivate borrowing func duplicate() -> Descriptor { Descriptor(owning: fcntl(raw, F_DUPFD_CLOEXEC, 0)) }
}
