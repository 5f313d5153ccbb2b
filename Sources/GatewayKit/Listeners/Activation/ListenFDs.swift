// Reads which sockets the starter of this process has passed: LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, the protocol
// of sd_listen_fds(3). Every value is checked. InheritedSockets decides what the sockets are for.

import Glibc
import StreamBroker

package struct ListenFDs: Sendable {
  struct Item: Hashable, Sendable {
    let raw: Int32
    /// The starter's name for it (FileDescriptorName=).
    let name: String?
  }

  /// Open descriptors that may be taken over.
  let items: [Item]
  /// What is wrong with the variables, as a message.
  package let problem: String?

  /// Reads the variables and unsets them: they would be wrong for programs that an endpoint runs. Call it once, before
  /// the process has threads or descriptors of its own.
  package static func take() -> ListenFDs {
    let names = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"]
    let values = names.map { name in getenv(name).map { String(cString: $0) } }
    for name in names + ["LISTEN_PIDFDID"] { unsetenv(name) }
    return ListenFDs(process: values[0], count: values[1], names: values[2])
  }

  init(_ items: [Item]) { (self.items, problem) = (items, nil) }

  init(process: String?, count: String?, names: String?) {
    let numbers: Range<Int32>
    do throws(Fault) {
      numbers = try Self.numbers(process, count)
    } catch {
      (items, problem) = ([], error.text)
      return
    }
    let names = names?.split(separator: ":", omittingEmptySubsequences: false) ?? []
    // A descriptor passed through execve(2) is not close-on-exec; one that we opened is. For a number that is not open,
    // fcntl(2) returns -1, which has all bits set.
    items = numbers.filter { fcntl($0, F_GETFD) & FD_CLOEXEC == 0 }.map { raw in
      let index = Int(raw - Self.first)
      return Item(raw: raw, name: index < names.count && !names[index].isEmpty ? String(names[index]) : nil)
    }
    let missing = numbers.count - items.count
    problem = missing == 0 ? nil : "LISTEN_FDS is \(numbers.count), but \(missing) of these descriptors are not open"
  }

  private static let first: Int32 = 3  // SD_LISTEN_FDS_START
  private static let most: Int32 = 4096

  private struct Fault: Error { let text: String }

  /// The numbers of the passed descriptors; empty if the variables are not set.
  private static func numbers(_ process: String?, _ count: String?) throws(Fault) -> Range<Int32> {
    guard let process, let count else { return first..<first }
    guard pid_t(process) == getpid() else {
      throw Fault(text: "LISTEN_PID is not this process, so no socket is inherited: \(Suggestion.quote(process))")
    }
    guard let count = Int32(count), (0...most).contains(count) else {
      throw Fault(
        text: "LISTEN_FDS is not a number from 0 to \(most), so no socket is inherited: \(Suggestion.quote(count))")
    }
    return first..<first + count
  }
}
