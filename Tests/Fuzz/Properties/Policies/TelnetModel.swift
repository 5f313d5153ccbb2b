// Model of one telnet client: what it sends, as bytes and requests in their order, and what it gets: the device's
// bytes, and one answer to each request. Reads telnet in the simplest way. `TelnetFront` reports what the session reads
// and writes.

import Glibc
import StreamBroker
import StreamTelnet

@testable import ByteStreams
@testable import GatewayKit
@testable import StreamTelnet

final class TelnetModel: StreamAccount {
  private unowned let client: ClientModel
  private var run: PolicyRun { client.run }
  private var stream: PlayedStream { client.stream }
  private(set) var telnet: TelnetStream!

  init(_ client: ClientModel, banner: [UInt8]) {
    self.client = client
    expected = banner
    isText = Array(repeating: true, count: banner.count)
    textWords = Array(repeating: 0, count: banner.count)
  }

  private func fail(_ rule: String) { client.fail(rule) }

  // MARK: - What it sends

  /// All its data, and where each byte ends among what it sends.
  private(set) var plain: [UInt8] = []
  private var ends: [Int] = []
  /// How many of its data the session has read.
  private(set) var readCount = 0
  var left: Int { plain.count - readCount }
  /// Bytes that are still on their way, so that reads split commands.
  private var late: [UInt8] = []
  private var sendsBinary = false
  private var lastWasCR = false

  /// What both ends know of COM-PORT once all that it has sent is read.
  private enum Option { case asked, on, off }
  private var comPort: (local: Option, remote: Option) = (.asked, .asked)
  private var hasComPort: Bool { comPort.local == .on || comPort.remote == .on }
  /// It has COM-PORT, and had it since its first word.
  private(set) var keepsComPort = false
  private(set) var isSuspended = false
  /// Where it has suspended; nil once the session has read that it goes on.
  private var suspendedAt: Int?
  private var isSurelySuspended = false
  /// Where it went on.
  private var resumedAt = 0
  /// It takes nothing, as far as its session knows: that is not read while it is being ended, or keeps as much input as
  /// it may.
  var isSuspendedForSession: Bool { isSuspended || resumesBehindInput }
  /// It waits for its output and may so hold up the device, which then takes no more of its input, behind which it says
  /// that it goes on.
  var resumesBehindInput: Bool { stream.readCount < resumedAt }

  private func put(_ bytes: [UInt8], late count: Int = 0) {
    late += bytes
    let now = max(0, late.count - count)
    guard now > 0 else { return }
    stream.content += late[..<now]
    late.removeFirst(now)
    stream.arrived()
  }

  /// Everything arrives.
  func release() { put([]) }
  private var sentCount: Int { stream.content.count + late.count }

  func send(_ bytes: [UInt8]) {
    var encoded: [UInt8] = []
    let start = sentCount
    for byte in bytes {
      if !sendsBinary, lastWasCR, byte != 10 { encoded.append(0) }
      lastWasCR = byte == 13
      encoded += byte == 255 ? [255, 255] : [byte]
      plain.append(byte)
      ends.append(start + encoded.count)
    }
    put(encoded, late: [0, 1, 0, 2][plain.count & 3])
  }

  /// Resumes, and lets everything arrive.
  func becomesCalm() {
    guard !stream.hasEnded, stream.readFailure == nil else { return }
    if isSuspended { ask(.resume) } else { release() }
  }

  /// `how` names a command.
  func command(_ how: Int) {
    guard sentCount < 1 << 15, !stream.hasEnded, !stream.isBroken else { return }
    let value = how & 7
    func one(_ values: [UInt8]) -> UInt8 { values[value] }
    switch (how >> 3) % 13 {
    case 0: words(value)
    case 1:
      switch value {
      case 0: put([255, 241])
      case 1:
        asksWhetherThere += 1
        put([255, 246])
      case 2, 3: breakKey()
      default: ask(value & 1 == 0 ? .suspend : .resume)
      }
    case 2: ask(.baudRate([0, 9600, 115_200, 19_200, 9600, 300, 1, .max][value]))
    case 3: ask(.dataSize(one([0, 9, 8, 7, 8, 5, 6, 7])))
    case 4: ask(.parity(UInt8(value)))
    case 5: ask(.stopSize(one([0, 1, 2, 3, 4, 1, 2, 1])))
    case 6: ask(.control(UInt8(value)))
    case 7: ask(.control(UInt8(8 + value)))
    case 8: ask(.control(one([16, 17, 18, 19, 20, 255, 5, 6])))
    case 9: ask(.purge(one([1, 2, 3, 2, 0, 2, 3, 255])))
    case 10: ask(.lineStateMask(one([255, 255, 16, 0, 30, 255, 2, 12])))
    case 11: ask(.modemStateMask(one([255, 0, 16, 32, 240, 255, 255, 15])))
    default:
      switch value {
      case 0: ask(.lineState(0))
      case 1, 2: ask(.modemState(0))
      case 3, 4: ask(.signature([]))
      case 5: ask(.signature(Array("x".utf8)))
      default: ask(.signature(Array(Version.name.utf8)))
      }
    }
  }

