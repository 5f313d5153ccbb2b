// The settings that the file gives for a route or at the top: its own, else inherited ones. Defaults are not here: they
// are the initial values of Config's properties.

struct Settings {
  let own: [String: ConfigSetting]
  var inherited: [String: ConfigSetting] = [:]

  func given(_ name: String) -> ConfigSetting? { own[name] ?? inherited[name] }
}
