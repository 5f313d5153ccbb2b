// Why a TLS connection did not come about, or broke: what came, in plain words. Values, so that logs, notices and tests say
// the same.

import ByteStreams
import COpenSSL

/// Who is meant, seen from this side.
public enum TLSSide: String, Hashable, Sendable {
  case client, server
}

public enum TLSFailure: Error, Hashable, Sendable {
  /// An HTTP request in clear; it was answered with a 400 in clear.
  case plainHTTP
  /// Something else that is no TLS, and what it looks like: "SSH", "telnet".
  case notTLS(String)
  /// The client asks for a name that nobody here has, or for none where one is needed (server_name of RFC 6066 section 3).
  case unknownName(String?)
  case noCommonVersion
  case noCommonCipher
  /// The client offers application protocols, but none of ours (RFC 7301).
  case noCommonProtocol
  /// What the other side showed is not to be trusted.
  case certificate(TLSCertificateFault)
  /// The client showed no certificate, and it must.
  case noCertificate
  /// The other side's fatal alert, by its number (RFC 8446 section 6).
  case alert(by: TLSSide, UInt8)
  /// The connection ended before the handshake was through.
  case leftInHandshake(TLSSide)
  /// The connection ended without close_notify: what came last may be missing (RFC 8446 section 6.1).
  case truncated(TLSSide)
  /// Key updates without end and without a byte between them.
  case tooManyKeyUpdates(TLSSide)
  /// Something that the protocol does not allow, in OpenSSL's words.
  case broken(TLSSide, String)
  case system(SystemError)
  /// This machine is short of memory.
  case noMemory
}

/// Why a certificate is not trusted.
public struct TLSCertificateFault: Hashable, Sendable {
  public let whose: TLSSide
  /// The subject of the certificate at fault, as RFC 4514 writes it; it may be an issuer's.
  public let subject: String?
  /// X509_V_ERR_… of X509_STORE_CTX_get_error(3).
  public let code: Int32

  /// Nobody whom we trust has signed it.
  public var isUntrusted: Bool {
    switch code {
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT, X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN,
      X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT, X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
      X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      true
    default: false
    }
  }

  public var isForAnotherName: Bool { code == X509_V_ERR_HOSTNAME_MISMATCH || code == X509_V_ERR_IP_ADDRESS_MISMATCH }

  /// What is wrong, as the end of "the client's certificate …".
  public var text: String {
    switch code {
    case X509_V_ERR_CERT_HAS_EXPIRED: "has expired"
    case X509_V_ERR_CERT_NOT_YET_VALID: "is not valid yet; are the clocks right?"
    case X509_V_ERR_CERT_REVOKED: "is revoked"
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT: "is self-signed, and not among those that are trusted"
    case _ where isUntrusted: "is signed by nobody that is trusted"
    case _ where isForAnotherName: "is for another name"
    case X509_V_ERR_INVALID_PURPOSE: "is not made to be a \(whose)'s"
    case X509_V_ERR_UNABLE_TO_GET_CRL: "can't be checked: no revocation list of its issuer is there"
    case X509_V_ERR_CRL_HAS_EXPIRED: "can't be checked: the revocation list of its issuer has expired"
    case X509_V_ERR_CRL_NOT_YET_VALID: "can't be checked: the revocation list of its issuer is not valid yet"
    default: "is refused: \(String(cString: X509_verify_cert_error_string(Int(code))))"
    }
  }
}

extension TLSFailure {
  /// Whether a server that sends this alert may mean that we should have shown a certificate, or another one.
  public static func asksForCertificate(_ alert: UInt8) -> Bool {
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
    // OpenSSL 3.0 has no words for these.
    case SSL_AD_MISSING_EXTENSION: "missing extension"
    case SSL_AD_CERTIFICATE_REQUIRED: "certificate required"
    default: String(cString: SSL_alert_desc_string_long(Int32(alert)))
    }
  }

  /// A sentence without its full stop: "plain HTTP came to a TLS port".
  public var description: String {
    switch self {
    case .plainHTTP: "plain HTTP came to a TLS port"
    case .notTLS(let what): "\(what) came where TLS was expected"
    case .unknownName(let name?): "the client asks for the server '\(name)', which is not here"
    case .unknownName(nil): "the client names no server, and without a name there is none here"
    case .noCommonVersion: "the other side speaks none of our TLS versions"
    case .noCommonCipher: "the other side has no cipher, curve or signature in common with us"
    case .noCommonProtocol: "the client offers none of our application protocols (ALPN)"
    case .certificate(let fault):
      "the \(fault.whose)'s certificate\(fault.subject.map { " (\($0))" } ?? "") \(fault.text)"
    case .noCertificate: "the client shows no certificate, and it needs one here"
    case .alert(let side, let number):
      "the \(side.rawValue) refuses: \(Self.name(of: number)) (TLS alert \(number))"
    case .leftInHandshake(let side): "the \(side.rawValue) left in the middle of the TLS handshake"
    case .truncated(let side): "the \(side.rawValue) ended without TLS's close_notify: what it said last may be missing"
    case .tooManyKeyUpdates(let side): "the \(side.rawValue) sends TLS key updates without end"
    case .broken(let side, let reason): "what the \(side.rawValue) sends is no proper TLS (\(reason))"
    case .system(let error): "\(error)"
    case .noMemory: "no memory for a TLS connection"
    }
  }
}
