// What the properties of the admin listener's requests share: reading a head, carrying it to an action, and checking
// responses.

@testable import GatewayKit
@testable import StreamWebSocket

enum AdminRig {
  /// The head that `bytes` begin with, and the bytes after it; nil if it is not whole.
  static func head(_ bytes: [UInt8]) -> Result<(HTTPRequestHead, early: [UInt8])?, HTTPFault> {
    var parser = HTTPRequestParser()
    do throws(HTTPFault) {
      guard case .complete(let head, let taken) = try parser.take(bytes) else { return .success(nil) }
      return .success((head, Array(bytes[taken...])))
    } catch { return .failure(error) }
  }

  static func request(
    _ head: HTTPRequestHead, early: [UInt8] = [], for resource: AdminResource, _ pages: WebPageRule
  ) -> Result<AdminRequest, AdminRefusal> {
    do throws(AdminRefusal) {
      return .success(try AdminRequest(head, early: early, for: resource, pages: pages))
    } catch { return .failure(error) }
  }

  static func action(_ request: AdminRequest, _ content: [UInt8]) -> Result<AdminAction?, AdminRefusal> {
    do throws(AdminRefusal) { return .success(try request.action(content)) } catch { return .failure(error) }
  }

  /// A refusal is one line, and one whole response with a problem by RFC 9457.
  static func check(_ refusal: AdminRefusal) throws(Broken) {
    try hold(!refusal.detail.isEmpty && refusal.detail.utf8.count < 600, "a message to be read: \(refusal.detail)")
    try holdsOneLine(refusal.detail, "a refusal")
    for field in refusal.fields { try holdsOneLine(field.name + field.value, "a field") }
    let bytes = refusal.response.bytes
    var parser = HTTPResponseParser()
    guard case .complete(let head, let taken)? = try? bytes.withUnsafeBytes({ try parser.take($0) }) else {
      throw Broken("no whole response: \(refusal.detail)")
    }
    let content = bytes[taken...]
    try hold(head.status == refusal.status.rawValue, "another status")
    if refusal.isHead { return try hold(content.isEmpty, "content for HEAD") }
    try hold(head["content-length"] == "\(content.count)", "another length")
    guard let problem = try? JSONReader.read(content) else { throw Broken("no JSON: \(refusal.detail)") }
    try hold(problem["status"]?.integer == UInt64(refusal.status.rawValue), "another status in the problem")
    try hold(problem["detail"]?.text == refusal.detail, "another reason: \(problem)")
  }
}
