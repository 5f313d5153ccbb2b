// Looks up names. What the machine can answer by itself (LocalNames) never waits for anything else. The rest is for
// getaddrinfo(3), which may block for minutes: on some threads, at most `mostOutstanding`. If all of them hang, names
// wait for their turn. There is one look-up per name; later callers join it. Nothing is cached here; the resolver does
// that.

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

  /// A caller that waits.
  struct Token: Sendable {
    fileprivate let name: String
    fileprivate let number: Int
  }

  // Threads that may hang in the resolver at the same time; each is a name with a dead server.
  static let mostOutstanding = 32

  private struct Entry {
    var callers: [Int: @Sendable (Answer) -> Void] = [:]
    let resolve: @Sendable (String) -> Answer
    /// It waits for a thread since this turn; nil while it is looked up.
    var waitsSince: UInt64?
  }

  private struct Table {
    var entries: [String: Entry] = [:]
    var outstanding = 0
    var lastNumber = 0
    var turn: UInt64 = 0
    /// When the resolver was last asked for a name, by turns. So a name whose callers give up while they wait, and come
    /// back, is not overtaken by one that has had its turn.
    var asked: [String: UInt64] = [:]
  }

  // As many names as a configuration has routes at most.
  private static let mostRemembered = 16_384
  private static let table = Mutex(Table())
  // Serial, and never blocked by a name server.
  private static let local = DispatchQueue(label: "local names")

  /// Finds the addresses of `name`, with port 0, and calls `done` on `poller`'s lane, always later. `resolve` is
  /// getaddrinfo(3) and `hosts` the hosts file, except in tests.
  @discardableResult
  static func start(
    _ name: String, on poller: Poller, hosts: String = LocalNames.hostsFile,
    resolve: @escaping @Sendable (String) -> Answer = system, then done: @escaping (Answer) -> Void
  ) -> Token {
    let answer = poller.expect(done)
    let name = name.lowercased()
    let (number, isFirst) = table.withLock { table in
      table.lastNumber += 1
      let isFirst = table.entries[name] == nil
      table.entries[name, default: Entry(resolve: resolve)].callers[table.lastNumber] = answer
      return (table.lastNumber, isFirst)
    }
    if isFirst {
      local.async {
        if let found = LocalNames.addresses(of: name, hosts: hosts) { tell(name, .success(found)) } else { wait(name) }
      }
    }
    return Token(name: name, number: number)
  }

  /// The caller no longer waits; its `done` is called at once, with a failure. Does nothing once it was answered.
  static func cancel(_ token: Token) {
    let answer = table.withLock { table -> (@Sendable (Answer) -> Void)? in
      let answer = table.entries[token.name]?.callers.removeValue(forKey: token.number)
      // A look-up in progress can't be ended. One that waits for its turn needs none any more.
      if let entry = table.entries[token.name], entry.callers.isEmpty, entry.waitsSince != nil {
        table.entries[token.name] = nil
      }
      return answer
    }
    answer?(.failure(LookupFailure(text: "Request canceled", advice: nil, cause: nil)))
  }

  private static func tell(_ name: String, _ answer: Answer) {
    let entry = table.withLock { $0.entries.removeValue(forKey: name) }
    for tell in entry?.callers.values.map(\.self) ?? [] { tell(answer) }
  }

  /// Only the resolver can know `name`: asks it, now or when it is its turn.
  private static func wait(_ name: String) {
    table.withLock { table in
      guard table.entries[name]?.callers.isEmpty == false else {
        table.entries[name] = nil
        return
      }
      table.turn += 1
      table.entries[name]?.waitsSince = table.turn
    }
    ask()
  }

  /// Asks for the names whose turn it is: of those that wait, the ones that were not asked for the longest time.
  private static func ask() {
    while let (name, resolve) = table.withLock({ next(&$0) }) {
      DispatchQueue(label: "look up \(name)").async {
        let found = resolve(name)
        table.withLock { $0.outstanding -= 1 }
        tell(name, found)
        ask()
      }
    }
  }

  private static func next(_ table: inout Table) -> (String, @Sendable (String) -> Answer)? {
    guard table.outstanding < mostOutstanding else { return nil }
    var first: (name: String, entry: Entry, asked: UInt64, since: UInt64)?
    for (name, entry) in table.entries {
      guard let since = entry.waitsSince else { continue }
      let asked = table.asked[name] ?? 0
      if first.map({ (asked, since) < ($0.asked, $0.since) }) ?? true { first = (name, entry, asked, since) }
    }
    guard let (name, entry, _, _) = first else { return nil }
    table.outstanding += 1
    table.entries[name]?.waitsSince = nil
    if table.asked.count >= mostRemembered {
      let entries = table.entries
      table.asked = table.asked.filter { entries[$0.key] != nil }
    }
    table.turn += 1
    table.asked[name] = table.turn
    return (name, entry.resolve)
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
