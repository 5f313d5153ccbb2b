// A request becomes a WebSocket, or is told why not (RFC 6455 section 4.2). Which route it is for, and who may come, is decided
// elsewhere, between the head and this.

public struct WebSocketUpgrade: Equatable, Sendable {
  /// What a listener allows.
  public struct Settings: Equatable, Sendable {
    /// Origins besides its own from which pages may come, such as "https://example.org"; "*" allows all.
    public var origins: [String]
    /// The names under which pages of the same origin may reach us; nil allows any name. See `HostNames`.
    public var hosts: HostNames?
    /// The connection came over TLS: a page of the same origin came by https then.
    public var isSecure: Bool
    public var subprotocols: [WebSocketSubprotocol]
    /// Nil: nothing is compressed, whatever a client offers.
    public var deflate: DeflateSettings?

    public init(
      origins: [String] = [], hosts: HostNames? = nil, isSecure: Bool = false,
      subprotocols: [WebSocketSubprotocol] = WebSocketSubprotocol.allCases, deflate: DeflateSettings? = nil
    ) {
      self.origins = origins
      self.hosts = hosts
      self.isSecure = isSecure
      self.subprotocols = subprotocols
      self.deflate = deflate
    }
  }

  public let terms: WebSocketTerms
  /// The whole answer, status 101. What follows it on the connection are frames.
  public let response: [UInt8]

  /// Accepts the request `head`, or throws the answer that it gets instead.
  public init(_ head: HTTPRequestHead, _ settings: Settings) throws(HTTPRefusal) {
    try Self.check(head)
    let keys = head.fields.all.filter { $0.name == "sec-websocket-key" }
    guard keys.count == 1, isKeyOf16Bytes(keys[0].value) else {
      throw HTTPRefusal(.badRequest, "A WebSocket request has one Sec-WebSocket-Key: 16 random bytes in base64.")
    }
    if let cause = Self.objection(toOriginOf: head, settings) {
      throw .foreignPage(cause, printable(head[cause == .foreignHost ? "host" : "origin"] ?? ""))
    }
    let offered = head.fields.list("sec-websocket-protocol")
    guard offered.allSatisfy({ !$0.isEmpty && $0.utf8.allSatisfy(isToken) }), Set(offered).count == offered.count else {
      throw HTTPRefusal(.badRequest, "Sec-WebSocket-Protocol is a list of different names.")
    }
    let subprotocol = offered.lazy.compactMap(WebSocketSubprotocol.init).first(where: settings.subprotocols.contains)
    let deflate = settings.deflate?.accept(head.fields.list("sec-websocket-extensions"))
    terms = WebSocketTerms(subprotocol: subprotocol, deflate: deflate?.terms)

    var answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    answer += "Sec-WebSocket-Accept: \(Self.accept(keys[0].value))\r\n"
    if let subprotocol { answer += "Sec-WebSocket-Protocol: \(subprotocol.rawValue)\r\n" }
    if let deflate { answer += "Sec-WebSocket-Extensions: \(deflate.answer)\r\n" }
    response = Array((answer + "\r\n").utf8)
  }

  /// The token of a page that could not send a field of its own: a sub-protocol "bearer.TOKEN" beside the real one. It is not
  /// answered, and belongs in no log.
  public static func bearerToken(in head: HTTPRequestHead) -> String? {
    let prefix = "bearer."
    return head.fields.list("sec-websocket-protocol").first { $0.hasPrefix(prefix) }.map {
      String($0.dropFirst(prefix.count))
    }
  }

  /// Whether it asks for a WebSocket at all, be it right or wrong.
  public static func isWanted(by head: HTTPRequestHead) -> Bool { head.fields.lists("websocket", in: "upgrade") }

  static func accept(_ key: String) -> String {
    base64(sha1(Array((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").utf8)))
  }

  private static func check(_ head: HTTPRequestHead) throws(HTTPRefusal) {
    guard head.method == "GET" else {
      throw HTTPRefusal(.methodNotAllowed, "A WebSocket begins with GET.", fields: [("Allow", "GET")])
    }
    let upgrade = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13")]
    guard isWanted(by: head), head.fields.lists("upgrade", in: "connection"), head.minorVersion == 1 else {
      throw HTTPRefusal(
        .upgradeRequired,
        "This is a WebSocket port. Connect with a WebSocket client, such as new WebSocket(\"ws://…\") in a page, or websocat.",
        fields: upgrade)
    }
    guard let host = head["host"], !host.isEmpty else {
      throw HTTPRefusal(.badRequest, "The request names no host.")
    }
    guard host.utf8.allSatisfy(isHost) else { throw HTTPRefusal(.badRequest, "The request's Host is none.") }
    let length = head["content-length"]
    guard head["transfer-encoding"] == nil, length == nil || length == "0", head.fields.count(of: "content-length") <= 1
    else {
      throw HTTPRefusal(.badRequest, "A WebSocket request has no body.")
    }
    guard head.fields.count(of: "sec-websocket-version") == 1, head["sec-websocket-version"] == "13" else {
      throw HTTPRefusal(.upgradeRequired, "This gateway speaks version 13 of WebSocket, RFC 6455.", fields: upgrade)
    }
  }

  // MARK: - Origin

  /// Nil for a page that may connect. Only browsers say where a page came from; others are as good as any client.
  private static func objection(toOriginOf head: HTTPRequestHead, _ settings: Settings) -> HTTPRefusal.Cause? {
    guard head.fields.count(of: "origin") > 0 else { return nil }
    guard head.fields.count(of: "origin") == 1, let origin = head["origin"].map(lowercased) else {
      return .foreignOrigin
    }
    if settings.origins.contains(where: { $0 == "*" || lowercased($0) == origin }) { return nil }
    let (scheme, port) = origin.hasPrefix("https://") ? ("https://", ":443") : ("http://", ":80")
    // On a port without TLS a page by https may be of the same origin: somebody else does TLS in front of us.
    guard origin.hasPrefix(scheme), scheme == "https://" || !settings.isSecure, let host = head["host"].map(lowercased)
    else {
      return .foreignOrigin
    }
    let without = { (text: Substring) in text.hasSuffix(port) ? text.dropLast(port.count) : text }
    guard without(origin.dropFirst(scheme.count)) == without(host[...]) else { return .foreignOrigin }
    // A page of the same origin proves nothing where its owner decides what its name resolves to.
    return settings.hosts?.contains(host) ?? true ? nil : .foreignHost
  }
}

/// At most 200 characters, and none that could be a trick on a terminal.
func printable(_ text: String) -> String {
  String(
    String.UnicodeScalarView(text.unicodeScalars.prefix(200).map { $0.value >= 0x20 && $0.value < 0x7F ? $0 : "?" }))
}
