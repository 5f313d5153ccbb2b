// The commands to the kernel before any connection or pairing: new bonds shall last, and the keys of earlier ones are
// loaded. A value.

enum BondLoading {
  // NoInputNoOutput: nobody is there to compare a number or type one in. The kernel then accepts pairings by itself.
  private static let neither: UInt8 = 3

  /// To be sent in this order. Each list replaces the kernel's, so it contains all bonds of the adapter.
  static func commands(_ bonds: [Bond], for adapter: ManagedAdapter) -> [ManagementCommand] {
    let index = adapter.index
    var commands = [ManagementCommand(code: .setInputOutput, adapter: index, parameters: [neither])]
    // After a pairing of the kind before Secure Connections, a peripheral may not find its own key again.
    let wanted: [(AdapterSettings, ManagementCommand.Code)] = [
      (.simplePairing, .setSimplePairing), (.secureConnections, .setSecureConnections), (.bondable, .setBondable),
    ]
    for (setting, code) in wanted where adapter.can.contains(setting) && !adapter.does.contains(setting) {
      commands.append(.turnOn(code, of: index))
    }
    func load(_ code: ManagementCommand.Code, _ kind: BondKey.Kind, after first: [UInt8] = []) {
      let keys = bonds.flatMap { bond in
        bond.keys.filter { $0.kind == kind }.map { bond.device.encoded + $0.bytes }
      }
      let parameters = first + LittleEndian.bytes(UInt16(clamping: keys.count)) + keys.joined()
      commands.append(ManagementCommand(code: code, adapter: index, parameters: parameters))
    }
    let noDebugKeys: [UInt8] = [0]
    if adapter.can.contains(.classic) { load(.loadLinkKeys, .link, after: noDebugKeys) }
    if adapter.hasLE {
      load(.loadLongTermKeys, .longTerm)
      load(.loadIdentities, .identity)
    }
    return commands
  }
}
