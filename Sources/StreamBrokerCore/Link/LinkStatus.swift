// The state of a link, as a value, for the log and the status page. Decides nothing: the link's owner changes the
// state.

import ByteStreams

/// The state of the link to an endpoint: `StreamHandle.status`.
public enum LinkStatus: Hashable, Sendable {
  /// Nothing is open.
  case closed
  /// An opening is in progress.
  case opening
  /// Bytes can flow.
  case open
  /// It could not be opened, or was lost; opening will be retried.
  case waiting(Reason)
  /// No client needs it any more, but output to the endpoint is still being sent.
  case draining

  /// Why a wanted link is not open.
  public enum Reason: Hashable, Sendable {
    /// The last opening failed.
    case openFailed(OpenFailure)
    /// It was open and failed; without an error, it ended in order.
    case lost(SystemError?)
    /// It was a program that has ended.
    case exited(ProgramEnd)
    /// It was open, and was given up because of a bug of ours.
    case broken(InternalFault)
    /// The gateway was told to give the port up until it is told to open it again. No stream of the library has this.
    case released

    /// Why an open link is gone, from the error that reported it; nil means that it ended in order.
    package init(losingBy error: (any Error)?) {
      switch error {
      case let end as ProgramEnd: self = .exited(end)
      case let fault as InternalFault: self = .broken(fault)
      default: self = .lost(error as? SystemError)
      }
    }
  }

  /// Why it waits.
  public var reason: Reason? { if case .waiting(let reason) = self { reason } else { nil } }

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
    case .released: "released"
    }
  }
}

extension LinkStatus: CustomStringConvertible {
  public var description: String {
    if case .waiting(let reason) = self { "waiting: \(reason)" } else { word }
  }
}
