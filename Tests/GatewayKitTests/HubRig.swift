// A hub without a link, a lane or a clock of its own: the test plays the endpoint, the clients and the time, in its own
// thread. Tests of the hub, its endings and its slow clients use it; with real descriptors `run` is their poller.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

final class HubRig: HubDelegate {
  let clock = ManualClock()
  let poller: Poller
  private(set) var hub: Hub!
  private(set) var endings: [UInt64: [Ending]] = [:]
  /// What each had lost when its ending was told.
  private(set) var droppedAtEnd: [UInt64: UInt64] = [:]
  /// How often the endpoint was said to be gone, and with which error.
  private(set) var losses: [SystemError?] = []
  private(set) var causes: [(any Error)?] = []
  /// Who got the pen, in turn; nil is nobody.
  private(set) var writers: [UInt64?] = []
  /// What was told of drops, by session.
  private(set) var drops: [UInt64: [UInt64]] = [:]
  private var lastNumber: UInt64 = 0
  private var clients: [any ByteStream] = []
  /// As a link does for one client: an endpoint that ended in order stays until he has gone.
  var keepsEndedEndpoint = false

  /// With `isRealTime` deadlines follow the machine's clock.
  init(
    isShared: Bool = true, buffer: Int = 64, backlog: Int = 0, slow: Config.Clients.Slow = .automatic,
    dropsUnheard: Bool = true, drain: Duration = .seconds(5), halfClose: Duration? = .seconds(5),
    writers: Config.Clients.Writers = .all,
    takeover: Config.Clients.Takeover = .refuse, packets: Config.Packets? = nil, isRealTime: Bool = false
  ) throws {
    poller = try Poller(clock: isRealTime ? .monotonic : clock.clock) { _ in }
    let policy = Hub.Policy(
      isShared: isShared, buffer: buffer, backlog: backlog, slow: slow,
      dropsUnheard: dropsUnheard, drain: drain, halfClose: halfClose, writers: writers, takeover: takeover,
      packets: packets)
    hub = Hub(policy, on: poller, delegate: self)
  }

  // An open stream and its session keep each other, as they shall.
  deinit { for client in clients { client.close() } }

  /// A client joins.
  @discardableResult
  func join(_ client: any ByteStream, role: Config.Listen.Role = .writer, desk: Desk? = nil) -> Session {
    lastNumber += 1
    clients.append(client)
    let label = Arrival.Label(address: nil, listener: "tcp://127.0.0.1:1", role: role)
    let session = Session(
      label, client: client, number: lastNumber, hub: hub, buffer: hub.policy.buffer, on: poller)
    session.desk = desk
    hub.join(session)
    return session
  }

  /// How a session ended; records an issue unless it ended once.
  func ending(of session: Session) -> Ending.Word? {
    guard let all = endings[session.number] else { return nil }
    #expect(all.count == 1, "a session has one ending")
    return all.first?.word
  }

  func ending(ofNumber number: UInt64) -> Ending.Word? { endings[number]?.first?.word }

  /// What the poller would tell.
  func tell(_ stream: any ByteStream, _ event: ByteStreamEvent) { stream.delegate?.stream(stream, handle: event) }

  /// The stream has bytes, or its end.
  func wakeReader(_ stream: any ByteStream) {
    if !stream.readerWaits.isEmpty { tell(stream, .hasBytesAvailable) }
  }

  /// The stream has space.
  func wakeWriter(_ stream: any ByteStream) {
    if !stream.writerWaits.isEmpty { tell(stream, .hasSpaceAvailable) }
  }

  /// Turns the clock in steps, as long as the lane would not sleep through a deadline.
  func advance(by time: Duration, step: Duration = .milliseconds(10)) {
    var left = time
    while left > .zero {
      clock.advance(by: min(step, left))
      poller.timers.fireDue()
      left -= step
    }
  }

  /// Plays the lane until `condition` holds, at most ten seconds.
  func run(until condition: () -> Bool, sourceLocation: SourceLocation = #_sourceLocation) {
    let limit = monotonicNanoseconds() + 10_000_000_000
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
      hub.endpointHasEnded = true
      for session in hub.sessions { hub.settle(session) }
    } else {
      hub.detach()?.close()
    }
  }

  private(set) var flushes = 0
  func allHaveFinished() { flushes += 1 }

  func writerChanged(from old: Session?, to new: Session?) {
    #expect(old?.number == writers.last ?? nil, "the pen comes from the one who had it")
    writers.append(new?.number)
  }

  func sessionDrops(_ session: Session, bytes: UInt64) { drops[session.number, default: []].append(bytes) }

  func sessionIsOver(_ session: Session, _ ending: Ending) {
    endings[session.number, default: []].append(ending)
    droppedAtEnd[session.number] = session.dropped
    session.client.close()
  }
}

/// The running pattern of scripted streams.
func pattern(_ range: Range<Int>) -> [UInt8] { ScriptedStream.pattern(range) }
