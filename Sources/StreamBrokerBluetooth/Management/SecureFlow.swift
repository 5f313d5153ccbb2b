// From "connected" to "encrypted", by events of the management channel: answers pairing requests, and explains why a
// link broke if pairing was the reason. Uses no socket and no clock.

import ByteStreams
import Glibc
import StreamBrokerCore

struct SecureFlow: Sendable {
  enum Step: Hashable, Sendable {
    case send(ManagementCommand)
    /// The link may stay open, but will not be encrypted.
    case giveUp(Fault)
    case wait
  }

  enum Fault: Error, Hashable, Sendable {
    /// One side has forgotten the other; `path` is the line and file of the bond.
    case stale(path: String)
    /// The device, or this machine, refuses to pair.
    case refused(besideDaemon: Bool)
    /// Somebody would have to compare a number or type one in.
    case needsPeople(besideDaemon: Bool)
    /// The pairing must be one in which a number is compared.
    case tooWeak
    /// It did not finish in time.
    case silent(BondKeeper.Standing.Side)
  }

  /// For pairing, which may need people. The kernel allows 30 s, too.
  static let timeout = Duration.seconds(30)

  /// Linux sets up pairing over Low Energy only when the management channel switches the adapter on.
  static let cannotPair =
    "the adapter can't pair, because it was switched on by the old interface ('hciconfig hci0 up'): switch it off ('hciconfig hci0 down'); "
    + "the gateway then switches it on by the new one, if it has CAP_NET_ADMIN"

  let device: PairedAddress
  let adapter: UInt16
  private let standing: BondKeeper.Standing
  private let wanted: BluetoothTarget.Security?
  private var hasAsked = false
  private var hasNewKey = false
  private var needsPeople = false
  private var isRefused = false

  init(
    _ device: PairedAddress, on adapter: UInt16, _ standing: BondKeeper.Standing,
    wanting security: BluetoothTarget.Security? = nil
  ) {
    self.device = device
    wanted = security
    self.adapter = adapter
    self.standing = standing
  }

  /// Others answer the device's requests; this flow does not.
  var leavesAnswersToOthers: Bool { besideDaemon }

  private var besideDaemon: Bool { standing.side == .daemon }

  /// We have a key of the device, so a pairing request in its name may come from another device that connects to us
  /// while it is away. Over Low Energy only we connect.
  private var isKnownByKey: Bool {
    standing.side == .ours && device.kind == .classic && standing.lines[device] != nil
  }

  mutating func handle(_ event: ManagementEvent) -> Step {
    guard event.adapter == adapter else { return .wait }
    switch event.content {
    case .asksToPair(device, justWorks: true):
      if isKnownByKey {
        isRefused = true
        return .send(.refuse(.refuse, device, adapter))
      }
      hasAsked = true
      // Confirm, as the URL asks for pairing. If bluetoothd runs, its agents answer, and the kernel uses the first
      // answer.
      return besideDaemon ? .wait : .send(.confirm(device, adapter))
    case .asksToPair(device, justWorks: false): return refuse(.refuse)
    case .pairing(let news) where news.device == device: return handle(news)
    default: return .wait
    }
  }

  private mutating func handle(_ news: PairingEvent) -> Step {
    switch news {
    case .linked:
      // Events of an earlier link do not count any more.
      (hasAsked, hasNewKey, needsPeople, isRefused) = (false, false, false, false)
    case .key: hasNewKey = true
    case .asksForNumber: return refuse(.refuseNumber)
    case .asksForPIN: return refuse(.refusePIN)
    case .failed:
      isRefused = true
      return fault(of: nil).map { .giveUp($0) } ?? .wait
    case .unlinked(_, byAuthentication: true): isRefused = true
    case .unlinked: break
    }
    return .wait
  }

  /// Refuses, unless others may answer, such as the people at bluetoothd's agents.
  private mutating func refuse(_ code: ManagementCommand.Code) -> Step {
    (hasAsked, needsPeople) = (true, true)
    return standing.side == .ours ? .send(.refuse(code, device, adapter)) : .wait
  }

