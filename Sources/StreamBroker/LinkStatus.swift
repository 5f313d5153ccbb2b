// What is going on with a link, as a value: the broker and the gateway say it, the log and the status page show it.
// It decides nothing; when a link moves on is its owner's work.

import ByteStreams

public enum LinkStatus: Hashable, Sendable {
  case closed
  case opening
  case open
  /// It could not be opened, or went; it will be tried again.
  case waiting(Reason)
  /// Nobody needs it any more; what was sent to it is still on its way.
  case draining

  /// Why there is no link although one is wanted.
  public enum Reason: Hashable, Sendable {
    case openFailed(OpenFailure)
    /// It was open and broke, or ended in order when there is no error.
    case lost(SystemError?)
    /// It was a program, which has ended.
    case exited(ProgramEnd)
    /// It was open, and was given up for a mistake of ours.
    case broken(InternalFault)

    /// Why an open link is gone, of the error that told it; nil when it ended in order.
    public init(losingBy error: (any Error)?) {
      switch error {
      case let end as ProgramEnd: self = .exited(end)
      case let fault as InternalFault: self = .broken(fault)
      default: self = .lost(error as? SystemError)
      }
    }
  }

  /// The word for logs and status: "open", "waiting".
  public var word: String {
    switch self {
    case .closed: "closed"
    case .opening: "opening"
    case .open: "open"
    case .waiting: "waiting"
    case .draining: "draining"
    }
  }
}

extension LinkStatus.Reason: CustomStringConvertible {
  public var description: String {
    switch self {
    case .openFailed(let failure): failure.description
    case .lost(let error?): error.description
    case .lost(nil): "ended"
    case .exited(let end): end.description
    case .broken(let fault): fault.description
    }
  }
}

extension LinkStatus: CustomStringConvertible {
  public var description: String {
    if case .waiting(let reason) = self { "waiting: \(reason)" } else { word }
  }
}
