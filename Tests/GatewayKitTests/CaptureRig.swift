// A recording without a hub: the test is its lane, on a manual clock, and reads the files.

import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// A folder that is removed with its files.
final class CaptureFolder: Sendable {
  let path: String

  init() {
    var template = Array("/tmp/baudway-capture-XXXXXX".utf8CString)
    path = template.withUnsafeMutableBufferPointer { String(cString: mkdtemp($0.baseAddress!)!) }
  }

  deinit {
    for name in names { unlink("\(path)/\(name)") }
    rmdir(path)
  }

  /// In order.
  var names: [String] {
    guard let folder = opendir(path) else { return [] }
    defer { closedir(folder) }
    var names: [String] = []
    while let entry = readdir(folder) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      if !name.hasPrefix(".") { names.append(name) }
    }
    return names.sorted()
  }

  func bytes(_ name: String) -> [UInt8] {
    let raw = open("\(path)/\(name)", O_RDONLY | O_CLOEXEC)
    guard raw >= 0 else { return [] }
    defer { close(raw) }
    var bytes: [UInt8] = []
    var piece = [UInt8](repeating: 0, count: 65536)
    while true {
      let count = read(raw, &piece, piece.count)
      guard count > 0 else { return bytes }
      bytes += piece[..<count]
    }
  }

  func text(_ name: String) -> String { String(decoding: bytes(name), as: UTF8.self) }
}

final class CaptureRig {
  let folder = CaptureFolder()
  let story = Story()
  let poller: Poller
  let clock = ManualClock()
  let queueClock = ManualQueueClock()
  let counts = CaptureCounts()
  let descriptors = DescriptorBudget(limit: 100)
  private let wall: Wall
  let environment: CaptureEnvironment
  let settings: Config.Capture
  private(set) var tap: CaptureTap!

  /// 2026-11-27T21:10:03.123456Z
  static let start: UInt64 = 1_795_813_803_123_456_000

  private final class Wall: Sendable {
    let time = Atomic<UInt64>(CaptureRig.start)
  }

  /// `change` may set keys of `capture`; the file's name is `x`, with the usual ending.
  init(
    _ format: Config.Capture.Format = .raw, capacity: Int = CaptureBuffer.capacity,
    _ change: (inout Config.Capture) -> Void = { _ in }
  ) throws {
    poller = try Poller(clock: clock.clock) { _ in }
    let wall = Wall()
    self.wall = wall
    environment = CaptureEnvironment(
      stateFolder: folder.path, descriptors: descriptors, clock: queueClock.clock,
      wallTime: { wall.time.load(ordering: .relaxed) })
    var settings = Config.Capture()
    settings.format = format
    settings.file = "x.\(format.ending)"
    change(&settings)
    self.settings = settings
    tap = try CaptureTap(
      CaptureSubject(route: "gps", endpoint: "sim://nmea"), settings, counts: counts, on: poller, environment,
      story.sink, capacity: capacity)
    settle()
  }

  /// Somebody sets the machine's clock.
  func setBack(by time: Duration) { wall.time.subtract(time.nanoseconds, ordering: .relaxed) }

  /// All clocks.
  func advance(by time: Duration) {
    wall.time.add(time.nanoseconds, ordering: .relaxed)
    clock.advance(by: time)
    poller.timers.fireDue()
    settle()
    queueClock.advance(by: time)
  }

  /// Waits until the writer has done what it was asked to do.
  func settle() { environment.queues.settle() }

  /// The queue on which the writer works.
  var queue: DispatchQueue { environment.queues.queue(of: folder.path + "/") }

  func send(_ bytes: [UInt8]) { bytes.withUnsafeBytes { tap.sent($0) } }
  func receive(_ bytes: [UInt8]) { bytes.withUnsafeBytes { tap.received($0) } }
  func receive(_ text: String) { receive(Array(text.utf8)) }

  func end() {
    tap.end()
    settle()
    settle()  // a long recording takes several turns
  }

  var begun: [String] {
    story.all.compactMap { if case .captureBegun(_, let path) = $0 { path } else { nil } }
  }
  var stopped: [SystemError] {
    story.all.compactMap { if case .captureStopped(_, _, let error) = $0 { error } else { nil } }
  }
  /// What the log says of losses, and why the recording had stopped.
  var losses: [CaptureLoss] {
    story.all.compactMap { if case .captureDrops(_, _, let loss, _) = $0 { loss } else { nil } }
  }
  var causes: [SystemError?] {
    var causes: [SystemError?] = []
    for case .captureDrops(_, _, _, let error) in story.all { causes.append(error) }
    return causes
  }
}

