// Checks of listeners that are reached over Bluetooth.

import StreamBroker

extension ConfigBuilder {
  /// Reports a channel of an adapter that another listener has. A listener that names no adapter is on all of them.
  mutating func claimChannel(_ listener: ConfigURL) {
    let listen = Config.Listen(url: listener.url)
    guard listen.isRFCOMM else { return }
    guard let channel = listen.channel else {
      if !services.insert("\(listener.path) \(listen.target)").inserted {
        reader.report("listed twice; give each its own 'channel' or 'name'", at: listener.location, listener.path)
      }
      return
    }
    let adapter = listen.url.string("adapter")?.lowercased() ?? ""
    let taken = channels[channel] ?? [:]
    if let other = taken[adapter] ?? taken[""] ?? (adapter.isEmpty ? taken.values.min() : nil) {
      reader.report("channel \(channel) is taken by \(other)", at: listener.location, listener.path)
    } else {
      channels[channel, default: [:]][adapter] = "\(listener.path) (\(reader.place(listener.location)))"
    }
  }

  /// Warns that lists of networks do not apply to Bluetooth clients.
  mutating func checkNetworks(_ listeners: [ConfigURL], _ settings: Settings) {
    let names = ["clients.allow", "clients.deny"].filter { settings.given($0) != nil }
    guard let name = names.first else { return }
    for listener in listeners where listener.traits.family == .rfcomm {
      reader.warn(
        "'\(name)' does not apply to Bluetooth clients: every paired device can connect, and without 'security=medium' "
          + "some others; bluetoothd decides which devices may pair, and without bluetoothd all may",
        at: listener.location, listener.path)
    }
  }

  /// Warns of `security=high`: the gateway itself cannot compare numbers with the device.
  mutating func checkPairing(_ listeners: [ConfigURL]) {
    for listener in listeners where listener.traits.family == .rfcomm && listener.url.string("security") == "high" {
      reader.warn(
        "'security=high' accepts only devices that compared a number with an agent of bluetoothd; without such an agent no device can connect",
        at: listener.location, listener.path)
    }
  }
}
