// The length of a request's content (RFC 9112 section 6), decided strictly: a request whose length is in doubt could
// hide a second one from a proxy in front of us.

extension HTTPRequestHead {
  /// The bytes of content after the head, at most `limit`. Throws the response to send instead.
  package func contentLength(atMost limit: Int) throws(HTTPRefusal) -> Int {
    guard fields.count(of: "transfer-encoding") == 0 else {
      guard fields.count(of: "content-length") == 0 else {
        throw HTTPRefusal(.badRequest, "The request has both Transfer-Encoding and Content-Length.")
      }
      throw HTTPRefusal(.lengthRequired, "Send the content with Content-Length instead of Transfer-Encoding.")
    }
    guard fields.count(of: "content-length") <= 1 else {
      throw HTTPRefusal(.badRequest, "The request has several Content-Length fields.")
    }
    guard let text = self["content-length"] else { return 0 }
    guard !text.isEmpty, text.utf8.allSatisfy({ $0 >= UInt8(ascii: "0") && $0 <= UInt8(ascii: "9") }) else {
      throw HTTPRefusal(.badRequest, "The request's Content-Length is not a number.")
    }
    guard let length = Int(text), length <= limit else {
      throw HTTPRefusal(.contentTooLarge, "The content may have at most \(limit) bytes.")
    }
    return length
  }

  /// Whether the Host field is there and can be a host name, as every HTTP/1.1 request needs it (RFC 9112 section 3.2).
  package var hasValidHost: Bool { self["host"].map { !$0.isEmpty && $0.utf8.allSatisfy(isHost) } ?? false }
}
