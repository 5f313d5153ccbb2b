// What the environment says of sockets that this process was started with: LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, the
// protocol of sd_listen_fds(3). Nothing of it is believed. What the sockets are for is InheritedSockets' matter.

import Glibc
import StreamBroker

public struct Handover: Sendable {
  struct Item: Hashable, Sendable {
    let raw: Int32
    /// What its starter calls it (FileDescriptorName=).
    let name: String?
  }

  /// Descriptors that are open and may be taken over.
  let items: [Item]
  /// What is wrong with the variables, for people.
  public let problem: String?

  /// Reads the variables and removes them: for a program that an endpoint runs they would be wrong. Call it once, before there
  /// are threads or descriptors of our own.
  public static func take() -> Handover {
    let names = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"]
    let values = names.map { name in getenv(name).map { String(cString: $0) } }
    for name in names + ["LISTEN_PIDFDID"] { unsetenv(name) }
    return Handover(process: values[0], count: values[1], names: values[2])
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
    // What came through execve(2) is not close-on-exec, what was opened since is, and for what is not open it says -1.
    items = numbers.filter { fcntl($0, F_GETFD) & FD_CLOEXEC == 0 }.map { raw in
      let place = Int(raw - Self.first)
      return Item(raw: raw, name: place < names.count && !names[place].isEmpty ? String(names[place]) : nil)
    }
    let missing = numbers.count - items.count
    problem = missing == 0 ? nil : "LISTEN_FDS says \(numbers.count), but \(missing) of these descriptors are not open"
  }

  private static let first: Int32 = 3  // SD_LISTEN_FDS_START
  private static let most: Int32 = 4096

  private struct Fault: Error { let text: String }

  /// Which descriptors were handed over. None where nothing is said of them.
  private static func numbers(_ process: String?, _ count: String?) throws(Fault) -> Range<Int32> {
    guard let process, let count else { return first..<first }
    guard pid_t(process) == getpid() else {
      throw Fault(text: "LISTEN_PID is not this process, so no socket is taken over: \(Suggestion.quote(process))")
    }
    guard let count = Int32(count), (0...most).contains(count) else {
      throw Fault(
        text: "LISTEN_FDS is no number from 0 to \(most), so no socket is taken over: \(Suggestion.quote(count))")
    }
    return first..<first + count
  }
}
