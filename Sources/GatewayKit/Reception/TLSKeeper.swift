// Keeps what TLS shows at an entrance in step with its files: made when it is first needed, and made anew when one of them
// changes and at a reload, for connections from then on. A broken new certificate changes nothing, and is told of.

import ByteStreams
import Dispatch
import StreamTLS

/// Lives on the reception's lane, until `cancel()`.
final class TLSKeeper {
  let settings: TLSServerSettings
  private(set) var context: TLSServerContext?
  /// What keeps it from being made as the files are now.
  private(set) var fault: TLSSettingsFault?

  private let poller: Poller
  private let report: CertificateNews
  /// `context` or `fault` is another one.
  private let news: () -> Void
  private var watches: [ConfigWatch] = []
  private(set) var isLoading = false
  private var isStale = false
  private var isCancelled = false
  private var timer: Timers.Token?

  // Files may hang, on a network's file system.
  private static let queue = DispatchQueue(label: "baudway.certificates")
  /// For changes that no watch tells of, as long as there is nothing to show.
  private static let retry = Duration.seconds(5)

  /// With `other`, a context that this takes the place of, its tickets are honoured as far as that is right.
  init(
    _ settings: TLSServerSettings, replacing other: TLSServerContext?, on poller: Poller, report: CertificateNews,
    news: @escaping () -> Void
  ) {
    self.settings = settings
    self.poller = poller
    self.report = report
    self.news = news
    for file in settings.files {
      let watch = ConfigWatch(file, on: poller) { [weak self] in
        self?.renew()
      } failed: { [report] error in
        report.isUnwatched(file, error)
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
    let (settings, current) = (settings, fault == nil ? context : nil)
    poller.offload(to: Self.queue) { () -> Result<TLSServerContext, TLSSettingsFault>? in
      if let current, !current.filesHaveChanged { return nil }
      do throws(TLSSettingsFault) {
        return .success(try TLSServerContext(settings, replacing: other))
      } catch {
        return .failure(error)
      }
    } then: { [self] result in
      isLoading = false
      if isCancelled { return }
      if isStale { return load(replacing: other) }
      if let result { took(result) }
    }
  }

  private func took(_ result: Result<TLSServerContext, TLSSettingsFault>) {
    switch result {
    case .success(let new):
      let isRenewed = context != nil
      context = new
      fault = nil
      if isRenewed { report.isRenewed(new) }
    case .failure(let fault):
      let isNew = fault != self.fault
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

extension TLSServerSettings {
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
