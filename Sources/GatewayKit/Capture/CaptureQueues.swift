// The queues on which recordings write their files. A file system may hang, and its thread with it: that stops the
// recordings of one folder, and not those of others.

import Dispatch
import Synchronization

final class CaptureQueues: Sendable {
  /// A queue that hangs keeps a thread of Dispatch, and lanes need those too. There are 255.
  static let most = 16

  private struct Entry {
    let folder: String
    weak var queue: DispatchQueue?
  }
  private let entries = Mutex<[Entry]>([])

  /// The serial queue of a folder, for as long as somebody keeps it. When there are `most`, a further folder shares the
  /// queue of the one whose path is most like its own, which probably is on the same file system.
  func queue(of folder: String) -> DispatchQueue {
    entries.withLock { entries in
      entries.removeAll { $0.queue == nil }
      if let known = entries.first(where: { $0.folder == folder })?.queue { return known }
      let likeness = { (entry: Entry) in zip(entry.folder.utf8, folder.utf8).prefix { $0 == $1 }.count }
      let alike = entries.max { likeness($0) < likeness($1) }?.queue
      if let alike, entries.count >= Self.most { return alike }
      let queue = DispatchQueue(label: "baudway.capture")
      entries.append(Entry(folder: folder, queue: queue))
      return queue
    }
  }

  /// Returns when everything that was asked for before is done; for tests.
  func settle() {
    for queue in entries.withLock({ $0.compactMap(\.queue) }) { queue.sync {} }
  }
}
