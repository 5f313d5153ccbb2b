// Keeps the TLS context of a shared listen socket up to date with its certificate files. It is built when first needed,
// and again when a file changes and at a reload; new connections use it. A broken new certificate is reported, not
// used.

import ByteStreams
import Dispatch
import StreamTLS

/// Runs on the handshake server's lane, until `cancel()`.
final class CertificateReloader {
  let settings: TLSServerSettings
  private(set) var context: TLSServerContext?
  /// Why no context can be built from the files as they are now.
  private(set) var fault: TLSSettingsFault?
  /// What is said of the certificates in use. It changes with time: they expire.
  private(set) var doubts: [String] = []

  private let poller: Poller
  /// Seconds since 1970.
  private let wallTime: () -> Int
  private let report: CertificateReport
  /// Called when `context`, `fault` or `doubts` has changed.
  private let news: () -> Void
  private var watch: ConfigWatch?
  private(set) var isLoading = false
  private var isStale = false
  private var isCancelled = false
  private var timer: Timers.Token?
  private var expiry: Timers.Token?

  // Reading a file can block for long on a network file system.
  private static let queue = DispatchQueue(label: "baudway.certificates")
  /// Retry while there is no context: a watch does not report every change.
  private static let retry = Duration.seconds(5)
  /// In seconds. The wall clock may be set meanwhile.
  private static let longestWait = 3600

  /// `other` is the context that this one replaces: its session tickets stay valid where the new settings allow it.
  init(
    _ settings: TLSServerSettings, replacing other: TLSServerContext?, on poller: Poller, report: CertificateReport,
    wallTime: @escaping () -> Int, news: @escaping () -> Void
  ) {
    self.settings = settings
    self.poller = poller
    self.report = report
    self.wallTime = wallTime
    self.news = news
    watch = ConfigWatch(settings.files, on: poller) { [weak self] in
      self?.renew()
    } failed: { [report] error, file in
      report.isUnwatched(file, error)
    }
    load(replacing: other)
  }

  /// Reads the files again. Calls during a read are combined into one further read.
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
      look(at: new)
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

  private func look(at context: TLSServerContext) {
    let now = wallTime()
    doubts = context.warnings(at: now)
    poller.timers.cancel(expiry)
    guard let change = context.warningsChange(after: now) else { return }
    expiry = poller.timers.after(.seconds(min(change - now, Self.longestWait))) { [weak self] in
      guard let self else { return }
      let before = doubts
      look(at: context)
      if doubts != before { news() }
    }
  }

  func cancel() {
    isCancelled = true
    watch?.cancel()
    watch = nil
    poller.timers.cancel(timer)
    poller.timers.cancel(expiry)
  }
}

extension TLSServerSettings {
  /// The settings of a route's configuration. `speaksHTTP`: TLS carries HTTP, and so WebSocket.
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
