// Keeps what TLS shows at an entrance in step with its files: made when it is first needed, and made anew when one of them
// changes and at a reload, for connections from then on. A broken new certificate changes nothing, and is told of.

import ByteStreams
import Dispatch
import Glibc
import StreamTLS

/// Lives on the reception's lane, until `cancel()`.
final class TLSKeeper {
  let settings: TLSServerSettings
  private(set) var context: TLSServerContext?
  /// What keeps it from being made as the files are now.
  private(set) var fault: TLSSettingsFault?

  private let poller: Poller
  private let status: StatusSink
  /// `context` or `fault` is another one.
  private let news: () -> Void
  private var watches: [ConfigWatch] = []
  private var isLoading = false
  private var isStale = false
  private var isCancelled = false
  private var timer: Timers.Token?
  private var warned: [String] = []
  /// What the files were when they were read last.
  private var signature: [FileSignature?] = []

  // Files may hang, on a network's file system.
  private static let queue = DispatchQueue(label: "baudway.certificates")
  /// For changes that no watch tells of, as long as there is nothing to show.
  private static let retry = Duration.seconds(5)

  /// With `other`, a context that this takes the place of, its tickets are honoured as far as that is right.
  init(
    _ settings: TLSServerSettings, replacing other: TLSServerContext?, on poller: Poller, status: StatusSink,
    news: @escaping () -> Void
  ) {
    self.settings = settings
    self.poller = poller
    self.status = status
    self.news = news
    for file in Set(settings.files) {
      let watch = ConfigWatch(file, on: poller) { [weak self] in
        self?.renew()
      } failed: { [status] error in
        status.tell(.watchFailed(error, path: file))
      }
      watches.append(watch)
    }
    load(replacing: other)
  }

  /// Looks at the files again. Those that come during a look are looked at together.
  func renew() {
    guard !isCancelled else { return }
    if isLoading { isStale = true } else { load(replacing: context) }
  }

  private func load(replacing other: TLSServerContext?) {
    isLoading = true
    isStale = false
    poller.timers.cancel(timer)
    let (settings, before) = (settings, context == nil || fault != nil ? [] : signature)
    poller.offload(to: Self.queue) { () -> Look in
      // Before they are read: what changes meanwhile is looked at once more.
      let signature = settings.files.map { FileSignature(path: $0) }
      if signature == before { return Look(signature: signature, result: nil) }
      do throws(TLSSettingsFault) {
        return Look(signature: signature, result: .success(try TLSServerContext(settings, replacing: other)))
      } catch {
        return Look(signature: signature, result: .failure(error))
      }
    } then: { [self] look in
      isLoading = false
      if isCancelled { return }
      if isStale { return load(replacing: other) }
      signature = look.signature
      if let result = look.result { took(result) }
    }
  }

  private struct Look: Sendable {
    let signature: [FileSignature?]
    /// Nil when the files are as they were.
    let result: Result<TLSServerContext, TLSSettingsFault>?
  }

  private func took(_ result: Result<TLSServerContext, TLSSettingsFault>) {
    switch result {
    case .success(let new):
      let isRenewed = context != nil
      context = new
      fault = nil
      if isRenewed { status.tell(.certificatesRenewed(files: new.files)) }
      for warning in new.warnings where !warned.contains(warning) { status.tell(.certificateDoubtful(warning)) }
      warned = new.warnings
    case .failure(let fault):
      let isNew = fault != self.fault
      // Said once, and not again for each step in which somebody exchanges files.
      if isNew, context != nil { status.tell(.certificatesRefused(fault)) }
      self.fault = fault
      if context == nil {
        timer = poller.timers.after(Self.retry) { [weak self] in self?.renew() }
      }
      guard isNew else { return }
    }
    news()
  }

  func cancel() {
    isCancelled = true
    for watch in watches { watch.cancel() }
    watches = []
    poller.timers.cancel(timer)
  }
}

/// What tells one content of a file from another without reading it. Links are followed.
private struct FileSignature: Equatable, Sendable {
  let device: UInt64
  let node: UInt64
  let size: Int
  let seconds: Int
  let nanoseconds: Int

  /// Nil when there is none.
  init?(path: String) {
    var status = stat()
    guard stat(path, &status) == 0 else { return nil }
    device = UInt64(status.st_dev)
    node = UInt64(status.st_ino)
    size = Int(status.st_size)
    seconds = status.st_mtim.tv_sec
    nanoseconds = status.st_mtim.tv_nsec
  }
}

extension TLSServerSettings {
  /// All that it is made from.
  fileprivate var files: [String] {
    identities.flatMap { [$0.certificate, $0.key] } + [clientCA, crl].compactMap(\.self)
  }

  /// Of what a route's configuration says. `speaksHTTP` where TLS carries HTTP, and thereby WebSocket.
  init(_ config: Config.TLS, speaksHTTP: Bool) {
    self.init(identities: config.certificates.map { TLSIdentity(certificate: $0.chain, key: $0.key) })
    minVersion = config.minVersion == .tls13 ? .tls13 : .tls12
    ciphers = (config.ciphers ?? "").split { ": ,".contains($0) }.map(String.init)
    clientCA = config.clientCA
    crl = config.crl
    clientAuth = config.clientCA == nil ? .none : config.clientAuth == .required ? .required : .optional
    alpn = speaksHTTP ? ["http/1.1"] : []
  }
}
