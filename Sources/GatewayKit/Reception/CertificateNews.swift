// Reports what happens to files of certificates once, however many listeners show what is in them.

import ByteStreams
import StreamTLS

/// Lives on the reception's lane, and hears of all its listeners.
final class CertificateNews {
  private let status: StatusSink
  private var faults: [String] = []
  private var doubts: Set<String> = []
  private var unwatched: Set<String> = []
  /// The newest files that were reported as renewed; the others have been forgotten by everybody.
  private var renewed: [TLSFileStamps] = []
  private static let mostRenewed = 64

  init(_ status: StatusSink) { self.status = status }

  /// Nothing is wrong or odd, as far as was reported.
  var isQuiet: Bool { faults.isEmpty && doubts.isEmpty }

  /// What is wrong at present, of all listeners. A fault that is new is reported once, and again only after it was gone.
  func areAtFault(_ all: [TLSSettingsFault]) {
    let texts = Set(all.map(\.description)).sorted()
    guard texts != faults else { return }
    var reported = Set(faults)
    for fault in all where reported.insert(fault.description).inserted { status.tell(.certificatesRefused(fault)) }
    faults = texts
    status.tell(.certificateFaults(texts))
  }

  /// What is odd at present, and shown all the same.
  func areInDoubt(_ all: [String]) {
    for warning in Set(all).subtracting(doubts).sorted() { status.tell(.certificateDoubtful(warning)) }
    doubts = Set(all)
  }

  /// A listener shows what the files hold now, in place of what they held before.
  func isRenewed(_ context: TLSServerContext) {
    guard !renewed.contains(context.stamps) else { return }
    renewed.append(context.stamps)
    if renewed.count > Self.mostRenewed { renewed.removeFirst() }
    status.tell(.certificatesRenewed(files: context.files))
  }

  func isUnwatched(_ file: String, _ error: SystemError) {
    if unwatched.insert(file).inserted { status.tell(.watchFailed(error, path: file)) }
  }
}
