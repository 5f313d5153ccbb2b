// Gives a WebSocket with the sub-protocol `baudway.v1` a control channel. Texts are taken one at a time, so that each
// keeps its position among the bytes.

import ByteStreams
import StreamTelnet
import StreamWebSocket

extension WebSocketStream.Settings {
  init(_ terms: WebSocketTerms, as websocket: Config.WebSocket?) {
    self.init(terms: terms)
    // With more than one, a text would lose its position among the bytes.
    mostControlTexts = 1
    guard let websocket else { return }
    longestMessage = websocket.maxMessage
    pingInterval = websocket.ping
  }
}

/// A client's stream that carries texts beside the bytes, one JSON object each.
protocol ControlTextStream: AnyObject {
  /// Whether the client has negotiated texts.
  var carriesTexts: Bool { get }
  /// The oldest text that was not taken; nil if there is none, or while the client does not read our texts.
  func takeText() -> [UInt8]?
  /// Queues `text` between the other output. False if it was dropped because too much is queued.
  func send(event text: [UInt8]) -> Bool
}

extension WebSocketStream: ControlTextStream {
  var carriesTexts: Bool { settings.terms.subprotocol == .baudwayV1 }

  func takeText() -> [UInt8]? { takeControlText()?.bytes }
}

/// `baudway.v1`: requests, events and replies as texts.
final class ControlTexts: ControlProtocol {
  private let stream: any ControlTextStream

  init(_ stream: any ControlTextStream) { self.stream = stream }

  let hasTexts = true
  let showsEvents = true

  func takeRequest() -> ControlChannelRequest.Parsed? {
    guard let text = stream.takeText() else { return nil }
    do throws(ControlChannelRequest.Fault) {
      let (id, request) = try ControlChannelRequest.parse(text)
      return .success((id, request))
    } catch {
      return .failure(error)
    }
  }

  func send(_ event: ControlChannelEvent) -> Bool { stream.send(event: Array(event.json.description.utf8)) }
  func send(_ reply: ControlChannelReply) -> Bool { stream.send(event: Array(reply.json.description.utf8)) }
}

extension ControlChannel {
  /// The control channel of a client; nil for clients that have only bytes.
  convenience init?(of stream: any ByteStream, sendsNotices: Bool = true) {
    if let texts = stream as? any ControlTextStream, texts.carriesTexts {
      self.init(ControlTexts(texts))
    } else if let telnet = stream as? TelnetStream {
      self.init(TelnetControl(telnet, sendsNotices: sendsNotices))
    } else if let pty = stream as? PtyClientStream, pty.looksForChanges {
      self.init(PtyControl(pty))
    } else {
      return nil
    }
  }
}
