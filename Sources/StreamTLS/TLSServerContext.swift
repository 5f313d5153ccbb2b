// What a server shows and asks: certificates by name, clients' certificates, protocols, tickets. Made from settings, never
// changed; a reload makes another. Reading its files blocks, so it is not made on a lane.

import COpenSSL

public final class TLSServerContext: Sendable {
  public let settings: TLSServerSettings
  /// The files it was made from. When one of them changes, make another.
  public let files: [String]
  /// What is odd and yet no reason to stop, such as a certificate that has expired.
  public let warnings: [String]
  let ticketKeys: TLSTicketKeys
  /// Equal for contexts with the same authorities and revocation lists; empty where clients are asked for nothing.
  public let trust: TLSTrust
  /// Equal for contexts that were made of the same files as they were at one time.
  public let stamps: TLSFileStamps

  // The first is where connections begin; tickets and clients' certificates are its business, whichever is shown.
  private let contexts: [ContextOwner]
  private let byName: [String: Int]
  let alpn: [UInt8]

  /// Reads the files. Throws what is wrong with them or with the settings. With the context it replaces, tickets of that one
  /// are honoured as far as what is asked of clients is the same.
  public init(_ settings: TLSServerSettings, replacing other: TLSServerContext? = nil) throws(TLSSettingsFault) {
    guard !settings.identities.isEmpty else {
      throw TLSSettingsFault(nil, nil, "a TLS server needs a certificate and its key")
    }
    self.settings = settings
    files = settings.files
    stamps = TLSFileStamps(of: files)
    ticketKeys = other?.ticketKeys ?? TLSTicketKeys()
    alpn = try ContextParts.wireFormat(alpn: settings.alpn)

    var contexts: [(owner: ContextOwner, names: Set<String>, kinds: Set<Int32>)] = []
    var warnings: [String] = []
    for identity in settings.identities {
      let names = try PEMFile(identity.certificate, as: .certificate).certificates()[0].serverNames
      let kind = try PEMFile(identity.certificate, as: .certificate).certificates()[0].keyKind
      let place: Int
      if let same = contexts.firstIndex(where: { $0.names == names && !$0.kinds.contains(kind) }) {
        place = same
      } else {
        let owner = try ContextParts.make(
          TLS_server_method(), minVersion: settings.minVersion, ciphers: settings.ciphers)
        contexts.append((owner, names, []))
        place = contexts.count - 1
      }
      let certificate = try ContextParts.load(identity, into: contexts[place].owner.raw)
      contexts[place].kinds.insert(kind)
      if let warning = ContextParts.warning(of: certificate, in: identity.certificate) { warnings.append(warning) }
    }
    var byName: [String: Int] = [:]
    for (index, context) in contexts.enumerated() {
      for name in context.names where byName[name] == nil { byName[name] = index }
    }
    self.contexts = contexts.map(\.owner)
    self.byName = byName
    self.warnings = warnings
    trust = try Self.trustClients(by: settings, of: self.contexts)
    for context in self.contexts { setUp(context.raw) }
  }

  /// The same settings with the files as they are now. Throws what is wrong with them; this one is good for use still. Blocks.
  public func renewed() throws(TLSSettingsFault) -> TLSServerContext {
    try TLSServerContext(settings, replacing: self)
  }

  /// Whether a file is not the one that was read. Blocks.
  public var filesHaveChanged: Bool { TLSFileStamps(of: files) != stamps }

  /// The DNS names of all its certificates, in lower case.
  public var certificateNames: [String] { Array(byName.keys) }

  var first: OpaquePointer { contexts[0].raw }

  // MARK: - Set-up

