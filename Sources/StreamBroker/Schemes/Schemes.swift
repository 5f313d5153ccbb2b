// The list of schemes. A new one is a folder beside this file and a line in it; nothing else in Sources changes.

/// What a program gives to `Broker`.
public enum Schemes {
  public static let standard: [any Connector.Type] = [
    TTYConnector.self,
    TCPConnector.self,
    TLSConnector.self,
    WebSocketConnector.self,
    SecureWebSocketConnector.self,
    UnixConnector.self,
    PtyConnector.self,
    ExecConnector.self,
    SimConnector.self,
  ]
}