  private func words(_ value: Int) {
    switch value {
    case 0:
      for option: UInt8 in [0, 1, 3, 44] { word(.do, option) }
      for option: UInt8 in [0, 3, 44] { word(.will, option) }
    case 1:
      word(.do, 44)
      word(.will, 44)
    case 2:
      word(.do, 0)
      word(.will, 0)
    case 3:
      word(.dont, 0)
      word(.wont, 0)
    case 4:
      word(.dont, 44)
      word(.wont, 44)
    case 5: word(.will, 0)
    case 6: word(.will, 44)
    default: word(.dont, 0)
    }
  }

  private func word(_ verb: TelnetCommand, _ option: UInt8) {
    put([255, verb.rawValue, option])
    if option == 0 { binaryWords.append(sentCount) }
    let agrees = verb == .do || verb == .will
    if option == 0, verb == .will || verb == .wont {
      if agrees != sendsBinary { lastWasCR = false }
      sendsBinary = agrees
    }
    guard option == 44 else { return }
    if verb == .do || verb == .dont {
      comPort.local = agrees ? .on : .off
    } else {
      comPort.remote = agrees ? .on : .off
    }
    comPortChanged(agrees)
  }

  private func comPortChanged(_ agrees: Bool) {
    keepsComPort = agrees && (keepsComPort || !wasRefused)
    if !agrees { wasRefused = true }
    if !hasComPort, isSuspended {
      isSuspended = false
      (suspendedAt, isSurelySuspended) = (nil, false)
    }
  }
  private var wasRefused = false

  // MARK: - Its requests

  struct Request {
    /// Nil: the break key, which gets no answer.
    let message: ComPortMessage?
    let change: ControlChannelRequest.LineChange
    /// How many of its data come before it, and where it ends among what it sends.
    let place: Int
    let end: Int
    /// When it was read: the step, the line's settings until then, and whether the device was away.
    var readIn: Int?
    var version = 0
    var wasAway = false
    var wasDetached = false
    /// The endpoint, by its number, and the port's purges until then.
    var attachment = 0
    var purges = [0, 0, 0, 0]
    var isRead: Bool { readIn != nil }
  }
  /// Requests without an answer: in their order among the bytes, those that are answered at once, and purges.
  private var inSequence: [Request] = []
  private var atOnce: [Request] = []
  private var purges: [Request] = []
  private var asksWhetherThere = 0
  private(set) var mayBeGateway = false

  /// What it would have set on an endpoint without a line.
  private var own = LineSettings()
  // As the gateway has confirmed them. RFC 2217 section 3 has the first ones.
  private var modemMask: UInt8 = 255
  private var lineMask: UInt8 = 0
  private var changesModemMask = false
  /// Answers to queries of the modem's state that may have been notifications.
  private var likeAnswers = 0

  private func ask(_ message: ComPortMessage) {
    put(message.bytes(from: .client))
    guard hasComPort || comPort.local == .asked || comPort.remote == .asked else { return }
    if !hasComPort {
      if comPort.local == .asked { comPort.local = .on } else { comPort.remote = .on }
      comPortChanged(true)
    }
    let request = Request(message: message, change: Self.change(of: message), place: plain.count, end: sentCount)
    switch message {
    case .suspend:
      isSuspended = true
      suspendedAt = sentCount
    case .resume:
      isSuspended = false
      suspendedAt = nil
      isSurelySuspended = false
      resumedAt = sentCount
    case .signature(let text):
      if text.isEmpty {
        atOnce.append(request)
      } else if text.starts(with: Version.product.utf8) {
        mayBeGateway = true
        known = [:]  // it was not told what others had changed before
      }
    case .modemStateMask(let mask):
      if mask != 255 { changesModemMask = true }
      atOnce.append(request)
    case .lineStateMask, .lineState, .modemState: atOnce.append(request)
    case .purge: purges.append(request)
    default: inSequence.append(request)
    }
  }

