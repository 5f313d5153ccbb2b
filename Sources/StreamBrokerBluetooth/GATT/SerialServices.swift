// Services over GATT that are known to carry bytes as a serial port does. `auto` finds the characteristics of each; a device that
// advertises one of them can be opened by that alone.

enum SerialServices {
  /// By the name people know it by.
  private static let known: [(name: String, service: String)] = [
    ("Nordic UART", "6E400001-B5A3-F393-E0A9-E50E24DCCA9E"),
    ("HM-10", "FFE0"),
    ("serial FFF0", "FFF0"),
    ("serial FF00", "FF00"),
    ("OBD 18F0", "18F0"),
    ("Espressif SPP", "ABF0"),
    ("Microchip UART", "49535343-FE7D-4AE5-8FA9-9FAFD205E455"),
    ("u-blox SPS", "2456E1B9-26E2-8F83-E744-F34F01E9D701"),
    ("Laird VSP", "569A1101-B87F-490C-92CB-11BA5EA5167C"),
    ("serial E7810A71", "E7810A71-73AE-499D-8C15-FAA9AEF0C3F2"),
  ]

  private static let names = Dictionary(
    uniqueKeysWithValues: known.compactMap { name, uuid in BluetoothUUID(uuid).map { ($0, name) } })

  /// Nil for a service that is not known as a serial one.
  static func name(of service: BluetoothUUID) -> String? { names[service] }
}
