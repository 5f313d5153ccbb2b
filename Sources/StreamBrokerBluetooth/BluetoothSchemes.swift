// The list of Bluetooth's schemes. A product of its own, so that programs without Bluetooth need nothing of it.

import StreamBroker

/// What a program gives to `Broker` besides `Schemes.standard`.
public enum BluetoothSchemes {
  public static let all: [any Connector.Type] = [RFCOMMConnector.self, BLEConnector.self]
}