  /// A break key lasts 250 ms, and the requests after it wait.
  var timeOfBreaks: Duration { .milliseconds(250) * inSequence.count { $0.message == nil } }

  private func breakKey() {
    put([255, 243])
    inSequence.append(Request(message: nil, change: .init(), place: plain.count, end: sentCount))
  }

  /// RFC 2217 section 3, and what Linux does not have.
  private static func change(of message: ComPortMessage) -> ControlChannelRequest.LineChange {
    var change = ControlChannelRequest.LineChange()
    switch message {
    case .baudRate(let rate) where rate > 0 && rate <= 20_000_000: change.bitsPerSecond = rate
    case .dataSize(let count) where (5...8).contains(count): change.dataBits = Int(count)
    case .parity(let number) where (1...5).contains(number):
      change.parity = [LineSettings.Parity.none, .odd, .even, .mark, .space][Int(number) - 1]
    case .stopSize(let number) where (1...3).contains(number):
      change.stopBits = [.one, .two, .oneAndHalf][Int(number) - 1]
    case .control(let number) where (1...3).contains(number) || (14...16).contains(number):
      change.flowControl =
        [LineSettings.FlowControl.none, .xonxoff, .rtscts][Int(number > 3 ? number - 13 : number) - 1]
    default: break
    }
    return change
  }

  /// The number that answers a request about this, with these settings.
  private static func number(_ message: ComPortMessage, _ settings: LineSettings) -> ComPortMessage? {
    let flow = UInt8([LineSettings.FlowControl.none, .xonxoff, .rtscts].firstIndex(of: settings.flowControl)! + 1)
    switch message {
    case .baudRate: return .baudRate(settings.bitsPerSecond)
    case .dataSize: return .dataSize(UInt8(settings.dataBits))
    case .parity:
      return .parity(
        UInt8([LineSettings.Parity.none, .odd, .even, .mark, .space].firstIndex(of: settings.parity)! + 1))
    case .stopSize:
      return .stopSize(UInt8([LineSettings.StopBits.one, .two, .oneAndHalf].firstIndex(of: settings.stopBits)! + 1))
    case .control(0...3), .control(17), .control(19): return .control(flow)
    case .control(4...12): return nil
    case .control: return .control(flow + 13)
    default: return nil
    }
  }

  private static func output(_ message: ComPortMessage?) -> (output: ModemOutput, isOn: Bool?)? {
    guard case .control(let number)? = message else { return nil }
    switch number {
    case 7...9: return (.dtr, number == 7 ? nil : number == 8)
    case 10...12: return (.rts, number == 10 ? nil : number == 11)
    default: return nil
    }
  }

  // MARK: - Reasons for calls of the port

  /// The next request in sequence that makes this change of the line's settings, if it may.
  func asks(for settings: LineSettings, on line: PlayedLine) -> Request? {
    first {
      $0.change != .init() && $0.change.applied(to: line.settings) == settings
    }
  }

  func asks(for output: ModemOutput, _ isOn: Bool) -> Request? {
    first { Self.output($0.message).map { $0.output == output && $0.isOn == isOn } ?? false }
  }

  func asks(forBreak isOn: Bool) -> Request? {
    first { $0.message == nil || $0.message == .control(isOn ? 5 : 6) }
  }

  private func first(where fits: (Request) -> Bool) -> Request? {
    // The break key gets no answer, so it may be done already.
    for request in inSequence where request.isRead {
      if fits(request), client.couldWrite(since: request.readIn ?? 0) { return request }
      if request.message != nil, !mayLackAnswers { return nil }
    }
    return nil
  }

  func asksToPurge(_ what: Purge) -> Bool {
    purges.contains { request in
      guard case .purge(let number)? = request.message, request.isRead else { return false }
      return number == (what == .input ? 1 : what == .output ? 2 : 3) && client.couldWrite(since: request.readIn ?? 0)
    }
  }

