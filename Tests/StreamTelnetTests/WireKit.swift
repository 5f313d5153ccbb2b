// Telnet written by hand, so that the codec is not tested against itself, and a stream over a scripted one.

import StreamTestKit

@testable import ByteStreams
@testable import StreamTelnet

/// The bytes of RFC 854 and RFC 2217.
enum Wire {
  static let iac: UInt8 = 255
  static let end: UInt8 = 240
  static let nop: [UInt8] = [255, 241]
  static let breakKey: [UInt8] = [255, 243]
  static let areYouThere: [UInt8] = [255, 246]
  static func will(_ option: UInt8) -> [UInt8] { [255, 251, option] }
  static func wont(_ option: UInt8) -> [UInt8] { [255, 252, option] }
  static func `do`(_ option: UInt8) -> [UInt8] { [255, 253, option] }
  static func dont(_ option: UInt8) -> [UInt8] { [255, 254, option] }

  /// Data with each 255 doubled.
  static func data(_ bytes: [UInt8]) -> [UInt8] { bytes.flatMap { $0 == 255 ? [255, 255] : [$0] } }

  /// Data by the rules of a terminal: CR alone is CR NUL.
  static func text(_ bytes: [UInt8]) -> [UInt8] {
    var wire: [UInt8] = []
    for (place, byte) in bytes.enumerated() {
      wire += data([byte])
      if byte == 13, place + 1 < bytes.count, bytes[place + 1] != 10 { wire.append(0) }
    }
    return wire
  }

  static func subnegotiation(_ content: [UInt8], of option: UInt8 = 44) -> [UInt8] {
    [255, 250, option] + data(content) + [255, 240]
  }
}

// MARK: - Decoding

/// What a decoder produced from bytes in pieces: data and tokens, each at its place.
struct Heard: Equatable {
  enum Item: Equatable {
    case data([UInt8])
    case token(TelnetDecoder.Token)
  }
  var items: [Item] = []
  var isBroken = false

  mutating func add(_ bytes: some Sequence<UInt8>) {
    let more = Array(bytes)
    guard !more.isEmpty else { return }
    if case .data(let before)? = items.last {
      items[items.count - 1] = .data(before + more)
    } else {
      items.append(.data(more))
    }
  }

  var bytes: [UInt8] { items.flatMap { if case .data(let bytes) = $0 { bytes } else { [UInt8]() } } }
  var tokens: [TelnetDecoder.Token] { items.compactMap { if case .token(let token) = $0 { token } else { nil } } }
}

/// Decodes each of `pieces` in place, or with `room` into runs of that many bytes.
func decode(_ pieces: [[UInt8]], binary: Bool, room: Int? = nil) -> Heard {
  var decoder = TelnetDecoder()
  decoder.isBinary = binary
  return decode(pieces, with: &decoder, room: room)
}

func decode(_ pieces: [[UInt8]], with decoder: inout TelnetDecoder, room: Int? = nil) -> Heard {
  var heard = Heard()
  for piece in pieces where !heard.isBroken {
    do {
      if let room {
        try decode(piece, into: room, &decoder, &heard)
      } else {
        try decodeInPlace(piece, &decoder, &heard)
      }
    } catch { heard.isBroken = true }
  }
  return heard
}

private func decodeInPlace(_ piece: [UInt8], _ decoder: inout TelnetDecoder, _ heard: inout Heard) throws {
  var piece = piece
  try piece.withUnsafeMutableBytes { run in
    var progress = TelnetDecoder.Progress()
    var handedOut = 0
    while true {
      defer {
        heard.add(run[handedOut..<progress.made])
        handedOut = progress.made
      }
      let token = try decoder.decode(UnsafeRawBufferPointer(run), into: run, &progress)
      heard.add(run[handedOut..<progress.made])
      handedOut = progress.made
      guard let token else { break }
      heard.items.append(.token(token))
    }
    precondition(progress.used == run.count, "a run is never full in place")
  }
}

