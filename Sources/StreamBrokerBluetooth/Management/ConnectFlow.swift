// From "that device" to "connected": when to stop waiting for connect(2), and what to report then. Uses no socket and
// no clock.

import ByteStreams
import Glibc
import StreamBrokerCore

struct ConnectFlow: Sendable {
  enum Event: Hashable, Sendable {
    /// connect(2) has ended: with success, or else by `failed`.
    case connected
    case failed(SystemError)
    case management(ManagementEvent)
    case timedOut
  }

  enum Step: Hashable, Sendable {
    case ready
    case giveUp(Fault)
    /// The device answers, and pairing follows: its time limit counts from now on.
    case nowPairs
    case wait
  }

  enum Fault: Error, Hashable, Sendable {
    case system(SystemError)
    /// No answer in time. The kernel would try an LE device for 40 s.
    case silent(after: Duration)
    case adapterIsGone
    case adapterIsOff
    /// Pairing began, but the link was neither encrypted nor closed in time.
    case neverSecured
  }

  private enum State: Hashable { case calling, pairing, over }

  let device: PairedAddress
  let adapter: UInt16
  /// How long the device may take to answer. The opener may set it (`device.connect-timeout`).
  let timeout: Duration
  private var state = State.calling
  /// The device was reached, whatever happens later.
  private(set) var isLinked = false
  var isPairing: Bool { state == .pairing }

  init(_ device: PairedAddress, on adapter: UInt16, timeout: Duration) {
    self.device = device
    self.adapter = adapter
    self.timeout = timeout
  }

  mutating func handle(_ event: Event) -> Step {
    guard state != .over else { return .wait }
    switch event {
    case .connected:
      state = .over
      return .ready
    case .failed(let error): return giveUp(.system(error))
    case .timedOut: return giveUp(state == .pairing ? .neverSecured : .silent(after: timeout))
    case .management(let event): return event.adapter == adapter ? handle(event.content) : .wait
    }
  }

  private mutating func handle(_ content: ManagementEvent.Content) -> Step {
    switch content {
    case .pairing(.linked(device, _)):
      isLinked = true
      return .wait
    case .adapterRemoved: return giveUp(.adapterIsGone)
    case .settings(let settings) where !settings.contains(.powered): return giveUp(.adapterIsOff)
    // If encryption was asked for, the socket connects only after the link is encrypted.
    case .asksToPair(device, _), .pairing(.asksForNumber(device)), .pairing(.asksForPIN(device)):
      guard state == .calling else { return .wait }
      isLinked = true
      state = .pairing
      return .nowPairs
    default: return .wait
    }
  }

  private mutating func giveUp(_ fault: Fault) -> Step {
    state = .over
    return .giveUp(fault)
  }
}

extension ConnectFlow.Fault {
  /// The report for any target. Targets report the first two cases in better words.
  func failure(_ attempt: String) -> OpenFailure {
    switch self {
    case .system(let error): OpenFailure(attempt, error)
    case .silent(let time):
      OpenFailure(attempt, SystemError("connect", ETIMEDOUT), advice: "no answer within \(time)")
    case .adapterIsGone:
      OpenFailure(attempt, SystemError("connect", EHOSTUNREACH), advice: "the adapter was just removed")
    case .adapterIsOff:
      OpenFailure(attempt, SystemError("connect", EHOSTUNREACH), advice: "the adapter was just switched off")
    case .neverSecured:
      OpenFailure(
        attempt, SystemError("connect", ETIMEDOUT), advice: "pairing did not finish within \(SecureFlow.timeout)")
    }
  }
}