  private func setUp(_ context: OpaquePointer) {
    // Tickets keep sessions with the clients; a store here would be another thing to bound.
    // Scanners want an order, and ours is the profile's. Who has no AES in hardware puts ChaCha20 first, and gets it.
    SSL_CTX_set_options(context, openssl_OP_CIPHER_SERVER_PREFERENCE | openssl_OP_PRIORITIZE_CHACHA)
    openssl_CTX_set_session_cache_mode(context, Int(SSL_SESS_CACHE_OFF))
    // One: who wants to resume twice at once can do one of them in full.
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
      // A ticket is good only where the same was asked of its client.
      let name = digest.finish()
      for context in contexts { SSL_CTX_set_session_id_context(context.raw, name, UInt32(name.count)) }
    }
    guard settings.clientAuth != .none else { return TLSTrust(digest: []) }
    guard let file = settings.clientCA else {
      throw TLSSettingsFault(
        nil, .authority, "client certificates can't be checked", advice: "name those who may sign them: client-ca")
    }
    let authorities = try PEMFile(file, as: .authority)
    let certificates = try authorities.certificates()
    guard let store = X509_STORE_new() else { throw ContextParts.failed("X509_STORE_new") }
    defer { X509_STORE_free(store) }
    digest.add(authorities.bytes)
    for certificate in certificates {
      guard X509_STORE_add_cert(store, certificate.raw) == 1 else { throw ContextParts.failed("X509_STORE_add_cert") }
    }
    if let crl = settings.crl {
      let lists = try PEMFile(crl, as: .revocations)
      var isComplete = true
      try lists.withRevocationLists { isComplete = X509_STORE_add_crl(store, $0) == 1 && isComplete }
      // One that is missing would let in whom it names.
      guard isComplete else { throw ContextParts.failed("X509_STORE_add_crl") }
      X509_STORE_set_flags(store, UInt(X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL))
      digest.add(lists.bytes)
    }
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

  // MARK: - Names

  /// Whether a client may ask for `name`, in lower case.
  func admits(_ name: String?) -> Bool {
    switch settings.names {
    case .any: return true
    case .only(let names, let orNone):
      guard let name else { return orNone }
      return names.contains(name) || Self.wildcard(of: name).map { names.contains($0) } ?? false
    }
  }

  /// The context whose certificate is for `name`, or else the first.
  func context(for name: String) -> OpaquePointer {
    contexts[byName[name] ?? Self.wildcard(of: name).flatMap { byName[$0] } ?? 0].raw
  }

  /// "*.example" for "gw.example": a wildcard stands for one label (RFC 6125 section 6.4.3).
  public static func wildcard(of name: String) -> String? {
    guard let dot = name.firstIndex(of: "."), dot != name.startIndex else { return nil }
    return "*" + name[dot...]
  }

  private static let chooseName:
    @convention(c) (OpaquePointer?, UnsafeMutablePointer<Int32>?, UnsafeMutableRawPointer?) -> Int32 = {
      ssl, alert, _ in
      guard let ssl, let server = TLSWire.under(ssl).server else { return SSL_TLSEXT_ERR_NOACK }
      let wire = TLSWire.under(ssl)
      let name = wire.serverName
      guard server.admits(name) else {
        wire.nameIsRefused = true
        alert?.pointee = SSL_AD_UNRECOGNIZED_NAME
        return SSL_TLSEXT_ERR_ALERT_FATAL
      }
      guard let name else { return SSL_TLSEXT_ERR_NOACK }
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
      guard let ssl, let chosen, let offered, let server = TLSWire.under(ssl).server else {
        return SSL_TLSEXT_ERR_ALERT_FATAL
      }
      var found: UnsafeMutablePointer<UInt8>?
      let answer = server.alpn.withUnsafeBufferPointer {
        SSL_select_next_proto(&found, length, $0.baseAddress, UInt32($0.count), offered, count)
      }
      guard answer == OPENSSL_NPN_NEGOTIATED, let found else { return SSL_TLSEXT_ERR_ALERT_FATAL }
      // What it found lies in our list, which may move: the same bytes are in the client's, which stays for the handshake.
      let name = UnsafeBufferPointer(start: found, count: Int(length?.pointee ?? 0))
      var place = 0
      while place < Int(count) {
        let size = Int(offered[place])
        if UnsafeBufferPointer(start: offered + place + 1, count: size).elementsEqual(name) {
          chosen.pointee = offered + place + 1
          return SSL_TLSEXT_ERR_OK
        }
        place += size + 1
      }
      return SSL_TLSEXT_ERR_ALERT_FATAL
    }

  /// A ticket remembers its client's certificate, not that time goes by; and in TLS 1.2 it is good for the name it was got for
  /// alone (RFC 6066 section 3).
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
        if SSL_version(ssl) == TLS1_2_VERSION, name != TLSWire.under(ssl).serverName {
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

/// What clients' certificates are held against, as far as one can tell whether it is still the same.
public struct TLSTrust: Hashable, Sendable {
  let digest: [UInt8]
}

/// The name of what is asked of clients: a digest over it.
private struct SessionDigest {
  private var bytes = Array("baudway".utf8)

  mutating func add(_ more: [UInt8]) { bytes += more }

  func finish() -> [UInt8] {
    var digest = [UInt8](repeating: 0, count: 32)  // SSL_MAX_SID_CTX_LENGTH
    SHA256(bytes, bytes.count, &digest)
    return digest
  }
}
