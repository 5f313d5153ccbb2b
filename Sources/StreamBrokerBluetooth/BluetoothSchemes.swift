// The list of Bluetooth's schemes. A separate product: programs without Bluetooth do not need it.

import StreamBrokerCore

/// Schemes to give to `Broker` besides `Schemes.standard`.
public enum BluetoothSchemes {
  /// `rfcomm` and `ble`.
  public static let all: [any Connector.Type] = [RFCOMMConnector.self, BLEConnector.self]
}
