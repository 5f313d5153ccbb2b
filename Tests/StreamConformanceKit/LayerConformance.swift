// The same suite for every stream around another: it forwards all calls that it does not answer itself, and the other
// end understands its bytes. To join, a layer needs a rig and one test that calls `run`.

import ByteStreams
import Dispatch
import Glibc
import Testing

/// What a layer may answer itself; it forwards the rest.
public enum OwnAnswer: Sendable { case closeBehavior, finishWriting, interest }

/// A layer over a scripted stream, or over a descriptor.
public struct LayerForwarding {
  private let below: any ByteStream
  /// Nil over a descriptor: what only a scripted stream can show is not checked.
  private let script: ScriptedStream?
  private let layer: any LayeredStream
  private let ownAnswers: Set<OwnAnswer>

  /// `layer` wraps `below`, which has taken everything so far.
  public init(_ layer: any LayeredStream, over below: ScriptedStream, answersItself ownAnswers: Set<OwnAnswer> = []) {
    self.layer = layer
    self.below = below
    script = below
    self.ownAnswers = ownAnswers
  }

  /// For a layer that makes the stream below itself.
  public init(_ layer: any LayeredStream, over below: DescriptorStream, answersItself ownAnswers: Set<OwnAnswer> = []) {
    self.layer = layer
    self.below = below
    script = nil
    self.ownAnswers = ownAnswers
    below.metadata = StreamMetadata(DeviceFacts())
  }

  /// Ends with `abort()`, otherwise with `close()`.
  public func run(aborting: Bool) {
    facts()
    output()
    interest()
    events()
    ending(aborting: aborting)
  }

  private func facts() {
    script?.metadata = StreamMetadata(DeviceFacts())
    #expect(layer.metadata === below.metadata && layer.metadata != nil)
    #expect(layer.largestUnit == below.largestUnit)
    #expect(ownAnswers.contains(.closeBehavior) || layer.closeBehavior == below.closeBehavior)
    guard let below = script else { return }
    below.serialLine = ScriptedLine()
    #expect(layer.serialLine === below.serialLine)
    below.hasBufferedInput = true
    #expect(layer.hasBufferedInput)
    below.hasBufferedInput = false
    guard !ownAnswers.contains(.closeBehavior) else { return }
    for behavior in [
      CloseBehavior(canHalfClose: true), CloseBehavior(hasClosingHandshake: true),
      CloseBehavior(sendsCloseNotice: true),
    ] {
      below.closeBehavior = behavior
      #expect(layer.closeBehavior == behavior)
    }
    below.closeBehavior = CloseBehavior(canHalfClose: true)
  }

  private func output() {
    #expect(!layer.hasPendingOutput)
    guard let below = script else { return }
    below.hasPendingOutput = true
    #expect(layer.hasPendingOutput)
    below.hasPendingOutput = false
    for undelivered in [UndeliveredOutput.onItsWay(41), .lostAtClose(41), .lostAtClose(nil)] {
      below.undelivered = undelivered
      #expect(layer.undelivered == undelivered)
    }
  }

  private func interest() {
    layer.readerWaits = .readable
    layer.writerWaits = .writable
    #expect(below.readerWaits == .readable && (ownAnswers.contains(.interest) || below.writerWaits == .writable))
    layer.readerWaits = []
    layer.writerWaits = []
    #expect(below.interest == [])
  }

  private func events() {
    let recorder = EventRecorder()
    layer.delegate = recorder
    layer.readerWaits = .readable
    let events: [ByteStreamEvent] = [
      .hasBytesAvailable, .inputEnded, .errorOccurred(SystemError("read", EIO)), .endEncountered,
    ]
    for event in events { below.delegate?.stream(below, handle: event) }
    #expect(recorder.events == events)
    layer.readerWaits = []
  }

  private func ending(aborting: Bool) {
    let recorder = EventRecorder()
    layer.delegate = recorder
    if let below = script {
      layer.makeRoomForEnd()
      #expect(below.madeRoomForEnd)
      layer.limitUnsent(to: 4096)
      #expect(below.unsentLimits == [4096])
      layer.prepareToClose()
      #expect(below.isPrepared)
      layer.finishWriting()
      #expect(below.finishedWriting || ownAnswers.contains(.finishWriting))
    }
    if aborting { layer.abort() } else { layer.close() }
    #expect(script.map { $0.isClosed && $0.isAborted == aborting } ?? (below as? DescriptorStream)?.isClosed == true)
    #expect(recorder.closings == 1 && recorder.events.isEmpty)
    layer.delegate = recorder
    #expect(layer.delegate == nil)
  }
}

/// A layer and the other end of its wire, which speaks the layer's protocol.
public struct LayerCarriage {
  private let layer: any LayeredStream
  private let farEnd: any FarParty

  public init(_ layer: any LayeredStream, to farEnd: any FarParty) {
    self.layer = layer
    self.farEnd = farEnd
  }

  /// Bytes come back changed and in order, however they were written. If the layer is missing, or some bytes bypass it,
  /// the other end does not understand them. Closes the layer.
  public func run(on lane: isolated Lane) async throws {
    let farEnd = farEnd
    async let played: Void = onOwnThread { try farEnd.play(.changingEcho) }
    var random = SeededRandom()
    let seed = random.seed
    for chunk in [1, 2, 125, 126, 4000, 4000, 1, 30_000] {
      let bytes = random.bytes(chunk)
      let answer: [UInt8]
      if Bool.random(using: &random), chunk > 1 {
        let taken = try write(together: [Array(bytes[..<1]), Array(bytes[1...])])
        answer = try await layer.exchange(Array(bytes[taken...]), for: chunk, on: lane)
      } else {
        answer = try await layer.exchange(bytes, for: chunk, on: lane)
      }
      let isUnderstood = answer == FarPart.changed(bytes)
      #expect(isUnderstood, "\(chunk) bytes, seed \(seed)")  // comparing long arrays byte by byte takes minutes
    }
    try await expectCloses(layer, on: lane)
    try? await played  // if the answer to close_notify is dropped, some peers see a reset
  }

  private func write(together parts: [[UInt8]]) throws -> Int {
    let joined = parts.flatMap { $0 }
    let transfer = try joined.withUnsafeBytes { all in
      let cut = parts[0].count
      var runs = [
        iovec(iov_base: UnsafeMutableRawPointer(mutating: all.baseAddress!), iov_len: cut),
        iovec(iov_base: UnsafeMutableRawPointer(mutating: all.baseAddress! + cut), iov_len: all.count - cut),
      ]
      return try runs.withUnsafeMutableBufferPointer { try layer.write(together: $0) }
    }
    if case .moved(let count) = transfer { return count }
    return 0
  }
}

/// A closed stream returns `.ended`, reports only its close to its delegate, and may be closed again.
func expectCloses(_ stream: any ByteStream, on lane: isolated Lane) async throws {
  let recorder = EventRecorder()
  stream.delegate = recorder
  stream.readerWaits = .readable
  stream.writerWaits = .writable
  stream.close()
  let answers = (try stream.read(), try stream.write([1]))
  #expect(answers == (.ended, .ended))
  stream.readerWaits = []
  let gate = Gate()
  lane.poller.timers.after(.milliseconds(20)) { gate.open() }
  await gate.wait(on: lane)
  #expect(recorder.events.isEmpty && recorder.closings == 1)
  stream.abort()
  stream.delegate = recorder
  #expect(recorder.closings == 1 && stream.delegate == nil)
}