  /// Whether it asked at some time for this value of each setting that `settings` changes.
  func hasAskedFor(_ settings: LineSettings, insteadOf now: LineSettings) -> Bool {
    let changed = LineSettings.differences(settings, now)
    // A port that leaves five data bits has two stop bits instead of one and a half.
    return changed.allSatisfy { hasAsked.contains($0) || $0 == .stopSize(2) && hasAsked.contains(.stopSize(3)) }
  }
  private var hasAsked: Set<ComPortMessage> = []
  private(set) var hasAskedAnything = false
  /// All requests in sequence that were read.
  var isAnswered: Bool { !inSequence.contains(where: \.isRead) }
  func hasAskedFor(_ output: ModemOutput, _ isOn: Bool) -> Bool { hasAsked.contains(output.message(isOn)) }
  /// A request of it may have changed the settings.
  private(set) var mayHaveSet = false
  var mayHaveHadBreak: Bool { hasAsked.contains(.control(5)) }

  /// Bytes before this place may have been purged.
  private(set) var mayBePurgedUpTo = 0
  private var arePurgedUpTo = 0

  private var outputs: [(output: ModemOutput, isOn: Bool, place: Int)] = []

  // MARK: - The session reads and writes

  func sessionReads(_ bytes: UnsafeRawBufferPointer) {
    guard readCount + bytes.count <= plain.count else { return fail("is read beyond what it has sent") }
    let isRight = plain.withUnsafeBytes { memcmp($0.baseAddress! + readCount, bytes.baseAddress!, bytes.count) == 0 }
    if !isRight { fail("its bytes \(readCount)..<\(readCount + bytes.count) are read as others") }
    if ends[readCount + bytes.count - 1] > stream.readCount { fail("its bytes are read before they arrive") }
    if let next = inSequence.first(where: { $0.isRead && $0.message != nil }), !mayLackAnswers,
      readCount + bytes.count > next.place, readCount < next.place,
      client.session?.isOver != true  // then they are discarded
    {
      fail("is read beyond a request among its bytes")
    }
  }

  func sessionHasRead(_ count: Int) { readCount += count }

  /// Where its next byte for the device stands, and that request before it is not answered.
  func delivers(_ bytes: Range<Int>) {
    if bytes.lowerBound < arePurgedUpTo { fail("its purged byte \(bytes.lowerBound) is sent") }
    guard !stream.isNotifiedOfEnd else { return }  // behind our end its requests are dropped
    if !outputs.isEmpty, client.couldAlwaysWrite {
      var asked = ModemOutputStates()
      for output in outputs where output.place <= bytes.lowerBound { asked[output.output] = output.isOn }
      client.link.line.mustHave(asked, before: client)
    }
    guard !mayLackAnswers, let next = inSequence.first(where: { $0.isRead }), next.message != nil else { return }
    if bytes.upperBound > next.place { fail("its byte \(bytes.upperBound - 1) is sent before the request ahead of it") }
  }

  /// Bytes of the device that the session's stream has taken.
  private var expected: [UInt8]
  private var isText: [Bool]
  /// How many of its words about BINARY were read before each of them: with a change between CR and the next byte there
  /// is no NUL.
  private var textWords: [Int]
  private var binaryWords: [Int] = []
  private var expectedAt = 0

  func sessionWrites(_ bytes: UnsafeRawBufferPointer, isText: Bool) {
    if isSurelySuspended, !bytes.isEmpty { fail("is sent data though it has suspended") }
    expected += bytes
    self.isText += Array(repeating: isText, count: bytes.count)
    let words = binaryWords.count { $0 <= stream.readCount }
    textWords += Array(repeating: words, count: bytes.count)
    match()
  }

  var takesBytes: Bool { stream.takesBytes && !isSuspended && !hasBacklog && late.isEmpty }

  func look() {
    match()
    guard let suspendedAt, !telnet.input.hasHidden, stream.readCount >= suspendedAt, late.isEmpty else { return }
    isSurelySuspended = true
  }

  // MARK: - Below: what arrives at it

  private enum State: Equatable {
    case data, iac, option, content, contentIAC
    case verb(UInt8)
  }
  private var state = State.data
  private var subOption: UInt8 = 0
  private var content: [UInt8] = []
  /// Data, and where NUL follows CR.
  private var heard: [UInt8] = []
  private var padded: Set<Int> = []
  private var heardAt = 0
  private var heardCR = false
  /// Something could not be sent at once, so what comes may be older.
  private var hasBacklog = false
  /// A request may be carried out whose answer is late, or never comes: behind our end there are none.
  private var mayLackAnswers: Bool { hasBacklog || stream.isBroken || stream.isNotifiedOfEnd }
  private var isExact = false

