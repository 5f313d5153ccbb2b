// A link whose endpoint is opened by the test: a connector that asks, and answers when it is told to.

import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// Each opening waits for the test, or is answered at once by `answerAtOnce`. Lives where its link does.
final class ScriptedConnector: Connector {
  static let scheme = "scripted"
  static let isLine = true

  let node: String?
  // Touched on the link's lane only, which the protocol can't say.
  nonisolated(unsafe) private(set) var openings: [ScriptedOpening] = []
  nonisolated(unsafe) var answerAtOnce: (() -> Result<any ByteStream, OpenFailure>)?

  init(node: String? = nil) { self.node = node }
  convenience init(_ url: EndpointURL) { self.init() }

  /// What waits for the device to come, while somebody does.
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
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = ScriptedOpening(discardsInput: discardingInput, done)
    openings.append(opening)
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
  func tryBegins() { tries.append(nil) }
  func tryFailed(_ cause: SystemError?) { tries.append(cause?.errno) }
}

/// The same as `ScriptedConnector`, with times of its own; it says which it was given.
struct SteppedScript: SteppedConnector {
  static let scheme = "stepped"
  static let isLine = true
  let script: ScriptedConnector
  var connectPatience = Duration.zero
  let otherSteps = Duration.seconds(40)

  init(_ script: ScriptedConnector) { self.script = script }
  init(_ url: EndpointURL) { self.init(ScriptedConnector()) }

  func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening { script.open(on: poller, discardingInput: discardingInput, done) }
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

/// A link on a clock turned by hand, in the test's own thread unless it is given a poller.
final class LinkRig: LinkDelegate {
  let clock = ManualClock()
  let poller: Poller
  let connector: ScriptedConnector
  let lingering: Lingering
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
    lingering = Lingering(on: self.poller)
    link = Link(try settings(change), on: self.poller, lingering: lingering, delegate: self)
  }

  /// The standard settings but for `change`, of the endpoint `url`.
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

  // An open stream and its session keep each other, as they shall.
  deinit { for client in clients { client.close() } }

  var openings: [ScriptedOpening] { connector.openings }

  @discardableResult
  func join(_ client: any ByteStream, desk: Desk? = nil) -> Session {
    lastNumber += 1
    clients.append(client)
    let session = Session(
      Arrival.Label(address: nil, listener: "tcp://127.0.0.1:1"), client: client, number: lastNumber, hub: link.hub,
      buffer: link.hub.policy.buffer, on: poller)
    session.desk = desk
    link.join(session)
    return session
  }

  /// No opening, retry or lingering is under way.
  var isIdle: Bool { link.status == .closed }

  func ending(of session: Session) -> Ending.Word? {
    guard let all = endings[session.number] else { return nil }
    #expect(all.count == 1, "a session has one ending")
    return all.first?.word
  }

  func tell(_ stream: any ByteStream, _ event: ByteStreamEvent) { stream.delegate?.stream(stream, handle: event) }
  func wakeReader(_ stream: any ByteStream) { if !stream.readerWaits.isEmpty { tell(stream, .hasBytesAvailable) } }
  func wakeWriter(_ stream: any ByteStream) { if !stream.writerWaits.isEmpty { tell(stream, .hasSpaceAvailable) } }

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
    lingering.close(session.client, otherSideFinished: true)
  }

  func link(_ link: Link, knows facts: DeviceFacts) { self.facts.append(facts) }

  func link(_ link: Link, dropped count: UInt64) { dropped += count }

  func link(_ link: Link, writerChangedFrom old: Session?, to new: Session?) {}
  func link(_ link: Link, drops bytes: UInt64, of session: Session) {}
  func link(_ link: Link, met fault: InternalFault) { faults.append(fault) }
  func linkHasSettled(_ link: Link) {}
}