/// A tap with one recording, into files.
extension CaptureTap {
  convenience init(
    _ subject: CaptureSubject, _ settings: Config.Capture, counts: CaptureCounts, on poller: Poller,
    _ environment: CaptureEnvironment, _ status: StatusSink, capacity: Int = CaptureBuffer.capacity
  ) throws(SystemError) {
    self.init(environment.wallTime)
    let buffer = try CaptureBuffer(capacity: capacity, counts: counts)
    let writer = CaptureWriter(subject, settings, from: buffer, environment, status)
    writer.begin()
    add(CaptureOutlet(buffer, to: writer, on: poller, retryEvery: settings.rotateEvery))
  }

  var state: CaptureState { (outlets[0].drain as? CaptureWriter)?.state ?? CaptureState() }
  func retry() { outlets[0].retry() }
  func end(then done: @escaping @Sendable () -> Void = {}) { for outlet in outlets { end(outlet, then: done) } }
}

/// A reader of pcapng for tests, written from the format's description.
struct PcapngReader {
  struct Packet: Equatable {
    var time: UInt64
    var seconds: UInt32
    var microseconds: UInt32
    var event: UInt8
    var lines: UInt8
    var footer: UInt16
    var data: [UInt8]
    var comment: String?
    var flags: UInt32?
  }

  private(set) var linkType: UInt16?
  private(set) var interface: [UInt16: [UInt8]] = [:]
  private(set) var section: [UInt16: [UInt8]] = [:]
  private(set) var packets: [Packet] = []

  struct Malformed: Error { let text: String }

  init(_ file: [UInt8]) throws {
    var rest = file[...]
    while !rest.isEmpty {
      let (type, length) = (try Self.u32(rest), Int(try Self.u32(rest.dropFirst(4))))
      guard length % 4 == 0, length >= 12, length <= rest.count else { throw Malformed(text: "length \(length)") }
      guard Int(try Self.u32(rest.dropFirst(length - 4))) == length else { throw Malformed(text: "lengths differ") }
      let body = rest.dropFirst(8).prefix(length - 12)
      rest = rest.dropFirst(length)
      switch type {
      case 0x0A0D_0D0A:
        guard try Self.u32(body) == 0x1A2B_3C4D, try Self.u16(body.dropFirst(4)) == 1 else {
          throw Malformed(text: "section")
        }
        section = try Self.options(body.dropFirst(16))
      case 1:
        linkType = try Self.u16(body)
        interface = try Self.options(body.dropFirst(8))
      case 6:
        let captured = Int(try Self.u32(body.dropFirst(12)))
        guard try Self.u32(body) == 0, captured >= 12, try Self.u32(body.dropFirst(16)) == captured else {
          throw Malformed(text: "packet")
        }
        let time = UInt64(try Self.u32(body.dropFirst(4))) << 32 | UInt64(try Self.u32(body.dropFirst(8)))
        let data = body.dropFirst(20).prefix(captured)
        let header = Array(data.prefix(12))
        let big = { (from: Int) in header[from..<(from + 4)].reduce(UInt32(0)) { $0 << 8 | UInt32($1) } }
        let options = try Self.options(body.dropFirst(20 + (captured + 3) & ~3))
        packets.append(
          Packet(
            time: time, seconds: big(0), microseconds: big(4), event: header[8], lines: header[9],
            footer: UInt16(header[10]) << 8 | UInt16(header[11]), data: Array(data.dropFirst(12)),
            comment: options[1].map { String(decoding: $0, as: UTF8.self) },
            flags: try options[2].map { try Self.u32($0[...]) }))
      default: throw Malformed(text: "block \(type)")
      }
    }
  }

  func data(_ event: UInt8) -> [UInt8] { packets.filter { $0.event == event }.flatMap(\.data) }

  private static func options(_ bytes: ArraySlice<UInt8>) throws -> [UInt16: [UInt8]] {
    var options: [UInt16: [UInt8]] = [:]
    var rest = bytes
    while !rest.isEmpty {
      let (code, length) = (try u16(rest), Int(try u16(rest.dropFirst(2))))
      if code == 0 {
        guard length == 0, rest.count == 4 else { throw Malformed(text: "after the last option") }
        return options
      }
      guard rest.count >= 4 + (length + 3) & ~3 else { throw Malformed(text: "option \(code)") }
      options[code] = Array(rest.dropFirst(4).prefix(length))
      rest = rest.dropFirst(4 + (length + 3) & ~3)
    }
    return options
  }

  private static func u16(_ bytes: ArraySlice<UInt8>) throws -> UInt16 {
    guard bytes.count >= 2 else { throw Malformed(text: "cut short") }
    return bytes.prefix(2).reversed().reduce(0) { $0 << 8 | UInt16($1) }
  }

  private static func u32(_ bytes: ArraySlice<UInt8>) throws -> UInt32 {
    guard bytes.count >= 4 else { throw Malformed(text: "cut short") }
    return bytes.prefix(4).reversed().reduce(0) { $0 << 8 | UInt32($1) }
  }
}
