// Model of a route's recording (`capture`): all that passes between the gateway and an open device while the route is
// recorded, in its order. In the end the recording's files must have exactly that.

import Dispatch
import Glibc

@testable import ByteStreams
@testable import GatewayKit

final class RecordingModel {
  private unowned let run: PolicyRun
  /// Set while the route is recorded, and once it was.
  private var isOn = false
  private(set) var wasOn = false
  /// The bytes that passed while it was, and for each whether it went to the device.
  private var bytes: [UInt8] = []
  private var areUp: [Bool] = []
  /// Room in the gateway's buffer that may be used.
  private var waiting = 0

  init(_ run: PolicyRun) { self.run = run }

  /// What a route's `capture` may be.
  static func settings(_ number: Int) -> Config.Capture? {
    // Without rotation: the events of hours of tries to open a device would make thousands of files.
    number & 3 == 1 ? Config.Capture(file: "x", format: .hex, rotate: nil, keep: nil) : nil
  }

  func begins(_ capture: Config.Capture?) {
    isOn = capture != nil
    wasOn = wasOn || isOn
  }

  /// Bytes pass between the gateway and the open device.
  func passes(_ run: UnsafeRawBufferPointer, up: Bool) {
    guard isOn, !run.isEmpty else { return }
    bytes += run
    areUp += repeatElement(up, count: run.count)
    fills(run.count)
  }

  private func fills(_ count: Int) {
    waiting += CaptureBuffer.header + count + MemoryLayout<CaptureLoss>.size
    guard waiting > CaptureBuffer.capacity / 4 else { return }
    run.world.recordings.write()
    waiting = 0
  }

  /// The route has stopped, so all is in the files.
  func mustBeWritten() {
    guard wasOn else { return }
    run.world.recordings.write()
    let lines = run.world.recordings.lines
    var place = 0
    for line in lines {
      // "2026-11-27T21:10:03.123456+00:00 > 68 65 6c", then at the 49th place of the bytes the same as text
      let parts = line.dropFirst(33)
      guard let mark = parts.first, parts.count > 1 else {
        return run.fail("a recording has the line \(Self.text(line))")
      }
      guard mark != UInt8(ascii: "-") else {
        if Self.text(line).contains("missing here") { return run.fail("a recording says: \(Self.text(line))") }
        continue
      }
      let recorded = parts.dropFirst(2).prefix(48).split(separator: 0x20)
        .compactMap { UInt8(String(decoding: $0, as: UTF8.self), radix: 16) }
      let end = place + recorded.count
      let isUp = mark == UInt8(ascii: ">")
      let isRight =
        end <= bytes.count && bytes[place..<end] == recorded[...] && areUp[place..<end].allSatisfy { $0 == isUp }
      guard isRight else {
        return run.fail("the recording has, after \(place) bytes that passed, \(Self.text(line))")
      }
      place = end
    }
    if place < bytes.count { run.fail("the recording ends after \(place) of \(bytes.count) bytes that passed") }
  }

  /// Returns whether the writer reports this, on its queue.
  func hears(_ event: StatusEvent) -> Bool {
    switch event {
    case .captureBegun: break
    case .captureStopped(_, let path, let error): run.fail("the recording has stopped: \(path): \(error)")
    case .captureDrops(_, _, let loss, _): run.fail("\(loss) is not recorded")
    default:
      if isOn { fills(Self.longestText) }
      return false
    }
    return true
  }
  private static let longestText = 256

  private static func text(_ line: some Sequence<UInt8>) -> String { String(decoding: Array(line), as: UTF8.self) }
}

/// Where the recordings of all inputs go: a folder that is there while an input is recorded, and a queue that works only
/// when it is told to.
final class RecordingFolder {
  private let path: String
  private let queue: DispatchQueue
  let environment: CaptureEnvironment

  init(_ rig: PollerRig) throws(Broken) {
    var template = Array("/tmp/baudway-fuzz-XXXXXX".utf8CString)
    let made = template.withUnsafeMutableBufferPointer { mkdtemp($0.baseAddress!).map { String(cString: $0) } }
    guard let made else { throw Broken("no folder for recordings: \(errno)") }
    rmdir(made)  // the gateway makes it again
    path = made
    // `unsafe`, because this thread waits while the queue works.
    nonisolated(unsafe) let rig = rig
    environment = CaptureEnvironment(
      stateFolder: path, clock: QueueClock(now: { rig.now }, run: { _, _, _ in }), wallTime: { rig.now })
    queue = environment.queues.queue(of: path + "/")
    queue.suspend()
  }

  deinit { queue.resume() }

  /// Does what has been asked for, and waits for that.
  func write() {
    queue.resume()
    queue.sync {}
    queue.suspend()
  }

  private func file(_ number: Int) -> String { "\(path)/x\(number == 1 ? "" : "~\(number)")" }

  /// Of all files, in the order in which they began.
  var lines: [ArraySlice<UInt8>] {
    var bytes: [UInt8] = []
    var piece = [UInt8](repeating: 0, count: 1 << 16)
    var number = 1
    while let file = fopen(file(number), "r") {
      while case let count = fread(&piece, 1, piece.count, file), count > 0 { bytes += piece[..<count] }
      fclose(file)
      number += 1
    }
    return bytes.split(separator: UInt8(ascii: "\n"))
  }

  func remove() {
    var number = 1
    while unlink(file(number)) == 0 { number += 1 }
    rmdir(path)
  }
}
