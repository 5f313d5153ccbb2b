// From "connected" to "encrypted", as the management channel tells of it: answers what pairing asks, and says why a link that
// broke did, as far as pairing has a part in it. Sees no socket and no clock.

import ByteStreams
import Glibc
import StreamBroker

struct SecureFlow: Sendable {
  enum Step: Hashable, Sendable {
    case send(ManagementCommand)
    /// The link may stay, and will not be encrypted.
    case giveUp(Fault)
    case wait
  }

  enum Fault: Error, Hashable, Sendable {
    /// One side has forgotten the other; the bond is in this line, or at bluetoothd's.
    case stale(place: String)
    /// The device, or this machine, does not pair.
    case refused(besideDaemon: Bool)
    /// Somebody would have to compare a number or type one in.
    case needsPeople(besideDaemon: Bool)
    /// It would have to be one in which a number was compared.
    case tooWeak
    /// It came to no end.
    case silent(BondKeeper.Standing.Side)
  }

  /// For pairing, in which people may have a part. The kernel gives it 30 s, too.
  static let patience = Duration.seconds(30)

  /// Linux makes what pairs over Low Energy when the management channel switches an adapter on, and only then.
  static let cannotPair =
    "the adapter can't pair, since it was switched on by the old way, as by 'hciconfig hci0 up': switch it off ('hciconfig hci0 down'), "
    + "and it is switched on again the new way, by the gateway itself where it may"

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

  /// Nothing that it is asked is answered here.
  var leavesAnswersToOthers: Bool { besideDaemon }

  private var besideDaemon: Bool { standing.side == .daemon }

  /// Who pairs in its name all the same may be anybody that calls us while it is away. Over Low Energy nobody does: we call.
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
      // The URL asks for it. Where bluetoothd runs, its agents answer, and whoever answers first is believed.
      return besideDaemon ? .wait : .send(.confirm(device, adapter))
    case .asksToPair(device, justWorks: false): return refuse(.refuse)
    case .pairing(let news) where news.device == device: return handle(news)
    default: return .wait
    }
  }

  private mutating func handle(_ news: PairingNews) -> Step {
    switch news {
    case .linked:
      // What is told of an earlier link is no longer of interest.
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

  /// Unless there may be others who answer, such as bluetoothd's agents and the people before them.
  private mutating func refuse(_ code: ManagementCommand.Code) -> Step {
    (hasAsked, needsPeople) = (true, true)
    return standing.side == .ours ? .send(.refuse(code, device, adapter)) : .wait
  }

  /// Why it was: of a link that ended with this error, or could not be made. Nil when pairing has no part in it.
  func fault(of number: Int32?) -> Fault? {
    if needsPeople { return .needsPeople(besideDaemon: besideDaemon) }
    let line = hasAsked || hasNewKey ? nil : standing.lines[device]
    let isDenied = number == EACCES || number == EPERM
    // The kernel's word for "could not decrypt" is that of a code it has no errno for: the keys are of different pairings.
    let hasOtherKey = number == ENOSYS && line != nil
    if isDenied, !isRefused {
      // Who may not hear of pairing can't say more than the error does.
      if standing.side == .nobody, !hasAsked { return nil }
      if wanted == .high { return .tooWeak }
    }
    guard isRefused || isDenied || hasOtherKey else { return nil }
    if let line { return .stale(place: "line \(line) of \(standing.path)") }
    // Nobody here compares a number.
    return standing.side == .ours && wanted == .high ? .tooWeak : .refused(besideDaemon: besideDaemon)
  }

  /// Time is up.
  func faultOfSilence() -> Fault {
    needsPeople ? .needsPeople(besideDaemon: besideDaemon) : .silent(standing.side)
  }

  /// What is said of a link that broke, or could not be made: pairing may know why.
  func explained(_ failure: OpenFailure) -> OpenFailure {
    fault(of: failure.cause?.errno)?.failure(failure.attempt, failure.cause, device) ?? failure
  }

  /// What is said of a link that may stay, but for this.
  func failure(_ fault: Fault) -> OpenFailure { fault.failure("secure the link with \(device)", nil, device) }
}

extension SecureFlow.Fault {
  func failure(_ attempt: String, _ cause: SystemError?, _ device: PairedAddress) -> OpenFailure {
    OpenFailure(attempt, cause ?? SystemError("pair", isSilence ? ETIMEDOUT : EACCES), advice: advice(device))
  }

  private var isSilence: Bool { if case .silent = self { true } else { false } }

  func advice(_ device: PairedAddress) -> String {
    switch self {
    case .stale(let place):
      "the bond with \(device) is stale, one side has forgotten the other: remove \(place), and it is paired anew at the next try "
        + "(the device may have to be made ready for that)"
    case .refused(besideDaemon: true):
      "bluetoothd runs, and pairing is its business: 'bluetoothctl pair \(device)' does it once; where it was done, the bond is stale, "
        + "and 'bluetoothctl remove \(device)' comes first"
    case .refused(besideDaemon: false):
      "the device refused to pair: make it ready for that, and if it knows this machine from before, let it forget that"
    case .needsPeople(besideDaemon: true): "pairing asks for a number; 'bluetoothctl pair \(device)' does it once"
    case .needsPeople(besideDaemon: false):
      "the device pairs only with somebody who compares or types in a number: pair it under bluetoothd, by 'bluetoothctl pair \(device)'"
    case .tooWeak:
      "the pairing is too weak for security=high: it takes one in which a number was compared, which bluetoothd's agent sees to: "
        + "'bluetoothctl remove \(device)', then 'bluetoothctl pair \(device)'"
    case .silent(.daemon):
      "the link was not encrypted within \(SecureFlow.patience): bluetoothd answers for this machine; pair by 'bluetoothctl pair \(device)' once"
    case .silent(.nobody):
      "the link was not encrypted within \(SecureFlow.patience): to pair takes CAP_NET_ADMIN, or, beside bluetoothd, "
        + "'bluetoothctl pair \(device)' once"
    case .silent(.ours) where device.kind != .classic:
      "the link was not encrypted within \(SecureFlow.patience): the device does not pair now, or \(SecureFlow.cannotPair)"
    case .silent(.ours): "the link was not encrypted within \(SecureFlow.patience)"
    }
  }
}
