// Settings that server and client contexts share: versions, ciphers, certificates, verification.

import COpenSSL

/// Owns an SSL_CTX. OpenSSL counts its users itself: connections keep it as long as they need it.
final class ContextOwner: Sendable {
  // Unsafe only to the compiler, because it is a pointer: OpenSSL locks a context itself, and we never change it once
  // it is made.
  nonisolated(unsafe) let raw: OpaquePointer

  init(_ raw: OpaquePointer) { self.raw = raw }

  deinit { SSL_CTX_free(raw) }
}

enum ContextParts {
  static func make(
    _ method: OpaquePointer, minVersion: TLSVersion, ciphers: [String]
  ) throws(TLSSettingsFault) -> ContextOwner {
    ERR_clear_error()
    guard let raw = SSL_CTX_new(method) else { throw failed("SSL_CTX_new") }
    let owner = ContextOwner(raw)
    openssl_CTX_set_min_proto_version(raw, minVersion == .tls12 ? TLS1_2_VERSION : TLS1_3_VERSION)
    openssl_CTX_set_max_proto_version(raw, TLS1_3_VERSION)
    SSL_CTX_set_options(raw, openssl_OP_NO_RENEGOTIATION | openssl_OP_NO_COMPRESSION)
    // An idle connection then has no buffers, and one read returns all that is there, not first a header and then its
    // record.
    openssl_CTX_set_mode(raw, Int(SSL_MODE_RELEASE_BUFFERS))
    openssl_CTX_set_read_ahead(raw, 1)
    SSL_CTX_set_info_callback(raw) { ssl, state, _ in
      // Called for handshake messages only, so payload costs nothing.
      if state & SSL_CB_LOOP != 0, let ssl { BufferedBIO.under(ssl).sawMessage() }
    }
    guard openssl_CTX_set1_groups_list(raw, TLSProfile.groups) == 1 else { throw failed("SSL_CTX_set1_groups_list") }
    try set(ciphers, on: raw)
    return owner
  }

  private static func set(_ ciphers: [String], on context: OpaquePointer) throws(TLSSettingsFault) {
    // OpenSSL ignores names that it does not know, so each is tried alone first.
    for name in ciphers where !isKnown(name) {
      throw TLSSettingsFault(
        nil, .ciphers, "'\(name)' is not a TLS 1.2 or 1.3 cipher of this OpenSSL",
        advice: "openssl ciphers -s -tls1_2, and -tls1_3, list them")
    }
    let suites = ciphers.filter { $0.hasPrefix("TLS_") }
    let others = ciphers.filter { !$0.hasPrefix("TLS_") }
    ERR_clear_error()
    guard
      SSL_CTX_set_ciphersuites(context, (suites.isEmpty ? TLSProfile.suites : suites).joined(separator: ":")) == 1,
      SSL_CTX_set_cipher_list(context, (others.isEmpty ? TLSProfile.ciphers : others).joined(separator: ":")) == 1
    else { throw failed("SSL_CTX_set_cipher_list") }
  }

  /// The ciphers of TLS 1.2 among `ciphers`, where only TLS 1.3 is allowed, which has others.
  static func useless(_ ciphers: [String], from minVersion: TLSVersion) -> String? {
    let useless = ciphers.filter { !$0.hasPrefix("TLS_") }
    guard minVersion == .tls13, !useless.isEmpty else { return nil }
    return "TLS 1.3 alone is allowed (min-version), and uses none of these ciphers: \(useless.joined(separator: ", "))"
  }

  /// What to do about that.
  static let advice = "allow TLS 1.2, or name ciphers of TLS 1.3, such as TLS_AES_128_GCM_SHA256"