private func decode(_ piece: [UInt8], into room: Int, _ decoder: inout TelnetDecoder, _ heard: inout Heard) throws {
  var place = [UInt8](repeating: 0, count: room)
  var used = 0
  while used < piece.count {
    var progress = TelnetDecoder.Progress()
    let token = try place.withUnsafeMutableBytes { place in
      defer { heard.add(place[..<progress.made]) }
      return try piece[used...].withUnsafeBytes { try decoder.decode($0, into: place, &progress) }
    }
    used += progress.used
    if let token { heard.items.append(.token(token)) }
    precondition(token != nil || progress.used > 0, "it does not get on")
  }
}

// MARK: - A stream

/// A telnet stream over a scripted one, on a clock that the test advances.
struct Rig {
  let clock = ManualClock()
  let poller: Poller
  let below: ScriptedStream
  let stream: TelnetStream
  let recorder = EventRecorder()

  /// What was negotiated before the test.
  enum Terms {
    /// Everything, COM-PORT too.
    case agreed
    /// Nothing: data are text for a terminal.
    case nothing
  }

  init(
    _ below: ScriptedStream = ScriptedStream(takesAll: true), as role: TelnetRole = .server, _ terms: Terms = .agreed,
    keepalive: Duration? = nil, suspends: Bool = true, early: [UInt8] = []
  ) throws {
    self.below = below
    poller = try Poller(clock: clock.clock) { _ in }
    var settings = TelnetStream.Settings(role, keepalive: keepalive)
    settings.suspends = suspends
    stream = TelnetStream(
      over: below, settings, terms == .agreed ? .agreed(role) : TelnetNegotiation(.of(role)), early: early, on: poller)
    stream.delegate = recorder
  }

  /// Supplies `bytes` and reads until nothing is left.
  func handle(_ bytes: [UInt8]) throws -> [UInt8] {
    below.willRead(.bytes(bytes))
    return try readAll()
  }

  func readAll() throws -> [UInt8] {
    var received: [UInt8] = []
    while let some = try stream.readSome() { received += some }
    return received
  }

  /// As a pump that meets the end: whatever follows `bytes` is an error.
  func readUntilItBreaks() -> (bytes: [UInt8], error: (any Error)?) {
    var received: [UInt8] = []
    do {
      while let some = try stream.readSome() { received += some }
      return (received, nil)
    } catch { return (received, error) }
  }

  func tellSpace() { report(.hasSpaceAvailable) }

  /// Sends an event of the stream below, as the poller does.
  func report(_ event: ByteStreamEvent) { below.delegate?.stream(below, handle: event) }

  /// What the lane was asked to do again.
  func nextRound() { poller.runAgain() }

  func pass(_ time: Duration) {
    clock.advance(by: time)
    poller.timers.fireDue()
  }
}

extension TelnetNegotiation.Policy {
  static func of(_ role: TelnetRole) -> Self { role == .server ? .server(comPort: true) : .client(comPort: true) }
}

extension TelnetNegotiation {
  /// After both sides have agreed to everything.
  static func agreed(_ role: TelnetRole) -> TelnetNegotiation {
    var (negotiation, answer) = (TelnetNegotiation(.of(role)), [UInt8]())
    for option in TelnetOption.allCases {
      negotiation.receive(.do, option.rawValue, &answer)
      negotiation.receive(.will, option.rawValue, &answer)
    }
    return negotiation
  }
}

/// The other end of the wire, in binary: data only.
struct WireEnd: FarParty {
  let below: FarEnd

  func send(_ bytes: [UInt8]) throws { try below.send(Wire.data(bytes)) }

  /// The next data; empty at the end.
  func receive() throws -> [UInt8] {
    var wire = try below.receive(upTo: 65_536)
    // A pair may be cut.
    if wire.reversed().prefix(while: { $0 == 255 }).count % 2 == 1 { wire += try below.receive(exactly: 1) }
    var data: [UInt8] = []
    var rest = wire[...]
    while let byte = rest.popFirst() {
      if byte == 255, rest.popFirst() != 255 { throw SystemError("a command among data", 71) }
      data.append(byte)
    }
    return data
  }

  func finishWriting() { below.finishWriting() }
  func close() { below.close() }
}
