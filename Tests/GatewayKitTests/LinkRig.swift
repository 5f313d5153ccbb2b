// A link whose endpoint the test opens: a connector that records its openings, and completes them when the test says
// so.

import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// Each opening waits for the test, or `answerAtOnce` completes it. Lives on its link's lane.
final class ScriptedConnector: Connector {
  static let grammar = SchemeGrammar("scripted", example: "scripted:///x", authority: .none, path: .file)
  static let isLine = true

  let node: String?
  // Used on the link's lane only, which the protocol can't express.
  nonisolated(unsafe) private(set) var openings: [ScriptedOpening] = []
  nonisolated(unsafe) private(set) var connectTimeout = Duration.zero
  nonisolated(unsafe) var answerAtOnce: (() -> Result<any ByteStream, OpenFailure>)?

  init(node: String? = nil) { self.node = node }
  convenience init(_ url: EndpointURL) { self.init() }

  /// The current watch for the device; nil while no link waits.
  nonisolated(unsafe) weak var watch: ScriptedWatch?
  nonisolated(unsafe) private(set) var watchedAfter: SystemError?

  func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    watchedAfter = cause
    if let node { return NodeWatch(path: node, on: poller) { changed(.appeared) } }
    let watch = ScriptedWatch(changed)
    self.watch = watch
    return watch
  }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = ScriptedOpening(discardsInput: request.discardsInput, done)
    openings.append(opening)
    connectTimeout = request.connectTimeout
    if let answerAtOnce { opening.answer(answerAtOnce()) }
    return opening
  }
}

final class ScriptedWatch: DeviceWatch {
  let changed: (DeviceNews) -> Void
  private(set) var isCancelled = false
  private(set) var tries: [Int32?] = []

  init(_ changed: @escaping (DeviceNews) -> Void) { self.changed = changed }
  func cancel() { isCancelled = true }
  func attemptBegins() { tries.append(nil) }
  func attemptFailed(_ cause: SystemError?) { tries.append(cause?.errno) }
}

/// A `ScriptedConnector` with its own time limits; it keeps the connect timeout that it was given.
struct SteppedScript: Connector {
  static let grammar = SchemeGrammar("stepped", example: "stepped:///x", authority: .none, path: .file)
  static let isLine = true
  let script: ScriptedConnector
  /// Of the last opening.
  var connectTimeout: Duration { script.connectTimeout }

  init(_ script: ScriptedConnector) { self.script = script }
  init(_ url: EndpointURL) { self.init(ScriptedConnector()) }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening { script.open(request, on: poller, done) }

  func longestOpening(connectTimeout: Duration) -> Duration? { connectTimeout + .seconds(40) }
}

final class ScriptedOpening: Opening {
  let discardsInput: Bool
  private(set) var isCancelled = false
  private(set) var isAnswered = false
  private let done: (Result<any ByteStream, OpenFailure>) -> Void

  init(discardsInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void) {
    self.discardsInput = discardsInput
    self.done = done
  }

  func answer(_ result: Result<any ByteStream, OpenFailure>) {
    isAnswered = true
    done(result)
  }

  func succeed(_ stream: any ByteStream) { answer(.success(stream)) }
  func fail(_ errno: Int32 = 2) { answer(.failure(OpenFailure("open x", SystemError("open", errno)))) }
  func cancel() { isCancelled = true }
}

/// A link on a manual clock, in the test's own thread unless a poller is given.
final class LinkRig: LinkDelegate {
  let clock = ManualClock()
  let poller: Poller
  let connector: ScriptedConnector
  let closing: ClosingStreams
  private(set) var link: Link!
  private(set) var words: [String] = []
  private(set) var pauses: [Duration] = []
  private(set) var endings: [UInt64: [Ending]] = [:]
  private(set) var dropped: UInt64 = 0
  private(set) var facts: [DeviceFacts] = []
  private(set) var faults: [InternalFault] = []
  var onStatus: (LinkStatus) -> Void = { _ in }
  private var lastNumber: UInt64 = 0
  private var clients: [any ByteStream] = []
  private let isShared: Bool
  private let buffer: Int
  private let packets: Config.Packets?

