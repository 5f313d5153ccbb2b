// Turns a request into a WebSocket, or refuses it with the reason (RFC 6455 section 4.2). Route and access are decided
// elsewhere, between the head and this.

package struct WebSocketUpgrade: Equatable, Sendable {
  /// What a listener allows.
  package struct Settings: Equatable, Sendable {
    /// Other origins whose pages may connect, such as "https://example.org"; "*" allows all.
    package var origins: [String]
    /// The names by which pages of the same origin may reach us; nil allows any name. See `HostNames`.
    package var hosts: HostNames?
    /// Whether the connection uses TLS: then a page of the same origin uses https.
    package var isSecure: Bool
    package var subprotocols: [WebSocketSubprotocol]
    /// Nil: no compression, whatever a client offers.
    package var deflate: DeflateSettings?

    fileprivate var pages: WebPageRule { WebPageRule(origins: origins, hosts: hosts, isSecure: isSecure) }

    package init(
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

  package let terms: WebSocketTerms
  /// The sub-protocols that the client offers, when none of them is ours: browsers then end the connection. At most 200
  /// characters, without tokens.
  package let unknownSubprotocols: String?
  /// The whole response, status 101. Everything after it on the connection is frames.
  package let response: [UInt8]

  /// Accepts the request `head`, or throws the response to send instead.
  package init(_ head: HTTPRequestHead, _ settings: Settings) throws(HTTPRefusal) {
    try Self.check(head)
    let keys = head.fields.all.filter { $0.name == "sec-websocket-key" }
    guard keys.count == 1, isKeyOf16Bytes(keys[0].value) else {
      throw HTTPRefusal(.badRequest, "A WebSocket request has one Sec-WebSocket-Key: 16 random bytes in base64.")
    }
    if let cause = settings.pages.objection(to: head) {
      throw .foreignPage(cause, printable(head[cause == .foreignHost ? "host" : "origin"] ?? ""))
    }
    let offered = head.fields.list("sec-websocket-protocol")
    guard offered.allSatisfy({ !$0.isEmpty && $0.utf8.allSatisfy(isToken) }), Set(offered).count == offered.count else {
      throw HTTPRefusal(.badRequest, "Sec-WebSocket-Protocol is a list of different names.")
    }
    let subprotocol = offered.lazy.compactMap(WebSocketSubprotocol.init).first(where: settings.subprotocols.contains)
    let isUnknown = subprotocol == nil && !offered.isEmpty
    unknownSubprotocols =
      isUnknown
      ? printable(offered.map { $0.hasPrefix("bearer.") ? "bearer.(token)" : $0 }.joined(separator: ", ")) : nil
    let deflate = settings.deflate?.accept(head.fields.list("sec-websocket-extensions"))
    terms = WebSocketTerms(subprotocol: subprotocol, deflate: deflate?.terms)

    var answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    answer += "Sec-WebSocket-Accept: \(Self.accept(keys[0].value))\r\n"
    if let subprotocol { answer += "Sec-WebSocket-Protocol: \(subprotocol.rawValue)\r\n" }
    if let deflate { answer += "Sec-WebSocket-Extensions: \(deflate.answer)\r\n" }
    response = Array((answer + "\r\n").utf8)
  }

  /// Whether it asks for a WebSocket at all, valid or not.
  package static func isWanted(by head: HTTPRequestHead) -> Bool { head.fields.lists("websocket", in: "upgrade") }

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
      throw HTTPRefusal(.badRequest, "The request has no Host.")
    }
    guard host.utf8.allSatisfy(isHost) else { throw HTTPRefusal(.badRequest, "The request's Host is not valid.") }
    let length = head["content-length"]
    guard head["transfer-encoding"] == nil, length == nil || length == "0", head.fields.count(of: "content-length") <= 1
    else {
      throw HTTPRefusal(.badRequest, "A WebSocket request has no body.")
    }
    guard head.fields.count(of: "sec-websocket-version") == 1, head["sec-websocket-version"] == "13" else {
      throw HTTPRefusal(.upgradeRequired, "This gateway speaks version 13 of WebSocket, RFC 6455.", fields: upgrade)
    }
  }
}

/// At most 200 characters, and none that could manipulate a terminal.
func printable(_ text: String) -> String {
  String(
    String.UnicodeScalarView(text.unicodeScalars.prefix(200).map { $0.value >= 0x20 && $0.value < 0x7F ? $0 : "?" }))
}
