// A WebSocket with the sub-protocol `baudway.v1` has a desk. Its texts are taken one at a time, so that each keeps its place.

import StreamWebSocket

extension WebSocketStream.Settings {
  init(_ terms: WebSocketTerms, as websocket: Config.WebSocket?) {
    self.init(terms: terms)
    // Each text keeps its place among the bytes.
    mostControlTexts = 1
    guard let websocket else { return }
    longestMessage = websocket.maxMessage
    pingInterval = websocket.ping
  }
}

extension WebSocketStream: DeskChannel {
  var carriesTexts: Bool { settings.terms.subprotocol == .baudwayV1 }

  func takeText() -> [UInt8]? { takeControlText()?.bytes }
}
