// Resolves names by getaddrinfo(3), which may block for minutes. Each name has a queue of its own, so that a dead name
// server delays no other name. There is one look-up per name; later callers join it. Nothing is cached here; the
// resolver does that.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import Synchronization

/// Process-wide, as the resolver is.
enum NameLookup {
  typealias Answer = Result<[SocketAddress], LookupFailure>

  struct LookupFailure: Error, Hashable {
    /// The text of gai_strerror(3).
    let text: String
    let advice: String?
    /// The errno, for EAI_SYSTEM.
    let cause: SystemError?
  }

  // Threads that may hang in the resolver at the same time; each is a name with a dead server.
  static let mostOutstanding = 32
  // Callers that may wait for one name. Callers whose clients gave up long ago count, too, until the resolver answers.
  static let mostWaiting = 1024

  private static let waiting = Mutex<[String: [@Sendable (Answer) -> Void]]>([:])

  /// Finds the addresses of `name`, with port 0, and calls `done` on `poller`'s lane, always later. `resolve` is
  /// getaddrinfo(3), except in tests.
  static func start(
    _ name: String, on poller: Poller, resolve: @escaping @Sendable (String) -> Answer = system,
    then done: @escaping (Answer) -> Void
  ) {
    let answer = poller.expect(done)
    enum Turn { case first, joins, tooMany, oneTooMany }
    let turn = waiting.withLock { waiting -> Turn in
      if let others = waiting[name]?.count {
        guard others < mostWaiting else { return .oneTooMany }
        waiting[name]?.append(answer)
        return .joins
      }
      guard waiting.count < mostOutstanding else { return .tooMany }
      waiting[name] = [answer]
      return .first
    }
    switch turn {
    case .joins: break
    case .tooMany:
      let advice = "\(mostOutstanding) other look-ups hang; check that the name server is reachable"
      answer(.failure(LookupFailure(text: "Too many names are being looked up", advice: advice, cause: nil)))
    case .oneTooMany:
      let advice = "\(mostWaiting) others wait for this name; check that the name server is reachable"
      answer(.failure(LookupFailure(text: "The name is being looked up already", advice: advice, cause: nil)))
    case .first:
      DispatchQueue(label: "look up \(name)").async {
        let found = resolve(name)
        for answer in waiting.withLock({ $0.removeValue(forKey: name) }) ?? [] { answer(found) }
      }
    }
  }

  /// Asks the system's resolver. Blocks.
  static func system(_ name: String) -> Answer {
    var hints = addrinfo()
    hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
    hints.ai_flags = AI_ADDRCONFIG
    var list: UnsafeMutablePointer<addrinfo>?
    let code = getaddrinfo(name, nil, &hints, &list)
    let number = errno
    guard code == 0 else { return .failure(failure(code, number)) }
    defer { freeaddrinfo(list) }
    var found: [SocketAddress] = []
    var entry = list
    while let one = entry?.pointee {
      if let raw = one.ai_addr, let address = SocketAddress(raw, length: one.ai_addrlen) { found.append(address) }
      entry = one.ai_next
    }
    return .success(found)
  }

  private static func failure(_ code: Int32, _ number: Int32) -> LookupFailure {
    let advice: String? =
      switch code {
      case EAI_NONAME: "check the spelling, or use the numeric address"
      case EAI_AGAIN: "the name server does not answer; check /etc/resolv.conf and the network"
      default: nil
      }
    return LookupFailure(
      text: String(cString: gai_strerror(code)), advice: advice,
      cause: code == EAI_SYSTEM ? SystemError("getaddrinfo", number) : nil)
  }
}
