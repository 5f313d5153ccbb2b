// A WebSocket with the sub-protocol `baudway.v1` has a desk. Its texts are taken one at a time, so that each keeps its place.

import StreamWebSocket

extension WebSocketStream: DeskChannel {
  var carriesTexts: Bool { settings.terms.subprotocol == .baudwayV1 }

  func takeText() -> [UInt8]? { takeControlText()?.bytes }
}
