// What listeners that are reached over Bluetooth can get wrong.

import StreamBroker

extension ConfigBuilder {
  /// Two listeners can't have one channel of an adapter; without the name of one they are on all.
  mutating func claimChannel(_ listener: ConfigURL) {
    let listen = Config.Listen(url: listener.url)
    guard listen.isRFCOMM else { return }
    guard let channel = listen.channel else {
      if !services.insert("\(listener.path) \(listen.place)").inserted {
        reader.report("listed twice; 'channel' or 'name' would tell them apart", at: listener.place, listener.path)
      }
      return
    }
    let adapter = listen.url.string("adapter")?.lowercased() ?? ""
    let taken = channels[channel] ?? [:]
    if let other = taken[adapter] ?? taken[""] ?? (adapter.isEmpty ? taken.values.min() : nil) {
      reader.report("channel \(channel) is taken by \(other)", at: listener.place, listener.path)
    } else {
      channels[channel, default: [:]][adapter] = "\(listener.path) (line \(listener.place.line))"
    }
  }

  /// Lists of networks are about those who have an address of a network.
  mutating func checkNetworks(_ listeners: [ConfigURL], _ settings: Settings) {
    let names = ["clients.allow", "clients.deny"].filter { settings.given($0) != nil }
    guard let name = names.first else { return }
    for listener in listeners where listener.url.scheme == "rfcomm" {
      reader.warn(
        "'\(name)' is about networks, and whoever comes over Bluetooth is let in; who may pair decides, "
          + "which is bluetoothd's, and anybody where it does not run",
        at: listener.place, listener.path)
    }
  }

  /// Nobody sits here who could compare a number.
  mutating func checkPairing(_ listeners: [ConfigURL]) {
    for listener in listeners where listener.url.scheme == "rfcomm" && listener.url.string("security") == "high" {
      reader.warn(
        "'security=high' lets in those only who compared a number with an agent of bluetoothd's; without one nobody gets in",
        at: listener.place, listener.path)
    }
  }
}
