import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A recording")
struct CaptureWriterTests {
  @Test("is in its file a fifth of a second after the bytes, with mode 0600")
  func written() throws {
    let rig = try CaptureRig(.pcapng)
    #expect(rig.begun == ["\(rig.folder.path)/x.pcapng"])
    rig.send([1, 2])
    rig.receive([3])
    rig.advance(by: .milliseconds(200))
    let file = try PcapngReader(rig.folder.bytes("x.pcapng"))
    #expect(file.data(1) == [1, 2] && file.data(2) == [3])
    var facts = stat()
    #expect(lstat("\(rig.folder.path)/x.pcapng", &facts) == 0 && facts.st_mode == S_IFREG | 0o600)
    #expect(rig.counts.bytesWritten == UInt64(rig.folder.bytes("x.pcapng").count))
    #expect(rig.tap.state == CaptureState(path: "\(rig.folder.path)/x.pcapng"))
    rig.end()
    #expect(try PcapngReader(rig.folder.bytes("x.pcapng")).packets.last?.event == 6, "its end is in it")
  }

  @Test("is written at once when half of its buffer is full")
  func half() throws {
    let rig = try CaptureRig(capacity: 8192)
    rig.receive(pattern(0..<3000))
    rig.settle()
    #expect(rig.folder.bytes("x.raw").isEmpty)
    rig.receive(pattern(0..<3000))
    rig.settle()
    #expect(rig.folder.bytes("x.raw").count == 6000)
    rig.end()
  }

  @Test("of text has a line that does not end half a second later at most, and no earlier")
  func unfinishedLine() throws {
    let rig = try CaptureRig(.text)
    rig.receive("one\nlogin: ")
    rig.advance(by: .milliseconds(200))
    #expect(rig.folder.text("x.txt").hasSuffix(" < one\\n\n"))
    try rig.queueClock.waitForAlarm()
    rig.queueClock.advance(by: .milliseconds(299))  // 200 are over
    #expect(!rig.folder.text("x.txt").contains("login"))
    rig.queueClock.advance(by: .milliseconds(1))
    rig.settle()
    #expect(rig.folder.text("x.txt").hasSuffix(" < login: \n"))
    rig.end()
  }

  @Test("never writes over a file, or to its end")
  func existing() throws {
    let rig = try CaptureRig()
    rig.receive([1])
    rig.end()
    let other = try CaptureTap(
      CaptureSubject(route: "gps", endpoint: ""), rig.settings, counts: rig.counts, on: rig.poller, rig.environment,
      rig.story.sink)
    [UInt8(2)].withUnsafeBytes { other.received($0) }
    other.end()
    rig.settle()
    #expect(rig.folder.names == ["x.raw", "x~2.raw"])
    #expect(rig.folder.bytes("x.raw") == [1] && rig.folder.bytes("x~2.raw") == [2])
  }

  @Test("does not follow a link that has its file's name")
  func link() throws {
    let rig = try CaptureRig { $0.file = "y.raw" }
    symlink("/dev/null", "\(rig.folder.path)/x.raw")
    var settings = rig.settings
    settings.file = "x.raw"
    let other = try CaptureTap(
      CaptureSubject(route: "gps", endpoint: ""), settings, counts: rig.counts, on: rig.poller, rig.environment,
      rig.story.sink)
    [UInt8(2)].withUnsafeBytes { other.received($0) }
    other.end()
    rig.settle()
    #expect(rig.folder.bytes("x~2.raw") == [2])
    rig.end()
  }

  @Test(
    "over files of a size has every byte once and in order",
    arguments: [Config.Capture.Format.pcapng, .raw])
  func sizes(format: Config.Capture.Format) throws {
    let rig = try CaptureRig(format) {
      $0.rotate = 4096
      $0.keep = nil
    }
    let sent = pattern(0..<100_000)
    for start in stride(from: 0, to: sent.count, by: 1000) {
      rig.receive(Array(sent[start..<(start + 1000)]))
      if start % 20_000 == 0 { rig.advance(by: .milliseconds(200)) }
    }
    rig.end()
    var got: [UInt8] = []
    let names = rig.begun.map { String($0.dropFirst(rig.folder.path.count + 1)) }
    #expect(names.count >= 20 && names.sorted() == rig.folder.names)
    for name in names {
      let bytes = rig.folder.bytes(name)
      #expect(bytes.count < 4096 + 1000 + 64)
      got += format == .raw ? bytes : try PcapngReader(bytes).data(2)
    }
    #expect(got == sent)
    #expect(rig.counts.bytesDropped == 0)
  }