  func willRead(_ stream: PlayedStream, room: Int) {}

  func didRead(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer) {
    let end = stream.readCount + bytes.count
    for index in inSequence.indices where inSequence[index].end <= end { note(&inSequence[index]) }
    for index in atOnce.indices where atOnce[index].end <= end { note(&atOnce[index]) }
    for index in purges.indices where purges[index].end <= end { note(&purges[index]) }
  }

  private func note(_ request: inout Request) {
    guard !request.isRead else { return }
    request.readIn = run.step
    request.version = client.link.line.version
    request.wasAway = client.link.isAway
    request.wasDetached = !client.link.isAttached
    request.attachment = client.link.line.attachment
    request.purges = client.link.line.purges
    hasAskedAnything = true
    guard let message = request.message else { return }
    hasAsked.insert(message)
    if request.change.flowControl != nil, case .control(let number) = message, number > 3 {
      hasAsked.insert(.control(number - 13))
    }
    if case (let output, let isOn?)? = Self.output(message) {
      outputs.append((output, isOn, request.place))
      if client.everCouldWrite { client.link.line.isRequested(output, isOn, by: client, behind: request.place) }
    } else {
      client.link.line.isInterrupted()
    }
    if request.change != .init() { mayHaveSet = true }
    if case .purge(let number) = message, number == 2 || number == 3 {
      mayBePurgedUpTo = max(mayBePurgedUpTo, request.place)
    }
  }

  func takes(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer, _ count: Int) {
    if stream.isNotifiedOfEnd { fail("is written to behind our end") }
    isExact = !hasBacklog && state == .data
    for byte in bytes[..<count] { take(byte) }
    if !isSuspendedForSession { client.isNoLongerFull() }
    if count < bytes.count { isFull(stream) } else { hasBacklog = false }
  }

  private func take(_ byte: UInt8) {
    switch state {
    case .data:
      guard byte != 255 else { return state = .iac }
      if heardCR, byte == 0 { padded.insert(heard.count - 1) } else { heard.append(byte) }
      heardCR = byte == 13
    case .iac:
      state = .data
      switch byte {
      case 255:
        heard.append(255)
        heardCR = false
      case 251...254: state = .verb(byte)
      case 250: state = .option
      case 241: break
      default: fail("gets the command \(byte)")
      }
    case .verb: state = .data
    case .option:
      subOption = byte
      content = []
      state = .content
    case .content: if byte == 255 { state = .contentIAC } else { content.append(byte) }
    case .contentIAC:
      if byte == 255 {
        content.append(255)
        return state = .content
      }
      state = .data
      if byte != 240 || subOption != 44 { return fail("gets a subnegotiation that is none") }
      takeMessage()
    }
  }

  private static let texts = [Array("\r\nbaudway: ".utf8), Array("\r\n[baudway: yes]\r\n".utf8)]

  /// Compares the data that has arrived with what the session has written. Our own lines come between.
  private func match(atEnd: Bool = false) {
    while heardAt < heard.count {
      let rest = heard[heardAt...]
      if let text = Self.texts.first(where: { rest.starts(with: $0) }) {
        var end = heardAt + text.count
        if text.last != 10 {
          while end < heard.count, heard[end] != 10 { end += 1 }
          guard end < heard.count else { return }
          end += 1
          if !client.getsNotices { fail("gets a notice, though the route sends none") }
        } else {
          asksWhetherThere -= 1
          if asksWhetherThere < 0 { fail("is answered that the gateway is there, without a question") }
        }
        heardAt = end
        continue
      }
      if !atEnd, Self.texts.contains(where: { $0.starts(with: rest) }) { return }
      guard expectedAt < expected.count, expected[expectedAt] == heard[heardAt] else {
        return fail("gets byte \(heard[heardAt]) at \(expectedAt), which was not sent to it")
      }
      if heard[heardAt] == 13 {
        let isPadded = padded.contains(heardAt)
        if isPadded, !isText[expectedAt] { fail("gets NUL after CR with BINARY") }
        if !isPadded, isText[expectedAt], expectedAt + 1 < expected.count, isText[expectedAt + 1],
          textWords[expectedAt] == textWords[expectedAt + 1],
          heardAt + 1 < heard.count, heard[heardAt + 1] != 10
        {
          fail("gets CR without NUL")
        }
      }
      heardAt += 1
      expectedAt += 1
    }
  }

