// The standard list of schemes: those of StreamBrokerCore, and those that need OpenSSL or zlib, whose folders are
// beside this file. A program that imports StreamBroker needs no other import for streams.

@_exported import ByteStreams
@_exported import StreamBrokerCore

/// The schemes that a program gives to `Broker`. Bluetooth's are in another product, StreamBrokerBluetooth:
/// `Broker(Schemes.standard + BluetoothSchemes.all)`.
public enum Schemes {
  /// Those of `CoreSchemes`, and `tls`, `ws`, `wss`, `rfc2217`, `rfc2217s` and `telnet`.
  public static let standard: [any Connector.Type] =
    CoreSchemes.all + [
      TLSConnector.self,
      WebSocketConnector.self,
      SecureWebSocketConnector.self,
      RFC2217Connector.self,
      SecureRFC2217Connector.self,
      TelnetConnector.self,
    ]
}

extension Broker {
  /// Opens the standard schemes. `connect` on any task or actor; its streams share lanes that are made at first use.
  public static let standard = Broker(Schemes.standard)
}
