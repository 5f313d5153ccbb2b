// Text messages of `baudway.v1`, one per line: a request is answered or refused in one line of JSON that names it.

import StreamBroker

@testable import ByteStreams
@testable import GatewayKit

enum MessagesProperty {
  static func check(_ input: [UInt8]) throws(Broken) {
    for line in input.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false).prefix(64) {
      try checkOne(Array(line))
    }
  }

  private static func checkOne(_ text: [UInt8]) throws(Broken) {
    switch parse(text) {
    case .success((let id, let request)):
      try holdsReply(.done(id, LineSettings()), id)
      try checkRequest(request, text)
    case .failure(let fault):
      try hold(!fault.message.isEmpty && fault.message.utf8.count < 500, "a message to be read")
      try holdsOneLine(fault.message, "an error")
      try holdsOneLine(fault.suggestion, "a suggestion")
      try holdsReply(.failed(fault.id, fault.message, suggestion: fault.suggestion), fault.id)
    }
  }

  private static func parse(
    _ text: [UInt8]
  ) -> Result<(id: ControlChannelRequest.ID?, request: ControlChannelRequest), ControlChannelRequest.Fault> {
    do throws(ControlChannelRequest.Fault) { return .success(try ControlChannelRequest.parse(text)) } catch {
      return .failure(error)
    }
  }

  /// A reply is one line of JSON that names its request.
  private static func holdsReply(_ reply: ControlChannelReply, _ id: ControlChannelRequest.ID?) throws(Broken) {
    let text = reply.json.description
    try holdsOneLine(text, "a reply")
    guard let json = try? JSONReader.read(text.utf8) else { throw Broken("a reply that is no JSON: \(text)") }
    try hold(json == reply.json && json["reply"] == id ?? .null, "a reply to something else: \(text)")
  }

  private static func checkRequest(_ request: ControlChannelRequest, _ text: [UInt8]) throws(Broken) {
    try hold(text.count <= ControlChannelRequest.longest, "a request that is too long")
    switch request {
    case .line(let change):
      let line = change.applied(to: LineSettings())
      try hold(line.bitsPerSecond > 0 && (5...8).contains(line.dataBits), "a line that can't be: \(line)")
      try hold(change != ControlChannelRequest.LineChange(), "a change of nothing")
      let event = ControlChannelEvent.line(line).json.description
      guard let json = try? JSONReader.read(event.utf8), json["baud"]?.integer == UInt64(line.bitsPerSecond) else {
        throw Broken("an event that is no JSON: \(event)")
      }
      // A request can set every line setting that an event reports.
      let members = (json.members ?? []).filter { $0.key != "event" }
      let again = JSONValue.object([JSONValue.Member(key: "request", value: .text("line"))] + members).description
      guard let back = try? ControlChannelRequest.parse(Array(again.utf8)), case .line(let same) = back.request else {
        throw Broken("an event that can't be asked for: \(again)")
      }
      try hold(same.applied(to: LineSettings(bitsPerSecond: 1)) == line, "an event says something else")
    case .breakFor(let time):
      try hold(time > .zero && time <= .milliseconds(5000), "a break of \(time)")
    default: break
    }
  }
}