  // MARK: - Messages

  private func takeMessage() {
    guard let first = content.first else { return fail("gets an empty message") }
    if run.tells { PoliciesProperty.report("     client \(client.number) gets \(content)\(isExact ? "" : ", late")") }
    guard first >= 100 else {
      guard let message = ComPortMessage(content, from: .client), mayBeGateway else {
        return fail("gets a request of RFC 2217")
      }
      known[message.kind] = message
      return client.link.line.isReported(message)
    }
    guard let message = ComPortMessage(content, from: .server) else { return fail("gets a message that is none") }
    switch message {
    case .signature(let text):
      if text.isEmpty { fail("is asked for its signature") }
      takeAtOnce(message)
    case .lineState(let bits):
      if atOnce.first?.message?.kind == .lineState, bits == 0 { return takeAtOnce(message) }
      if bits == 0 || bits & ~lineMask != 0 { fail("is notified of line state \(bits)") }
    case .modemState(let state):
      lastModemState = state
      if let first = atOnce.first, first.isRead, first.message?.kind == .modemState, state & 0x0F == 0 {
        if state & ~modemMask == 0 { likeAnswers += 1 }
        return takeAtOnce(message)
      }
      guard state & ~modemMask != 0 else { break }
      likeAnswers -= 1
      if likeAnswers < 0 { fail("is notified of modem state \(state)") }
    case .lineStateMask(let mask):
      lineMask = mask
      takeAtOnce(message, isSame: true)
    case .modemStateMask(let mask):
      modemMask = mask
      takeAtOnce(message, isSame: true)
    case .purge(let number):
      guard let index = purges.firstIndex(where: { $0.message == message && $0.isRead }) else {
        return fail("a purge is answered without a request")
      }
      let purge = purges.remove(at: index)
      if number > 0, number < 4 { client.link.line.isPurged(number, by: purge, of: client, isExact: isExact) }
      // An endpoint without a line answers, and nothing changes.
      // Nor where another client holds the line.
      let isDone = client.link.line.purges[Int(min(number, 3))] != purge.purges[Int(min(number, 3))]
      if number == 2 || number == 3, client.couldAlwaysWrite, run.isLine, isDone {
        arePurgedUpTo = max(arePurgedUpTo, purge.place)
      }
    case .suspend:
      if isStopped, keepsComPort { fail("is suspended twice") }
      isStopped = true
    case .resume:
      if !isStopped, keepsComPort { fail("is resumed, and was not suspended") }
      isStopped = false
    default: takeInSequence(message)
    }
  }
  /// Without COM-PORT the gateway forgets that it has suspended, and the client is to forget it, too.
  private var isStopped = false

  private func takeAtOnce(_ message: ComPortMessage, isSame: Bool = false) {
    guard let request = atOnce.first, request.isRead, request.message?.kind == message.kind,
      !isSame || request.message == message
    else { return fail("gets \(message), and has not asked for that") }
    atOnce.removeFirst()
  }

  private func takeInSequence(_ message: ComPortMessage) {
    // The break key before it is done, as it comes before it.
    while let first = inSequence.first, first.message == nil, inSequence.count > 1 { inSequence.removeFirst() }
    guard let request = inSequence.first, request.isRead, let asked = request.message, asked.kind == message.kind else {
      return fail("gets \(message), and has not asked for that")
    }
    inSequence.removeFirst()
    own = request.change.applied(to: own)
    let isKnown = isExact && client.link.isAttached
    if case .control(let number) = message, number > 13 {
      known[.flowControl] = isKnown ? .control(number - 13) : nil
    } else {
      known[message.kind] = isKnown ? message : nil
    }
    let line = client.link.line
    if let (output, isOn) = Self.output(asked) {
      // The endpoint was lost before it was done.
      if let isOn, message != output.message(isOn) {
        outputs.removeAll { $0.output == output && $0.isOn == isOn && $0.place == request.place }
      }
      line.isAnswered(output, isOn, message, by: request, to: client, isExact: isExact)
    } else if asked.kind == .breakState {
      let isOn: Bool? = asked == .control(4) ? nil : asked == .control(5)
      line.isAnsweredAboutBreak(isOn, message, by: request, to: client, isExact: isExact)
    } else {
      let now = Self.number(asked, own)
      line.isAnswered(message, own: now, by: request, to: client, isExact: isExact) { Self.number(asked, $0) }
    }
  }

