// A hub without a link or a lane, on a manual clock. The test is its endpoint, clients and time, in its own thread.
// Tests of the hub, its endings and its slow clients use it; with real descriptors `run` is their poller.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

final class HubRig: HubDelegate {
  let clock = ManualClock()
  let poller: Poller
  private(set) var hub: Hub!
  private(set) var endings: [UInt64: [Ending]] = [:]
  /// The bytes each session had dropped when its ending was reported.
  private(set) var droppedAtEnd: [UInt64: UInt64] = [:]
  /// The reports that the endpoint is gone, with their errors.
  private(set) var losses: [SystemError?] = []
  private(set) var causes: [(any Error)?] = []
  /// The holders of the writer role, in order; nil is no holder.
  private(set) var writers: [UInt64?] = []
  /// The reported drops, by session.
  private(set) var drops: [UInt64: [UInt64]] = [:]
  private var lastNumber: UInt64 = 0
  /// Of the link that the test plays.
  private(set) var status = LinkStatus.closed
  private var clients: [any ByteStream] = []
  /// As a per-client link does: an endpoint that ended in order stays until its client has gone.
  var keepsEndedEndpoint = false

  /// With `isRealTime` deadlines follow the machine's clock.
  init(
    isShared: Bool = true, buffer: Int = 64, backlog: Int = 0, slow: Config.Clients.Slow = .automatic,
    dropsWithoutClients: Bool = true, drain: Duration = .seconds(5), halfClose: Duration? = .seconds(5),
    writers: Config.Clients.Writers = .all,
    takeover: Config.Clients.Takeover = .refuse, packets: Config.Packets? = nil, reset: ResetRecipe? = nil,
    isRealTime: Bool = false
  ) throws {
    poller = try Poller(clock: isRealTime ? .monotonic : clock.clock) { _ in }
    let policy = Hub.Policy(
      isShared: isShared, buffer: buffer, backlog: backlog, slow: slow,
      dropsWithoutClients: dropsWithoutClients, drain: drain, halfClose: halfClose, writers: writers,
      takeover: takeover,
      packets: packets, reset: reset)
    hub = Hub(Hub.SharedPolicy(policy), on: poller, delegate: self)
  }

  // An open stream and its session keep each other alive, as intended; closing the streams breaks the cycle.
  deinit { for client in clients { client.close() } }

  func linkIs(_ status: LinkStatus) {
    self.status = status
    hub.lineControl?.linkIs(status)
  }

  /// Adds a client.
  @discardableResult
  func join(
    _ client: any ByteStream, role: Config.Listen.Role = .writer, controlChannel: ControlChannel? = nil,
    isTerminal: Bool = false, hasOwnLink: Bool = false
  ) -> Session {
    lastNumber += 1
    clients.append(client)
    var label = AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:1", role: role)
    label.isTerminal = isTerminal
    label.hasOwnLink = hasOwnLink
    let session = Session(
      label, client: client, controlChannel: controlChannel, number: lastNumber, hub: hub,
      buffer: hub.policy.buffer, on: poller)
    hub.join(session)
    return session
  }

  /// How a session ended; records an issue unless it ended exactly once.
  func ending(of session: Session) -> Ending.Word? {
    guard let all = endings[session.number] else { return nil }
    #expect(all.count == 1, "a session has one ending")
    return all.first?.word
  }

  func ending(ofNumber number: UInt64) -> Ending.Word? { endings[number]?.first?.word }

  /// Sends an event, as the poller does.
  func report(_ stream: any ByteStream, _ event: ByteStreamEvent) { stream.delegate?.stream(stream, handle: event) }

  /// The stream has bytes, or its end.
  func wakeReader(_ stream: any ByteStream) {
    if !stream.readerWaits.isEmpty { report(stream, .hasBytesAvailable) }
  }

  /// The stream has space.
  func wakeWriter(_ stream: any ByteStream) {
    if !stream.writerWaits.isEmpty { report(stream, .hasSpaceAvailable) }
  }

  /// Advances the clock in steps, since a lane would not sleep through a deadline.
  func advance(by time: Duration, step: Duration = .milliseconds(10)) {
    var left = time
    while left > .zero {
      clock.advance(by: min(step, left))
      poller.timers.fireDue()
      left -= step
    }
  }

  /// Runs the lane's turns until `condition` holds, at most for `Patience`.
  func run(until condition: () -> Bool, sourceLocation: SourceLocation = #_sourceLocation) {
    let limit = monotonicNanoseconds() + Patience.nanoseconds
    while !condition() {
      guard monotonicNanoseconds() < limit else {
        Issue.record("nothing moves any more", sourceLocation: sourceLocation)
        return
      }
      poller.runAgain()
      _ = poller.turn(waiting: poller.hasAgain ? 0 : 10)
    }
  }

  func endpointIsGone(_ cause: (any Error)?) {
    losses.append(cause as? SystemError)
    causes.append(cause)
    if keepsEndedEndpoint && cause == nil {
      hub.endpointEnded()
    } else {
      hub.detach()?.close()
    }
  }

  private(set) var flushes = 0
  func allClientsFinished() { flushes += 1 }

  func writerChanged(from old: Session?, to new: Session?) {
    #expect(old?.number == writers.last ?? nil, "the writer role comes from the one who had it")
    writers.append(new?.number)
  }

  /// Changes of the line that were refused.
  private(set) var lineRefusals = 0
  func lineWasAsked(_ request: ControlChannelRequest, refusal: String?, by session: Session) {
    if refusal != nil { lineRefusals += 1 }
  }
  /// The reset recipes that were carried out, each with its session.
  private(set) var resets: [String] = []
  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {
    let error = if case .failure(let error) = result { " \(error.errno)" } else { "" }
    resets.append("\(recipe.name) \(session.map(String.init) ?? "command")\(error)")
  }
  func lineChanged() {}

  func sessionDrops(_ session: Session, bytes: UInt64) { drops[session.number, default: []].append(bytes) }

  func sessionIsOver(_ session: Session, _ ending: Ending) {
    endings[session.number, default: []].append(ending)
    droppedAtEnd[session.number] = session.dropped
    session.client.close()
  }
}

/// The running pattern of scripted streams.
func pattern(_ range: Range<Int>) -> [UInt8] { ScriptedStream.pattern(range) }

extension Hub {
  /// As a reload does.
  func update(_ policy: Policy) { update(SharedPolicy(policy)) }
}
