// What a server shows and requires: certificates by name, clients' certificates, protocols, tickets. Made from
// settings, never changed; a reload makes a new one. Reading its files blocks, so it is not made on a lane.

import COpenSSL

package final class TLSServerContext: Sendable {
  package let settings: TLSServerSettings
  /// The files it was made from. When one of them changes, make a new context.
  package let files: [String]
  let ticketKeys: TLSTicketKeys
  /// Equal for contexts with the same authorities and revocation lists; empty if clients are not asked for
  /// certificates.
  package let trust: TLSTrust
  /// Equal for contexts that were made from the same state of the same files.
  package let stamps: TLSFileStamps

  // Connections begin with the first context. It handles tickets and clients' certificates, whichever certificate is
  // shown.
  private let contexts: [ContextOwner]
  private let byName: [String: Int]
  private let validities: [CertificateValidity]
  /// Of the ciphers.
  private let warning: String?
  let alpn: [UInt8]

  /// Reads the files. Throws what is wrong with them or with the settings. Tickets of the replaced context are accepted
  /// if the requirements for clients are the same.
  package init(_ settings: TLSServerSettings, replacing other: TLSServerContext? = nil) throws(TLSSettingsFault) {
    guard !settings.identities.isEmpty else {
      throw TLSSettingsFault(nil, nil, "a TLS server needs a certificate and its key")
    }
    self.settings = settings
    files = settings.files
    stamps = TLSFileStamps(of: files)
    ticketKeys = other?.ticketKeys ?? TLSTicketKeys()
    alpn = try ContextParts.wireFormat(alpn: settings.alpn)

    var contexts: [(owner: ContextOwner, names: Set<String>, kinds: Set<Int32>)] = []
    var validities: [CertificateValidity] = []
    for identity in settings.identities {
      let names = try PEMFile(identity.certificate, as: .certificate).certificates()[0].serverNames
      let kind = try PEMFile(identity.certificate, as: .certificate).certificates()[0].keyKind
      let index: Int
      if let same = contexts.firstIndex(where: { $0.names == names && !$0.kinds.contains(kind) }) {
        index = same
      } else {
        let owner = try ContextParts.make(
          TLS_server_method(), minVersion: settings.minVersion, ciphers: settings.ciphers)
        contexts.append((owner, names, []))
        index = contexts.count - 1
      }
      let certificate = try ContextParts.load(identity, into: contexts[index].owner.raw)
      contexts[index].kinds.insert(kind)
      validities.append(CertificateValidity(certificate, in: identity.certificate))
    }
    var byName: [String: Int] = [:]
    for (index, context) in contexts.enumerated() {
      for name in context.names where byName[name] == nil { byName[name] = index }
    }
    warning = ContextParts.useless(settings.ciphers, from: settings.minVersion).map {
      "\($0); \(ContextParts.advice)"
    }
    self.contexts = contexts.map(\.owner)
    self.byName = byName
    self.validities = validities
    trust = try Self.trustClients(by: settings, of: self.contexts)
    for context in self.contexts { setUp(context.raw) }
  }

  /// A new context with the same settings and the files as they are now. Throws what is wrong with them; this context
  /// stays usable. Blocks.
  package func renewed() throws(TLSSettingsFault) -> TLSServerContext {
    try TLSServerContext(settings, replacing: self)
  }

  /// Problems that are no reason to stop, such as a certificate that has expired. `now` is in seconds since 1970.
  package func warnings(at now: Int) -> [String] {
    validities.compactMap { $0.warning(at: now) } + (warning.map { [$0] } ?? [])
  }

  /// When there will be other warnings; nil if never.
  package func warningsChange(after now: Int) -> Int? { validities.compactMap { $0.change(after: now) }.min() }

  /// Whether a file has changed since it was read. Blocks.
  package var filesHaveChanged: Bool { TLSFileStamps(of: files) != stamps }

  /// The DNS names of all its certificates, in lower case.
  package var certificateNames: [String] { Array(byName.keys) }

  var first: OpaquePointer { contexts[0].raw }

  // MARK: - Set-up

  private func setUp(_ context: OpaquePointer) {
    // Tickets keep sessions at the clients; a cache here would need a limit of its own.
    // Security scanners expect an order, and ours is the profile's. A client without AES in hardware puts ChaCha20
    // first, and gets it.
    SSL_CTX_set_options(context, openssl_OP_CIPHER_SERVER_PREFERENCE | openssl_OP_PRIORITIZE_CHACHA)
    openssl_CTX_set_session_cache_mode(context, Int(SSL_SESS_CACHE_OFF))
    // One is enough: of two connections that a client resumes at once, one does a full handshake.
    SSL_CTX_set_num_tickets(context, 1)
    SSL_CTX_set_timeout(context, Int(TLSTicketKeys.lifetime))
    TLSTicketKeys.install(on: context)
    SSL_CTX_set_session_ticket_cb(context, nil, Self.judgeTicket, nil)
    SSL_CTX_set_client_hello_cb(context, Self.chooseServer, nil)
    openssl_CTX_set_tlsext_servername_callback(context, Self.chooseName)
    if !alpn.isEmpty { SSL_CTX_set_alpn_select_cb(context, Self.chooseProtocol, nil) }
  }

  private static func trustClients(
    by settings: TLSServerSettings, of contexts: [ContextOwner]
  ) throws(TLSSettingsFault) -> TLSTrust {
    var digest = SessionDigest()
    defer {
      // A ticket is valid only where the same was required of its client.
      let name = digest.finish()
      for context in contexts { SSL_CTX_set_session_id_context(context.raw, name, UInt32(name.count)) }
    }
    guard settings.clientAuth != .none else { return TLSTrust(digest: []) }
    guard let file = settings.clientCA else {
      throw TLSSettingsFault(
        nil, .authority, "client certificates can't be checked",
        advice: "set 'client-ca' to the authorities that sign them")
    }
    let authorities = try PEMFile(file, as: .authority)
    let certificates = try authorities.certificates()
    guard let store = X509_STORE_new() else { throw ContextParts.failed("X509_STORE_new") }
    defer { X509_STORE_free(store) }
    digest.add(authorities.bytes)
    for certificate in certificates {
      guard X509_STORE_add_cert(store, certificate.raw) == 1 else { throw ContextParts.failed("X509_STORE_add_cert") }
    }
    if let crl = settings.crl { digest.add(try revoke(by: crl, in: store)) }
    let trust = TLSTrust(digest: digest.finish())
    digest.add([settings.clientAuth == .required ? 1 : 0])
    let mode = SSL_VERIFY_PEER | (settings.clientAuth == .required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0)
    for context in contexts {
      SSL_CTX_set1_cert_store(context.raw, store)
      SSL_CTX_set_verify(context.raw, mode, ContextParts.noteVerification)
      for certificate in certificates { SSL_CTX_add_client_CA(context.raw, certificate.raw) }
    }
    return trust
  }

  /// Returns the content of the file.
  private static func revoke(by path: String, in store: OpaquePointer) throws(TLSSettingsFault) -> [UInt8] {
    let lists = try PEMFile(path, as: .revocations)
    var isComplete = true
    try lists.withRevocationLists { isComplete = X509_STORE_add_crl(store, $0) == 1 && isComplete }
    // Without one of the lists, the clients that it revokes would be accepted.
    guard isComplete else { throw ContextParts.failed("X509_STORE_add_crl") }
    X509_STORE_set_flags(store, UInt(X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL))
    return lists.bytes
  }

  // MARK: - Names

  /// The context whose certificate is for `name`, or else the first.
  func context(for name: String) -> OpaquePointer {
    contexts[byName[name] ?? Self.wildcard(of: name).flatMap { byName[$0] } ?? 0].raw
  }

  /// "*.example" for "gw.example": a wildcard stands for one label (RFC 6125 section 6.4.3).
  package static func wildcard(of name: String) -> String? {
    guard let dot = name.firstIndex(of: "."), dot != name.startIndex else { return nil }
    return "*" + name[dot...]
  }

  private static let chooseName:
    @convention(c) (OpaquePointer?, UnsafeMutablePointer<Int32>?, UnsafeMutableRawPointer?) -> Int32 = {
      ssl, alert, _ in
      guard let ssl, let server = BufferedBIO.under(ssl).server else { return SSL_TLSEXT_ERR_NOACK }
      let wire = BufferedBIO.under(ssl)
      guard let name = wire.serverName else { return SSL_TLSEXT_ERR_NOACK }
      let context = server.context(for: name)
      guard context == server.first || SSL_set_SSL_CTX(ssl, context) == context else {
        wire.lacksMemory = true
        alert?.pointee = SSL_AD_INTERNAL_ERROR
        return SSL_TLSEXT_ERR_ALERT_FATAL
      }
      return SSL_TLSEXT_ERR_OK
    }

  private static let chooseProtocol:
    @convention(c) (
      OpaquePointer?, UnsafeMutablePointer<UnsafePointer<UInt8>?>?, UnsafeMutablePointer<UInt8>?, UnsafePointer<UInt8>?,
      UInt32, UnsafeMutableRawPointer?
    ) -> Int32 = { ssl, chosen, length, offered, count, _ in
      guard let ssl, let chosen, let offered, let server = BufferedBIO.under(ssl).server else {
        return SSL_TLSEXT_ERR_ALERT_FATAL
      }
      var found: UnsafeMutablePointer<UInt8>?
      let answer = server.alpn.withUnsafeBufferPointer {
        SSL_select_next_proto(&found, length, $0.baseAddress, UInt32($0.count), offered, count)
      }
      guard answer == OPENSSL_NPN_NEGOTIATED, let found else { return SSL_TLSEXT_ERR_ALERT_FATAL }
      // `found` points into our list, which may move. The client's list has the same bytes and stays for the handshake.
      let name = UnsafeBufferPointer(start: found, count: Int(length?.pointee ?? 0))
      var index = 0
      while index < Int(count) {
        let size = Int(offered[index])
        if UnsafeBufferPointer(start: offered + index + 1, count: size).elementsEqual(name) {
          chosen.pointee = offered + index + 1
          return SSL_TLSEXT_ERR_OK
        }
        index += size + 1
      }
      return SSL_TLSEXT_ERR_ALERT_FATAL
    }

  /// A ticket keeps its client's certificate, but does not end when the certificate expires. In TLS 1.2 it is valid
  /// only for the name it was issued for (RFC 6066 section 3).
  private static let judgeTicket:
    @convention(c) (
      OpaquePointer?, OpaquePointer?, UnsafePointer<UInt8>?, Int, SSL_TICKET_STATUS, UnsafeMutableRawPointer?
    ) -> SSL_TICKET_RETURN = { ssl, session, _, _, status, _ in
      let mayUse = status == SSL_TICKET_SUCCESS || status == SSL_TICKET_SUCCESS_RENEW
      if mayUse, let ssl, let session {
        let certificate = SSL_SESSION_get0_peer(session)
        if let certificate, X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0 {
          return SSL_TICKET_RETURN_IGNORE_RENEW
        }
        if let certificate, !TLSServerContext.knowsIssuer(of: certificate, ssl) {
          return SSL_TICKET_RETURN_IGNORE_RENEW
        }
        let name = SSL_SESSION_get0_hostname(session).map { String(cString: $0).lowercased() }
        if SSL_version(ssl) == TLS1_2_VERSION, name != BufferedBIO.under(ssl).serverName {
          return SSL_TICKET_RETURN_IGNORE_RENEW
        }
      }
      switch status {
      case SSL_TICKET_SUCCESS: return SSL_TICKET_RETURN_USE
      case SSL_TICKET_SUCCESS_RENEW: return SSL_TICKET_RETURN_USE_RENEW
      default: return SSL_TICKET_RETURN_IGNORE_RENEW  // a full handshake, and a ticket at its end
      }
    }
}

/// Identifies the authorities and revocation lists that clients' certificates are verified against, to detect a change.
package struct TLSTrust: Hashable, Sendable {
  let digest: [UInt8]
}

/// A digest of what is required of clients.
private struct SessionDigest {
  private var bytes = Array("baudway".utf8)

  mutating func add(_ more: [UInt8]) { bytes += more }

  func finish() -> [UInt8] {
    var digest = [UInt8](repeating: 0, count: 32)  // SSL_MAX_SID_CTX_LENGTH
    SHA256(bytes, bytes.count, &digest)
    return digest
  }
}