  /// What it was answered or, as a gateway, told last.
  private var known: [ComPortMessage.Kind: ComPortMessage] = [:]

  // MARK: - Quiet

  /// A gateway knows what others have changed.
  func mustKnow(_ settings: LineSettings, _ outputs: ModemOutputStates) {
    guard mayBeGateway, hasComPort else { return }
    var now = settings.messages
    for output in [ModemOutput.dtr, .rts] { if let isOn = outputs[output] { now.append(output.message(isOn)) } }
    for message in now {
      if let known = known[message.kind], known != message { fail("knows \(known), and the line has \(message)") }
    }
  }

  /// All of it has arrived, and the device answers.
  func mustBeAnswered() {
    match(atEnd: true)
    if expectedAt < expected.count, !isSuspended {
      fail("\(expected.count - expectedAt) bytes that it was sent do not arrive")
    }
    guard !stream.isNotifiedOfEnd else { return }  // no answer comes after our end
    if isStopped, keepsComPort { fail("is suspended, and read") }
    if asksWhetherThere > 0 { fail("gets no answer to its question whether the gateway is there") }
    while let first = inSequence.first, first.message == nil { inSequence.removeFirst() }
    let waiting = inSequence + atOnce + purges
    if let request = waiting.first { fail("gets no answer to \(request.message.map { "\($0)" } ?? "a break")") }
  }

  /// The modem lines that it was last notified of, if it is notified of all.
  private(set) var lastModemState: UInt8?
  var isNotifiedOfAll: Bool { keepsComPort && hasComPort && !changesModemMask }

  // MARK: - The stream below has ended

  func isFull(_ stream: PlayedStream) {
    hasBacklog = true
    client.isFull(stream)
  }
  func hasFailed(_ stream: PlayedStream, reading: Bool) {}
  /// Nobody can say any more that it goes on, so it does.
  func readsEnd(_ stream: PlayedStream) { (isSuspended, suspendedAt, isSurelySuspended) = (false, nil, false) }
  func hangsUp(_ stream: PlayedStream) { client.hangsUp(stream) }
  func isFinished(_ stream: PlayedStream) { client.isFinished(stream) }
  func isClosed(_ stream: PlayedStream) { client.isClosed(stream) }

  // MARK: - Its stream at the gateway

  /// Made as a `telnet` listener makes it.
  func begin(on poller: Poller) -> TelnetStream {
    telnet = TelnetAcceptance(keepsAlive: true).stream(over: stream, on: poller)
    return telnet
  }

  func close() { telnet?.close() }
}

extension LineSettings {
  /// What RFC 2217 says about the settings that differ.
  static func differences(_ one: LineSettings, _ other: LineSettings) -> [ComPortMessage] {
    zip(one.messages, other.messages).filter { $0 != $1 }.map(\.0)
  }
}

/// Between a telnet client's session and its stream: reports the data to the model.
final class TelnetFront: LayeredStream {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  let below: any ByteStream
  private unowned let client: ClientModel
  private unowned let model: TelnetModel
  private var isClosed = false

  init(_ below: any ByteStream, _ client: ClientModel, _ model: TelnetModel) {
    self.below = below
    self.client = client
    self.model = model
    below.delegate = self
  }

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    client.willRead(client.stream, room: run.count)
    do {
      let transfer = try below.read(into: run)
      switch transfer {
      case .moved(let count) where count > 0:
        let bytes = UnsafeRawBufferPointer(rebasing: run[..<count])
        model.sessionReads(bytes)
        client.didRead(client.stream, bytes)
        model.sessionHasRead(count)
      case .ended: client.readsEnd(client.stream)
      default: break
      }
      return transfer
    } catch {
      client.hasFailed(client.stream, reading: true)
      throw error
    }
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    let binary = model.telnet.negotiation.state(of: .binary, .local)
    do {
      let transfer = try below.write(run)
      switch transfer {
      case .moved(let count):
        client.takes(client.stream, run, count)
        model.sessionWrites(
          UnsafeRawBufferPointer(rebasing: run[..<count]), isText: binary != .on && binary != .asked)
      case .blocked: client.isFull(client.stream)
      case .ended: break
      }
      return transfer
    } catch {
      client.hasFailed(client.stream, reading: false)
      throw error
    }
  }

  func close() {
    isClosed = true
    below.close()
    dismissDelegate()
  }

  func abort() {
    isClosed = true
    below.abort()
    dismissDelegate()
  }
}
