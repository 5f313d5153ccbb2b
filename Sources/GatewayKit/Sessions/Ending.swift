// Why a session is over. Every session ends with exactly one ending; log, events, status and tests use the same word.

import ByteStreams
import StreamBroker
import StreamTLS
import StreamTelnet
import StreamWebSocket

package struct Ending: Sendable {
  package enum Word: String, CaseIterable, Sendable {
    case clientLeft = "client-left"
    case noAnswer = "no-answer"
    case endpointLeft = "endpoint-left"
    case clientLost = "client-lost"
    case openFailed = "open-failed"
    case deviceLost = "device-lost"
    case full
    case queueLeft = "queue-left"
    case denied
    case loginFailed = "login-failed"
    case protocolError = "protocol-error"
    case replaced, kicked, idle
    case tooSlow = "too-slow"
    case routeRemoved = "route-removed"
    case shutdown
    case `internal`

    package var fault: Fault {
      switch self {
      case .clientLeft, .noAnswer, .endpointLeft, .full, .queueLeft: .nobody
      case .clientLost, .denied, .loginFailed, .protocolError: .client
      case .openFailed, .deviceLost: .endpoint
      case .replaced, .kicked, .idle, .tooSlow: .policy
      case .routeRemoved, .shutdown, .internal: .ourselves
      }
    }
  }

  package enum Fault: String, Sendable { case nobody, client, endpoint, policy, ourselves }

  package let word: Word
  /// The cause: SystemError, OpenFailure, …
  package let cause: (any Error)?

  /// A client's connection broke, or its bytes violated its protocol.
  init(brokenBy error: any Error) {
    switch error {
    case let fault as WebSocketFault: self.init(fault.code == .truncated ? .clientLost : .protocolError, error)
    case is TelnetFault: self.init(.protocolError, error)
    case TLSFailure.system, TLSFailure.truncated: self.init(.clientLost, error)
    case TLSFailure.noMemory: self.init(.internal, error)
    case is TLSFailure: self.init(.protocolError, error)
    case is InternalFault: self.init(.internal, error)
    // The kernel has no memory for our epoll registration.
    case let failure as SystemError where failure.call == "epoll_ctl": self.init(.internal, error)
    default: self.init(.clientLost, error)
    }
  }

  package init(_ word: Word, _ cause: (any Error)? = nil) {
    self.word = word
    self.cause = cause
  }
}

/// A half-closed client received nothing until its time was over.
struct NoAnswer: Error, CustomStringConvertible {
  let limit: Duration
  var description: String {
    "nothing came for the client in the \(Units.text(limit)) after it finished sending; 'clients.half-close' sets that time"
  }
}