  private static func isKnown(_ name: String) -> Bool {
    // No operators and keywords of ciphers(1): their meaning changes with OpenSSL.
    guard !name.isEmpty, name.utf8.allSatisfy({ isNameByte($0) }), let context = SSL_CTX_new(TLS_method()) else {
      return false
    }
    defer { SSL_CTX_free(context) }
    defer { ERR_clear_error() }
    if name.hasPrefix("TLS_") { return SSL_CTX_set_ciphersuites(context, name) == 1 }
    guard SSL_CTX_set_cipher_list(context, name) == 1, let list = SSL_CTX_get_ciphers(context) else { return false }
    return (0..<openssl_sk_SSL_CIPHER_num(list)).contains {
      String(cString: SSL_CIPHER_get_name(openssl_sk_SSL_CIPHER_value(list, $0))) == name
    }
  }

  private static func isNameByte(_ byte: UInt8) -> Bool {
    (0x30...0x39).contains(byte) || (0x41...0x5A).contains(byte) || byte == UInt8(ascii: "-")
      || byte == UInt8(ascii: "_")
  }

  /// Loads a certificate, its chain and its key. Returns the certificate.
  static func load(_ identity: TLSIdentity, into context: OpaquePointer) throws(TLSSettingsFault) -> X509Certificate {
    let chain = try PEMFile(identity.certificate, as: .certificate).certificates()
    let keyFile = try PEMFile(identity.key, as: .key)
    let key = try keyFile.key()
    defer { EVP_PKEY_free(key) }
    ERR_clear_error()
    guard X509_check_private_key(chain[0].raw, key) == 1 else {
      ERR_clear_error()
      let isMixedUp = chain.dropFirst().contains { X509_check_private_key($0.raw, key) == 1 }
      ERR_clear_error()
      throw TLSSettingsFault(
        identity.key, .key, "the key does not belong to the first certificate in \(identity.certificate)",
        advice: isMixedUp
          ? "it belongs to a later certificate: put the server's own certificate first"
          : "are both from the same renewal?")
    }
    guard SSL_CTX_use_certificate(context, chain[0].raw) == 1, SSL_CTX_use_PrivateKey(context, key) == 1 else {
      let reason = OpenSSLErrors.take()?.text ?? "no reason given"
      throw TLSSettingsFault(
        identity.certificate, .certificate, "OpenSSL does not accept it (\(reason))",
        advice: "RSA keys need 2048 bits, and signatures SHA-256 or better")
    }
    for issuer in chain.dropFirst() where openssl_CTX_add1_chain_cert(context, issuer.raw) != 1 {
      throw failed("SSL_CTX_add1_chain_cert")
    }
    return chain[0]
  }

  /// Notes why a certificate is refused, for the error that follows.
  static let noteVerification: @convention(c) (Int32, OpaquePointer?) -> Int32 = { isGood, store in
    guard let store, let data = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()) else {
      return isGood
    }
    if isGood == 1 { return 1 }
    let wire = BufferedBIO.under(OpaquePointer(data))
    let code = X509_STORE_CTX_get_error(store)
    // For authorities' certificates, revocation is checked only where there is a list.
    if code == X509_V_ERR_UNABLE_TO_GET_CRL, X509_STORE_CTX_get_error_depth(store) > 0 { return 1 }
    if wire.certificateFault == nil {
      let subject = X509_STORE_CTX_get_current_cert(store).map { CertificateFacts.text(of: X509_get_subject_name($0)) }
      wire.certificateFault = TLSCertificateFault(
        whose: wire.server == nil ? .server : .client, subject: subject?.isEmpty == true ? nil : subject, code: code)
    }
    return 0
  }

  /// Protocol names in the format of RFC 7301. Throws if one is empty or too long.
  static func wireFormat(alpn: [String]) throws(TLSSettingsFault) -> [UInt8] {
    var bytes: [UInt8] = []
    for name in alpn {
      guard (1...255).contains(name.utf8.count) else {
        throw TLSSettingsFault(nil, nil, "an ALPN name has 1 to 255 bytes")
      }
      bytes.append(UInt8(name.utf8.count))
      bytes += name.utf8
    }
    return bytes
  }

  static func failed(_ call: String) -> TLSSettingsFault {
    TLSSettingsFault(nil, nil, "\(call): \(OpenSSLErrors.take()?.text ?? "out of memory")")
  }
}
