// A request to the admin listener whose head is checked: a pure function of the head. The handshake server makes it
// before the client logs in; AdminConnection reads the content.

import ByteStreams
import StreamBroker
import StreamWebSocket

struct AdminRequest: Equatable, Sendable {
  let resource: AdminResource
  let isHead: Bool
  /// Whether the client sent HTTP/1.0, which has no chunks.
  let isOld: Bool
  /// The values of the query, by name.
  let query: [String: String]
  /// The elements of Accept.
  let accept: [String]
  /// Whether it may be answered by gzip.
  let takesGzip: Bool
  /// The elements of If-None-Match: tags of what the client has already.
  private let knownTags: [String]
  /// Whether a script of a page sent it: no other sets this field.
  let isOfScript: Bool
  /// Whether it came over TLS.
  let isSecure: Bool
  /// The last event that the client got before it lost its connection.
  let lastEvent: String?
  /// Bytes of content.
  let length: Int
  /// Content that came together with the head.
  let early: [UInt8]
  /// Whether the client waits for a word before it sends the content (RFC 9110 section 10.1.1).
  let expectsContinue: Bool

  /// Bytes of the longest content.
  static let longest = 64 << 10

  /// Throws if the head alone shows that the request must not be carried out. `pages` has the gateway's own names.
  init(
    _ head: HTTPRequestHead, early: [UInt8], for resource: AdminResource, pages: WebPageRule
  ) throws(AdminRefusal) {
    self.resource = resource
    isHead = head.method == "HEAD"
    isOld = head.minorVersion == 0
    accept = head.fields.list("accept")
    takesGzip = Self.takesGzip(head.fields.list("accept-encoding"))
    knownTags = head.fields.list("if-none-match")
    isOfScript = head.fields.count(of: "x-requested-with") > 0
    isSecure = pages.isSecure
    lastEvent = head["last-event-id"]
    do throws(AdminRefusal) {
      try Self.checkHost(head, resource, pages)
      try Self.checkMethod(head, resource, pages)
      query = try Self.query(head.query, of: resource)
      length = try Self.length(head)
    } catch {
      var refusal = error
      refusal.isHead = head.method == "HEAD"
      throw refusal
    }
    self.early = Array(early.prefix(length))
    expectsContinue = head.fields.lists("100-continue", in: "expect") && head.minorVersion == 1
  }

  /// Whether the client has what `tag` means. It may mark the tag as weak (RFC 9110 section 13.1.2).
  func knows(tag: String) -> Bool { knownTags.contains { $0 == "*" || $0 == tag || $0 == "W/" + tag } }

  /// Whether `codings` has gzip, and does not forbid it by a weight of 0.
  private static func takesGzip(_ codings: [String]) -> Bool {
    codings.contains { coding in
      let words = coding.lowercased().filter { $0 != " " }.split(separator: ";")
      return words.first == "gzip"
        && !words.dropFirst().contains { $0.hasPrefix("q=0") && Double($0.dropFirst(2)) == 0 }
    }
  }

  /// Protects against DNS rebinding: a web page can let its own name lead to this address. A request with credentials
  /// is none of such a page, which has none for its own name; probes get nothing that is worth it.
  private static func checkHost(
    _ head: HTTPRequestHead, _ resource: AdminResource, _ pages: WebPageRule
  ) throws(AdminRefusal) {
    guard head["host"] != nil || head.minorVersion == 0 else {
      throw AdminRefusal(.badRequest, "The request has no Host.")
    }
    guard let host = head["host"] else { return }
    guard head.hasValidHost else { throw AdminRefusal(.badRequest, "The request's Host is not valid.") }
    guard !resource.isProbe, head.fields.count(of: "authorization") == 0, let names = pages.hosts,
      !names.contains(host)
    else { return }
    throw foreign(.foreignHost, host)
  }

  private static func checkMethod(
    _ head: HTTPRequestHead, _ resource: AdminResource, _ pages: WebPageRule
  ) throws(AdminRefusal) {
    guard resource.methods.contains(head.method) else {
      var refusal = AdminRefusal(
        .methodNotAllowed, "This path takes \(resource.methods.joined(separator: " and ")).")
      refusal.fields = [AdminResponse.Field(name: "Allow", value: resource.methods.joined(separator: ", "))]
      throw refusal
    }
    // A browser lets any page open a WebSocket, which may then send bytes to a device.
    if case .terminal = resource {} else if head.method == "GET" || head.method == "HEAD" { return }
    // What changes something must not come from another page, whatever credentials the browser adds to it.
    if let cause = pages.objection(to: head) {
      throw foreign(cause, head[cause == .foreignHost ? "host" : "origin"] ?? "")
    }
    let sites = head.fields.all.filter { $0.name == "sec-fetch-site" }.map(\.value)
    guard sites.allSatisfy(["same-origin", "none"].contains) else { throw foreign(.foreignOrigin, "elsewhere") }
  }

  private static func foreign(_ cause: HTTPRefusal.Cause, _ name: String) -> AdminRefusal {
    let name = Suggestion.plain(name)
    var refusal = AdminRefusal(
      .forbidden,
      cause == .foreignHost
        ? "The gateway does not know itself as \(name). To allow this name, add it to 'admin.hosts' in its configuration."
        : "Pages from \(name) may not change anything here.")
    refusal.cause = cause
    return refusal
  }

  private static func query(_ text: String?, of resource: AdminResource) throws(AdminRefusal) -> [String: String] {
    var values: [String: String] = [:]
    for part in (text ?? "").split(separator: "&") {
      let name = part.prefix { $0 != "=" }
      guard resource.parameters.contains(String(name)) else {
        throw AdminRefusal(.badRequest, "This path takes no parameter \(Suggestion.quote(String(name))).")
      }
      let bytes = try PercentEncoding.decode(part.dropFirst(name.count + 1).utf8) { (_) throws(AdminRefusal) in
        throw AdminRefusal(.badRequest, "The query has a broken escape.")
      }
      let isText = { (text: String) in !text.unicodeScalars.contains(where: JSONValue.misleads) }
      guard let value = String(validating: bytes, as: UTF8.self), isText(value) else {
        throw AdminRefusal(.badRequest, "The query has a value that is not text.")
      }
      guard values.updateValue(value, forKey: String(name)) == nil else {
        throw AdminRefusal(.badRequest, "The query has \(name) twice.")
      }
    }
    return values
  }

  private static func length(_ head: HTTPRequestHead) throws(AdminRefusal) -> Int {
    let length: Int
    do throws(HTTPRefusal) { length = try head.contentLength(atMost: longest) } catch { throw AdminRefusal(error) }
    guard length > 0 else { return 0 }
    guard head.method != "GET", head.method != "HEAD" else {
      throw AdminRefusal(.badRequest, "A \(head.method) request has no content.")
    }
    let type = (head["content-type"] ?? "").prefix { $0 != ";" }.filter { $0 != " " }.lowercased()
    guard type == AdminResponse.json else {
      throw AdminRefusal(.unsupportedMediaType, "Send the content as Content-Type: \(AdminResponse.json).")
    }
    return length
  }
}
