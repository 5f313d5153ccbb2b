// What a client showed to be let in: its certificate and those it brought along, kept for as long as it is here, to be held
// against other authorities and revocation lists than those of its handshake.

import COpenSSL
import Glibc

public final class TLSClientChain: Sendable {
  // Unsafe to the compiler, as they are pointers; OpenSSL counts their users, and nothing changes them.
  private nonisolated(unsafe) let certificate: OpaquePointer
  private nonisolated(unsafe) let others: OpaquePointer?
  /// The last second in which its certificate is valid, since 1970.
  public let lastSecond: Int

  /// Of a connection whose client was verified. Costs no copy: the connection keeps the same.
  init?(_ ssl: OpaquePointer) {
    guard let certificate = SSL_get0_peer_certificate(ssl), X509_up_ref(certificate) == 1 else { return nil }
    self.certificate = certificate
    others = SSL_get_peer_cert_chain(ssl).flatMap { X509_chain_up_ref($0) }
    lastSecond = Self.seconds(X509_get0_notAfter(certificate))
  }

  deinit {
    X509_free(certificate)
    if let others { openssl_sk_X509_pop_free(others) }
  }

  private static func seconds(_ time: UnsafePointer<ASN1_TIME>?) -> Int {
    var parts = tm()
    // A time that can't be read is none that OpenSSL would have let through.
    return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : .max
  }

  /// Why it is good no longer.
  public var hasExpired: TLSCertificateFault { fault(X509_V_ERR_CERT_HAS_EXPIRED) }

  private func fault(_ code: Int32) -> TLSCertificateFault {
    let subject = CertificateFacts.text(of: X509_get_subject_name(certificate))
    return TLSCertificateFault(whose: .client, subject: subject.isEmpty ? nil : subject, code: code)
  }

  /// What authorities and lists say of it.
  public enum Verdict: Hashable, Sendable {
    case good
    case refused(TLSCertificateFault)
    /// There was no memory to find out: ask again.
    case unknown
  }

  /// What the authorities and lists in `store` say of it. Takes some tenths of a millisecond: not for a lane.
  func verdict(by store: OpaquePointer) -> Verdict {
    ERR_clear_error()
    defer { ERR_clear_error() }
    guard let check = X509_STORE_CTX_new() else { return .unknown }
    defer { X509_STORE_CTX_free(check) }
    guard X509_STORE_CTX_init(check, store, certificate, others) == 1 else { return .unknown }
    X509_STORE_CTX_set_default(check, "ssl_client")
    X509_STORE_CTX_set_verify_cb(check) { isGood, check in
      // As in the handshake: revocation of authorities is looked up where there is a list.
      let isLenient =
        X509_STORE_CTX_get_error(check) == X509_V_ERR_UNABLE_TO_GET_CRL && X509_STORE_CTX_get_error_depth(check) > 0
      return isLenient ? 1 : isGood
    }
    let result = X509_verify_cert(check)
    let code = X509_STORE_CTX_get_error(check)
    // An allocation that failed on the way can look like a certificate or a list that is not there, or a wrong signature.
    guard result >= 0, !OpenSSLErrors.takeTellsOfNoMemory() else { return .unknown }
    if result == 1 { return .good }
    let isFound = ![X509_V_OK, X509_V_ERR_OUT_OF_MEM, X509_V_ERR_UNSPECIFIED].contains(code)
    return isFound ? .refused(fault(code)) : .unknown
  }
}

extension TLSServerContext {
  /// What its authorities and lists say of a client that was let in by others. Not for a lane.
  public func verdict(on chain: TLSClientChain) -> TLSClientChain.Verdict {
    guard settings.clientAuth != .none else { return .good }
    guard let store = SSL_CTX_get_cert_store(first) else { return .unknown }
    let verdict = chain.verdict(by: store)
    guard case .refused = verdict else { return verdict }
    // Of an eighth of the allocations that can fail OpenSSL 3.0 does not say that it was one. What is so is so a second time.
    return chain.verdict(by: store) == verdict ? verdict : .unknown
  }

  /// Whether a client that shows its certificate alone can be verified. A ticket keeps nothing but the certificate, so a client that
  /// brought its authorities along has to bring them again: later they would be missed.
  static func knowsIssuer(of certificate: OpaquePointer, _ ssl: OpaquePointer) -> Bool {
    guard let store = SSL_CTX_get_cert_store(SSL_get_SSL_CTX(ssl)), let check = X509_STORE_CTX_new() else {
      return false
    }
    defer { X509_STORE_CTX_free(check) }
    guard X509_STORE_CTX_init(check, store, certificate, nil) == 1 else { return false }
    var issuer: OpaquePointer?
    defer { X509_free(issuer) }
    return X509_STORE_CTX_get1_issuer(&issuer, check, certificate) == 1
  }
}
