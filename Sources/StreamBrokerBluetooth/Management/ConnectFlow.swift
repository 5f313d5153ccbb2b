// From "that device" to "connected": what ends the waiting for connect(2), and what is said of it. Sees no socket and no clock.

import ByteStreams
import Glibc
import StreamBroker

struct ConnectFlow: Sendable {
  enum Event: Hashable, Sendable {
    /// connect(2) is over, well or not.
    case connected
    case failed(SystemError)
    case management(ManagementEvent)
    case timedOut
  }

  enum Step: Hashable, Sendable {
    case ready
    case giveUp(Fault)
    /// The device is there, and what goes on is pairing: its time counts from now on.
    case nowPairs
    case wait
  }

  enum Fault: Error, Hashable, Sendable {
    case system(SystemError)
    /// The kernel would go on calling an LE device for 40 s.
    case silent(after: Duration)
    case adapterIsGone
    case adapterIsOff
    /// It is linked, and asked for nothing, and neither encrypted nor ended.
    case neverSecured
  }

  private enum State: Hashable { case calling, pairing, over }

  let device: PairedAddress
  let adapter: UInt16
  /// For the device to answer; unless whoever opens gives another time (`device.connect-timeout`).
  let patience: Duration
  static let standardPatience = Duration.seconds(10)
  private var state = State.calling
  /// It is known that the device was reached, whatever comes of it.
  private(set) var isLinked = false

  init(_ device: PairedAddress, on adapter: UInt16, patience: Duration) {
    self.device = device
    self.adapter = adapter
    self.patience = patience
  }

  mutating func handle(_ event: Event) -> Step {
    guard state != .over else { return .wait }
    switch event {
    case .connected:
      state = .over
      return .ready
    case .failed(let error): return giveUp(.system(error))
    case .timedOut: return giveUp(state == .pairing ? .neverSecured : .silent(after: patience))
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
    // The socket is not connected before the link is encrypted, where that was asked for.
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
  /// What is said of it whatever was to be reached; its owner has better words for the first two.
  func failure(_ attempt: String) -> OpenFailure {
    switch self {
    case .system(let error): OpenFailure(attempt, error)
    case .silent(let time):
      OpenFailure(attempt, SystemError("connect", ETIMEDOUT), advice: "no answer within \(time)")
    case .adapterIsGone:
      OpenFailure(attempt, SystemError("connect", EHOSTUNREACH), advice: "the adapter has just gone")
    case .adapterIsOff:
      OpenFailure(attempt, SystemError("connect", EHOSTUNREACH), advice: "the adapter was just switched off")
    case .neverSecured:
      OpenFailure(
        attempt, SystemError("connect", ETIMEDOUT), advice: "pairing came to no end within \(SecureFlow.patience)")
    }
  }
}