  init(
    isShared: Bool = true, buffer: Int = 64, packets: Config.Packets? = nil,
    connector: ScriptedConnector = ScriptedConnector(), on poller: Poller? = nil,
    _ change: (inout Config.Device) -> Void = { _ in }
  ) throws {
    let clock = clock.clock
    self.poller = try poller ?? Poller(clock: clock) { _ in }
    self.connector = connector
    self.isShared = isShared
    self.buffer = buffer
    self.packets = packets
    closing = ClosingStreams(on: self.poller)
    link = Link(try settings(change), on: self.poller, closing: closing, delegate: self)
  }

  /// The standard settings, modified by `change`, for the endpoint `url`.
  func settings(
    of url: String = "tty:///dev/x", connector: (any Connector)? = nil, _ change: (inout Config.Device) -> Void
  ) throws -> RouteSettings {
    var device = Config.Device(
      open: .onDemand, linger: .zero, absent: .hold, retry: .milliseconds(250) ... .seconds(30),
      connectTimeout: .seconds(10), drain: .seconds(5), flush: .connect, onOpen: [], onClose: [])
    change(&device)
    var route = try routeConfig(endpoint: url)
    route.link = isShared ? .shared : .perClient
    route.clients.buffer = buffer
    route.device = device
    route.packets = packets
    return RouteSettings(route, connector: connector ?? self.connector)
  }

  // An open stream and its session keep each other alive, as intended; closing the streams breaks the cycle.
  deinit { for client in clients { client.close() } }

  var openings: [ScriptedOpening] { connector.openings }

  @discardableResult
  func join(_ client: any ByteStream, controlChannel: ControlChannel? = nil) -> Session {
    lastNumber += 1
    clients.append(client)
    let session = Session(
      AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:1"), client: client,
      controlChannel: controlChannel, number: lastNumber, hub: link.hub, buffer: link.hub.policy.buffer, on: poller)
    link.join(session)
    return session
  }

  /// No opening, retry or lingering is in progress.
  var isIdle: Bool { link.status == .closed }

  func ending(of session: Session) -> Ending.Word? {
    guard let all = endings[session.number] else { return nil }
    #expect(all.count == 1, "a session has one ending")
    return all.first?.word
  }

  func report(_ stream: any ByteStream, _ event: ByteStreamEvent) { stream.delegate?.stream(stream, handle: event) }
  func wakeReader(_ stream: any ByteStream) { if !stream.readerWaits.isEmpty { report(stream, .hasBytesAvailable) } }
  func wakeWriter(_ stream: any ByteStream) { if !stream.writerWaits.isEmpty { report(stream, .hasSpaceAvailable) } }

  func pass(_ time: Duration) {
    clock.advance(by: time)
    poller.timers.fireDue()
  }

  func link(_ link: Link, is status: LinkStatus, retry: Duration?) {
    words.append(status.word)
    if let retry { pauses.append(retry) }
    onStatus(status)
  }

  func link(_ link: Link, ended session: Session, _ ending: Ending) {
    endings[session.number, default: []].append(ending)
    closing.close(session.client, otherSideFinished: true)
  }

  func link(_ link: Link, knows facts: DeviceFacts) { self.facts.append(facts) }

  func link(_ link: Link, dropped count: UInt64) { dropped += count }

  func link(_ link: Link, writerChangedFrom old: Session?, to new: Session?) {}
  func link(_ link: Link, wasResetBy recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {}
  func linkLineChanged(_ link: Link) {}
  func link(_ link: Link, drops bytes: UInt64, of session: Session) {}
  func link(_ link: Link, wasAsked request: ControlChannelRequest, refusal: String?, by session: Session) {}
  func link(_ link: Link, met fault: InternalFault) { faults.append(fault) }
  func linkHasEvaluated(_ link: Link) {}
}