  @Test("keeps as many older files as it is told, and leaves files of others alone")
  func keep() throws {
    let rig = try CaptureRig {
      $0.rotate = 4096
      $0.keep = 2
    }
    let others = ["x.raw.old", "y.raw", "x~.raw", "x~1.raw"]
    for name in others { close(open("\(rig.folder.path)/\(name)", O_CREAT | O_WRONLY, 0o600)) }
    rig.receive(pattern(0..<40_960))
    for _ in 0..<9 { rig.receive(pattern(0..<4096)) }
    rig.end()
    let ours = rig.folder.names.filter { !others.contains($0) }
    #expect(
      ours.count == 3
        && rig.begun.suffix(3).map { $0.split(separator: "/").last.map(String.init) }
          .allSatisfy { ours.contains($0 ?? "") }
    )
    #expect(rig.folder.names.count == 3 + others.count)
  }

  @Test("leaves no empty file, and one that a crash has left takes no other's place")
  func empty() throws {
    let rig = try CaptureRig()
    rig.end()
    #expect(rig.folder.names.isEmpty)
    for (name, text) in [("x.raw", "a"), ("x~2.raw", "b"), ("x~3.raw", "c"), ("x~4.raw", ""), ("x~5.raw", "")] {
      let raw = open("\(rig.folder.path)/\(name)", O_CREAT | O_WRONLY, 0o600)
      #expect(write(raw, text, text.utf8.count) == text.utf8.count)
      close(raw)
    }
    let name = CaptureName("x.raw", route: "gps", stateFolder: rig.folder.path)
    CaptureFile.prune(name, keep: 2, besides: "\(rig.folder.path)/x~5.raw")
    #expect(rig.folder.names == ["x~2.raw", "x~3.raw", "x~5.raw"])
  }

  @Test("begins a file at each multiple of a time, with the time in its name")
  func times() throws {
    let rig = try CaptureRig {
      $0.file = "x-{date}.raw"
      $0.rotateEvery = .seconds(3600)
    }
    rig.receive([1])
    rig.advance(by: .seconds(50 * 60 - 4))  // 21:59:59
    rig.receive([2])
    rig.advance(by: .seconds(1))  // 22:00:00
    rig.receive([3])
    rig.advance(by: .seconds(7200))
    rig.receive([4])
    rig.end()
    #expect(
      rig.folder.names == ["x-20261127T211003Z.raw", "x-20261127T220000Z.raw", "x-20261128T000000Z.raw"])
    #expect(rig.folder.names.map { rig.folder.bytes($0) } == [[1, 2], [3], [4]])
  }

  @Test("drops what has no room while the disk hangs, counts it, and says so itself, in status and in the log")
  func hang() throws {
    let rig = try CaptureRig(.pcapng, capacity: 64 << 10)
    let gate = DispatchSemaphore(value: 0)
    rig.queue.async { gate.wait() }  // a write that hangs
    for _ in 0..<100 { rig.receive(pattern(0..<1000)) }
    let dropped = rig.counts.bytesDropped
    #expect(dropped > 0 && dropped < 100_000 && dropped % 1000 == 0)
    gate.signal()
    rig.settle()
    rig.receive([7])
    rig.end()
    let file = try PcapngReader(rig.folder.bytes("x.pcapng"))
    #expect(file.data(2).count == 100_001 - Int(dropped))
    let lost = try #require(file.packets.first { $0.event == 5 })
    #expect(lost.comment == "missing here: \(dropped) bytes; the disk was too slow")
    #expect(rig.losses == [CaptureLoss(bytes: dropped)] && rig.causes == [nil])
  }

  @Test("reports at its end what had no room, and that it ends, although there was no room for that either")
  func fullAtItsEnd() throws {
    let rig = try CaptureRig(.pcapng, capacity: 4096)
    let gate = DispatchSemaphore(value: 0)
    rig.queue.async { gate.wait() }
    rig.receive(pattern(0..<4040))
    rig.receive(pattern(0..<1000))
    rig.tap.report(.link(.closed))
    gate.signal()
    rig.end()
    let file = try PcapngReader(rig.folder.bytes("x.pcapng"))
    #expect(file.packets.map(\.event) == [2, 5, 6])
    let words = ["missing here: 1000 bytes and 1 event; the disk was too slow", "the recording ends here"]
    #expect(file.packets.compactMap(\.comment) == words)
    #expect(rig.losses == [CaptureLoss(bytes: 1000, events: 1)])
  }

  @Test("says what it lost while it had stopped, and why, in the next file and in the log", arguments: [true, false])
  func stoppedMeanwhile(beginsAgain: Bool) throws {
    let rig = try CaptureRig()
    var settings = rig.settings
    settings.format = .pcapng
    settings.file = "x.raw/y.pcapng"  // below a file
    let other = try CaptureTap(
      CaptureSubject(route: "b", endpoint: ""), settings, counts: rig.counts, on: rig.poller, rig.environment,
      rig.story.sink)
    rig.settle()
    [UInt8](repeating: 1, count: 5).withUnsafeBytes { other.received($0) }
    other.report(.link(.closed))
    rig.end()  // which removes its file
    if beginsAgain {
      other.retry()
      rig.settle()
      [UInt8(3)].withUnsafeBytes { other.received($0) }
    }
    other.end()
    rig.settle()
    if beginsAgain {
      let file = try PcapngReader(rig.folder.bytes("x.raw/y.pcapng"))
      #expect(file.packets.map(\.event) == [5, 2, 6])
      let error = try #require(rig.stopped.first)
      #expect(file.packets.first?.comment == "missing here: 5 bytes and 1 event; the recording had stopped: \(error)")
    }
    #expect(rig.losses == [CaptureLoss(bytes: 5, events: 1)] && rig.causes.map { $0?.errno } == [ENOTDIR])
    unlink("\(rig.folder.path)/x.raw/y.pcapng")
    rmdir("\(rig.folder.path)/x.raw")
  }

  @Test("has a line in the log for losses at most every ten seconds, and none is left out")
  func lines() throws {
    let rig = try CaptureRig(.pcapng, capacity: 4096)
    for count in [100, 200, 300] {
      let gate = DispatchSemaphore(value: 0)
      rig.queue.async { gate.wait() }
      rig.receive(pattern(0..<4000))
      rig.receive(pattern(0..<count))
      gate.signal()
      rig.advance(by: .seconds(1))
      rig.receive([1])
      rig.advance(by: .seconds(1))
    }
    #expect(rig.losses.map(\.bytes) == [100])
    rig.advance(by: .seconds(10))
    #expect(rig.losses.map(\.bytes) == [100, 500])
    rig.end()
    #expect(rig.losses.count == 2)
  }

  @Test("goes on while the file system of another folder hangs")
  func otherFolder() throws {
    let rig = try CaptureRig()
    let gate = DispatchSemaphore(value: 0)
    rig.queue.async { gate.wait() }
    let folder = CaptureFolder()
    var settings = rig.settings
    settings.file = "\(folder.path)/y.raw"
    let other = try CaptureTap(
      CaptureSubject(route: "b", endpoint: ""), settings, counts: rig.counts, on: rig.poller, rig.environment,
      rig.story.sink)
    [UInt8(2)].withUnsafeBytes { other.received($0) }
    let ended = DispatchSemaphore(value: 0)
    other.end { ended.signal() }
    #expect(ended.wait(timeout: .now() + .seconds(Patience.seconds)) == .success)
    #expect(folder.bytes("y.raw") == [2])
    gate.signal()
    rig.end()
  }

  @Test("stops when its folder cannot be written to, with one event, and begins again when asked")
  func folder() throws {
    let rig = try CaptureRig { $0.file = "file/x.raw" }
    #expect(rig.stopped.isEmpty)  // it makes the folder
    rig.receive([1])
    rig.end()
    #expect(rig.folder.bytes("file/x.raw") == [1])
    var settings = rig.settings
    settings.file = "file/x.raw/y.raw"  // below a file
    let other = try CaptureTap(
      CaptureSubject(route: "gps", endpoint: ""), settings, counts: rig.counts, on: rig.poller, rig.environment,
      rig.story.sink)
    rig.settle()
    #expect(rig.stopped.map(\.errno) == [ENOTDIR])
    #expect(other.state.error?.contains("ENOTDIR") == true)
    [UInt8(2)].withUnsafeBytes { other.received($0) }
    #expect(rig.counts.bytesDropped == 1, "bytes that are not recorded are counted")
    rig.settle()
    #expect(rig.stopped.count == 1, "one event, whatever comes")
    unlink("\(rig.folder.path)/file/x.raw")
    other.retry()
    rig.settle()
    [UInt8(3)].withUnsafeBytes { other.received($0) }
    other.end()
    rig.settle()
    #expect(rig.folder.bytes("file/x.raw/y.raw") == [3])
    for name in ["file/x.raw/y.raw"] { unlink("\(rig.folder.path)/\(name)") }
    rmdir("\(rig.folder.path)/file/x.raw")
    rmdir("\(rig.folder.path)/file")
  }

  @Test("reserves the descriptor of its file until that is open, and again after a failure")
  func descriptor() throws {
    let rig = try CaptureRig()
    #expect(rig.descriptors.admits(99), "it has its file")
    var settings = rig.settings
    settings.file = "x.raw/y.raw"  // below a file
    let other = try CaptureTap(
      CaptureSubject(route: "b", endpoint: ""), settings, counts: rig.counts, on: rig.poller, rig.environment,
      rig.story.sink)
    rig.settle()
    #expect(rig.stopped.count == 1 && rig.descriptors.admits(98) && !rig.descriptors.admits(99))
    rig.end()  // which removes its file
    other.retry()
    rig.settle()
    #expect(rig.begun.count == 2 && rig.descriptors.admits(99))
    other.end()
    rig.settle()
    #expect(rig.descriptors.admits(99))
    rmdir("\(rig.folder.path)/x.raw")
  }

  @Test(
    "that has stopped begins again at the next time of rotate-every, whatever the machine's clock is set to meanwhile",
    arguments: [Duration.zero, .seconds(86400)])
  func again(setBack: Duration) throws {
    let rig = try CaptureRig {
      $0.file = "no/x-{date}.raw"
      $0.rotateEvery = .seconds(3600)
    }
    rig.end()
    let parent = "\(rig.folder.path)/no"
    for name in ["x-20261127T211003Z.raw"] { unlink("\(parent)/\(name)") }
    rmdir(parent)
    close(open(parent, O_CREAT | O_WRONLY, 0o600))
    let other = try CaptureTap(
      CaptureSubject(route: "gps", endpoint: ""), rig.settings, counts: rig.counts, on: rig.poller, rig.environment,
      rig.story.sink)
    rig.settle()
    #expect(rig.stopped.count == 1)
    unlink(parent)
    [UInt8(1)].withUnsafeBytes { other.received($0) }
    rig.advance(by: .seconds(60))
    [UInt8(2)].withUnsafeBytes { other.received($0) }
    rig.settle()
    #expect(rig.begun.count == 1, "not before")
    rig.setBack(by: setBack)
    rig.advance(by: .seconds(50 * 60))
    [UInt8(3)].withUnsafeBytes { other.received($0) }
    rig.settle()
    [UInt8(4)].withUnsafeBytes { other.received($0) }
    other.end()
    rig.settle()
    let name = setBack == .zero ? "x-20261127T220103Z.raw" : "x-20261126T220103Z.raw"
    #expect(rig.folder.bytes("no/\(name)") == [4])
    #expect(rig.counts.bytesDropped == 3)
    unlink("\(parent)/\(name)")
    rmdir(parent)
  }
}
