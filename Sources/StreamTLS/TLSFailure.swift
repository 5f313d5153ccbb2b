// Why a TLS connection failed: the cause, in plain words. Values, so that logs, notices and tests use the same words.

import ByteStreams
import COpenSSL

/// The side that a failure is about.
package enum TLSSide: String, Hashable, Sendable {
  case client, server
}

package enum TLSFailure: Error, Hashable, Sendable {
  /// An HTTP request in clear; it was answered with a 400 in clear.
  case plainHTTP
  /// Other bytes that are not TLS, and what they look like: "SSH", "telnet".
  case notTLS(String)
  /// The client asks for a name that no server here has, or for none where one is needed (server_name of RFC 6066
  /// section 3).
  case unknownName(String?)
  case noCommonVersion
  case noCommonCipher
  /// The client offers application protocols, but none of ours (RFC 7301).
  case noCommonProtocol
  /// The other side's certificate is not trusted.
  case certificate(TLSCertificateFault)
  /// The client showed no certificate, but it must.
  case noCertificate
  /// The other side's fatal alert, by its number (RFC 8446 section 6).
  case alert(by: TLSSide, UInt8)
  /// The connection ended before the handshake was finished.
  case closedInHandshake(TLSSide)
  /// The connection ended without close_notify: the last bytes may be missing (RFC 8446 section 6.1).
  case truncated(TLSSide)
  /// Key updates without end, with no payload between them.
  case tooManyKeyUpdates(TLSSide)
  /// Bytes that the protocol does not allow, described in OpenSSL's words.
  case broken(TLSSide, String)
  case system(SystemError)
  /// This machine is short of memory.
  case noMemory
}

/// Why a certificate is not trusted.
package struct TLSCertificateFault: Hashable, Sendable {
  package let whose: TLSSide
  /// The subject of the certificate at fault, in the format of RFC 4514; it may be an issuer's.
  package let subject: String?
  /// X509_V_ERR_… of X509_STORE_CTX_get_error(3).
  package let code: Int32

  /// No authority that we trust has signed it.
  package var isUntrusted: Bool {
    switch code {
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT, X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN,
      X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT, X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
      X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      true
    default: false
    }
  }

  package var isForAnotherName: Bool { code == X509_V_ERR_HOSTNAME_MISMATCH || code == X509_V_ERR_IP_ADDRESS_MISMATCH }

  /// What is wrong, as the end of "the client's certificate …".
  package var text: String {
    switch code {
    case X509_V_ERR_CERT_HAS_EXPIRED: "has expired"
    case X509_V_ERR_CERT_NOT_YET_VALID: "is not valid yet; are the clocks right?"
    case X509_V_ERR_CERT_REVOKED: "is revoked"
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT: "is self-signed and not trusted"
    case _ where isUntrusted: "is not signed by a trusted authority"
    case _ where isForAnotherName: "is for another name"
    case X509_V_ERR_INVALID_PURPOSE: "is not valid as a \(whose)'s certificate"
    case X509_V_ERR_UNABLE_TO_GET_CRL: "can't be checked: there is no revocation list of its issuer"
    case X509_V_ERR_CRL_HAS_EXPIRED: "can't be checked: the revocation list of its issuer has expired"
    case X509_V_ERR_CRL_NOT_YET_VALID: "can't be checked: the revocation list of its issuer is not valid yet"
    default: "is refused: \(String(cString: X509_verify_cert_error_string(Int(code))))"
    }
  }
}

extension TLSFailure {
  /// Whether a server may send this alert because we should have shown a certificate, or another one.
  package static func asksForCertificate(_ alert: UInt8) -> Bool {
    switch Int32(alert) {
    case SSL_AD_CERTIFICATE_REQUIRED, SSL_AD_HANDSHAKE_FAILURE, SSL_AD_BAD_CERTIFICATE, SSL_AD_UNKNOWN_CA,
      SSL_AD_CERTIFICATE_EXPIRED, SSL_AD_CERTIFICATE_REVOKED, SSL_AD_CERTIFICATE_UNKNOWN, SSL_AD_ACCESS_DENIED:
      true
    default: false
    }
  }
}

extension TLSFailure: CustomStringConvertible {
  private static func name(of alert: UInt8) -> String {
    switch Int32(alert) {
    // OpenSSL 3.0 has no text for these.
    case SSL_AD_MISSING_EXTENSION: "missing extension"
    case SSL_AD_CERTIFICATE_REQUIRED: "certificate required"
    default: String(cString: SSL_alert_desc_string_long(Int32(alert)))
    }
  }

  /// A sentence without its full stop: "plain HTTP came to a TLS port".
  package var description: String {
    switch self {
    case .plainHTTP: "received plain HTTP instead of TLS"
    case .notTLS(let what): "received \(what) instead of TLS"
    case .unknownName(let name?): "the client asks for the server name '\(name)', which no listener here has"
    case .unknownName(nil): "the client sends no server name, and every listener here requires one"
    case .noCommonVersion: "the peer supports none of our TLS versions"
    case .noCommonCipher: "the peer has no cipher, curve or signature in common with us"
    case .noCommonProtocol: "the client offers none of our application protocols (ALPN)"
    case .certificate(let fault):
      "the \(fault.whose)'s certificate\(fault.subject.map { " (\($0))" } ?? "") \(fault.text)"
    case .noCertificate: "the client sent no certificate, and one is required"
    case .alert(let side, let number):
      "the \(side.rawValue) refuses: \(Self.name(of: number)) (TLS alert \(number))"
    case .closedInHandshake(let side): "the \(side.rawValue) closed during the TLS handshake"
    case .truncated(let side): "the \(side.rawValue) closed without a TLS close_notify: its last bytes may be missing"
    case .tooManyKeyUpdates(let side): "the \(side.rawValue) sends TLS key updates without end"
    case .broken(let side, let reason): "the \(side.rawValue) sends malformed TLS (\(reason))"
    case .system(let error): "\(error)"
    case .noMemory: "no memory for a TLS connection"
    }
  }
}
