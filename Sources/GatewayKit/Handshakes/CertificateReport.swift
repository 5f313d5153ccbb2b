// Reports each event of a certificate file once, however many listeners use the file.

import ByteStreams
import StreamTLS

/// Runs on the handshake server's lane and serves all its listeners.
final class CertificateReport {
  private let status: StatusSink
  private var faults: [String] = []
  private var doubts: Set<String> = []
  private var unwatched: Set<String> = []
  /// Files that were reported as renewed, the newest `mostRenewed` of them. No listener uses older versions any more.
  private var renewed: [TLSFileStamps] = []
  private static let mostRenewed = 64

  init(_ status: StatusSink) { self.status = status }

  /// Whether no fault and no warning is reported at present.
  var isQuiet: Bool { faults.isEmpty && doubts.isEmpty }

  /// `all`: the present faults of all listeners. A new fault is reported once, and again only after it was fixed.
  func areAtFault(_ all: [TLSSettingsFault]) {
    let texts = Set(all.map(\.description)).sorted()
    guard texts != faults else { return }
    var reported = Set(faults)
    for fault in all where reported.insert(fault.description).inserted { status.publish(.certificatesRefused(fault)) }
    faults = texts
    status.publish(.certificateFaults(texts))
  }

  /// `all`: the present warnings about certificates that are in use all the same.
  func areInDoubt(_ all: [String]) {
    for warning in Set(all).subtracting(doubts).sorted() { status.publish(.certificateDoubtful(warning)) }
    doubts = Set(all)
  }

  /// A listener uses the files' new content.
  func isRenewed(_ context: TLSServerContext) {
    guard !renewed.contains(context.stamps) else { return }
    renewed.append(context.stamps)
    if renewed.count > Self.mostRenewed { renewed.removeFirst() }
    status.publish(.certificatesRenewed(files: context.files))
  }

  func isUnwatched(_ file: String, _ error: SystemError) {
    if unwatched.insert(file).inserted { status.publish(.watchFailed(error, path: file)) }
  }
}
