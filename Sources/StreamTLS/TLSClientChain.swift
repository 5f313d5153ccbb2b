// A client's certificate and the others that it sent, kept as long as its session. They can be verified again, against
// newer authorities and revocation lists than those of the handshake.

import COpenSSL
import Glibc

package final class TLSClientChain: Sendable {
  // Unsafe only to the compiler, because they are pointers; OpenSSL counts their users, and nothing changes them.
  private nonisolated(unsafe) let certificate: OpaquePointer
  private nonisolated(unsafe) let others: OpaquePointer?
  /// The end of the certificate's validity, in seconds since 1970.
  package let lastSecond: Int

  /// From a connection whose client was verified. Copies nothing: the connection keeps the same objects.
  init?(_ ssl: OpaquePointer) {
    guard let certificate = SSL_get0_peer_certificate(ssl), X509_up_ref(certificate) == 1 else { return nil }
    self.certificate = certificate
    others = SSL_get_peer_cert_chain(ssl).flatMap { X509_chain_up_ref($0) }
    lastSecond = CertificateValidity.seconds(X509_get0_notAfter(certificate)) ?? .max
  }

  deinit {
    X509_free(certificate)
    if let others { openssl_sk_X509_pop_free(others) }
  }

  /// The fault of a certificate that has expired, whatever the time is now.
  package var hasExpired: TLSCertificateFault { fault(X509_V_ERR_CERT_HAS_EXPIRED) }

  private func fault(_ code: Int32) -> TLSCertificateFault {
    let subject = CertificateFacts.text(of: X509_get_subject_name(certificate))
    return TLSCertificateFault(whose: .client, subject: subject.isEmpty ? nil : subject, code: code)
  }

  /// The result of verifying the chain against authorities and revocation lists.
  package enum Verdict: Hashable, Sendable {
    case good
    case refused(TLSCertificateFault)
    /// There was no memory for the check: try again.
    case unknown
  }

  /// Verifies the chain against the authorities and lists in `store`. Takes some tenths of a millisecond: not for a
  /// lane.
  func verdict(by store: OpaquePointer) -> Verdict {
    ERR_clear_error()
    defer { ERR_clear_error() }
    guard let check = X509_STORE_CTX_new() else { return .unknown }
    defer { X509_STORE_CTX_free(check) }
    guard X509_STORE_CTX_init(check, store, certificate, others) == 1 else { return .unknown }
    X509_STORE_CTX_set_default(check, "ssl_client")
    X509_STORE_CTX_set_verify_cb(check) { isGood, check in
      // As in the handshake: for authorities, revocation is checked only where there is a list.
      let isLenient =
        X509_STORE_CTX_get_error(check) == X509_V_ERR_UNABLE_TO_GET_CRL && X509_STORE_CTX_get_error_depth(check) > 0
      return isLenient ? 1 : isGood
    }
    let result = X509_verify_cert(check)
    let code = X509_STORE_CTX_get_error(check)
    // An allocation that failed on the way can look like a missing certificate or list, or like a wrong signature.
    guard result >= 0, !OpenSSLErrors.takeIsOutOfMemory() else { return .unknown }
    if result == 1 { return .good }
    let isFound = ![X509_V_OK, X509_V_ERR_OUT_OF_MEM, X509_V_ERR_UNSPECIFIED].contains(code)
    return isFound ? .refused(fault(code)) : .unknown
  }
}

extension TLSServerContext {
  /// Verifies a client that another context accepted, against this context's authorities and lists. Not for a lane.
  package func verdict(on chain: TLSClientChain) -> TLSClientChain.Verdict {
    guard settings.clientAuth != .none else { return .good }
    guard let store = SSL_CTX_get_cert_store(first) else { return .unknown }
    let verdict = chain.verdict(by: store)
    guard case .refused = verdict else { return verdict }
    // For an eighth of the allocations that can fail, OpenSSL 3.0 does not report the failure as one. A true refusal is
    // the same a second time.
    return chain.verdict(by: store) == verdict ? verdict : .unknown
  }

  /// Whether a client can be verified by its certificate alone. A ticket keeps only that certificate. So a client that
  /// had to send its authorities as well needs a full handshake: later verifications would miss them.
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