  /// Why a link ended with this error, or could not be made. Nil if pairing is not the reason.
  func fault(of number: Int32?) -> Fault? {
    if needsPeople { return .needsPeople(besideDaemon: besideDaemon) }
    let line = hasAsked || hasNewKey ? nil : standing.lines[device]
    let isDenied = number == EACCES || number == EPERM
    // The kernel has no errno for "could not decrypt", and returns ENOSYS: the keys are from different pairings.
    let hasOtherKey = number == ENOSYS && line != nil
    if isDenied, !isRefused {
      // Without pairing events, the error is all we know.
      if standing.side == .nobody, !hasAsked { return nil }
      if wanted == .high { return .tooWeak }
    }
    guard isRefused || isDenied || hasOtherKey else { return nil }
    if let line { return .stale(path: "line \(line) of \(standing.path)") }
    // Nobody here compares a number.
    return standing.side == .ours && wanted == .high ? .tooWeak : .refused(besideDaemon: besideDaemon)
  }

  /// The reason when the time is up.
  func faultOfSilence() -> Fault {
    needsPeople ? .needsPeople(besideDaemon: besideDaemon) : .silent(standing.side)
  }

  /// The report for a link that broke, or could not be made: with the reason from pairing, if there is one.
  func explained(_ failure: OpenFailure) -> OpenFailure {
    fault(of: failure.cause?.errno)?.failure(failure.attempt, failure.cause, device) ?? failure
  }

  /// The report for a link that works except for this fault.
  func failure(_ fault: Fault) -> OpenFailure { fault.failure("secure the link with \(device)", nil, device) }
}

extension SecureFlow.Fault {
  func failure(_ attempt: String, _ cause: SystemError?, _ device: PairedAddress) -> OpenFailure {
    OpenFailure(attempt, cause ?? SystemError("pair", isSilence ? ETIMEDOUT : EACCES), advice: advice(device))
  }

  private var isSilence: Bool { if case .silent = self { true } else { false } }

  func advice(_ device: PairedAddress) -> String {
    switch self {
    case .stale(let path):
      "the bond with \(device) is stale: one side has lost it. Remove \(path); the next attempt pairs again "
        + "(the device may need to be in pairing mode)"
    case .refused(besideDaemon: true):
      "bluetoothd runs, and does the pairing: run 'bluetoothctl pair \(device)' once; if that was done, the bond is stale, "
        + "so run 'bluetoothctl remove \(device)' first"
    case .refused(besideDaemon: false):
      "the device refused to pair: put it in pairing mode, and if it has an old bond with this machine, remove that on the device"
    case .needsPeople(besideDaemon: true): "pairing asks for a number; run 'bluetoothctl pair \(device)' once"
    case .needsPeople(besideDaemon: false):
      "pairing needs a number to compare or enter: pair the device with bluetoothd, by 'bluetoothctl pair \(device)'"
    case .tooWeak:
      "the pairing is too weak for security=high, which needs one in which bluetoothd's agent compared a number: run "
        + "'bluetoothctl remove \(device)', then 'bluetoothctl pair \(device)'"
    case .silent(.daemon):
      "the link was not encrypted within \(SecureFlow.timeout): bluetoothd does the pairing here; run 'bluetoothctl pair \(device)' once"
    case .silent(.nobody):
      "the link was not encrypted within \(SecureFlow.timeout): pairing needs CAP_NET_ADMIN, or with bluetoothd "
        + "'bluetoothctl pair \(device)' once"
    case .silent(.ours) where device.kind != .classic:
      "the link was not encrypted within \(SecureFlow.timeout): the device is not in pairing mode, or \(SecureFlow.cannotPair)"
    case .silent(.ours): "the link was not encrypted within \(SecureFlow.timeout)"
    }
  }
}
