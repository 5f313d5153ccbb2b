// The recording of a route: whether there is one, the name of its files, and what is wrong with it.

import StreamBroker

extension ConfigBuilder {
  mutating func capture(_ settings: Settings, _ route: String, _ link: Config.Link) -> Config.Capture? {
    guard ConfigKeys.capture.isOn(settings) else { return nil }
    guard link == .shared else {
      // An inherited recording is for the routes that have a shared link.
      if let own = settings.own.filter({ $0.key.hasPrefix("capture.") }).values.min(by: { $0.key < $1.key }) {
        reader.report(
          "only a shared link is recorded, and this route has a link for each client; write 'link: shared', or "
            + "'capture: off'", at: own.key, own.path)
      }
      return nil
    }
    var capture = ConfigKeys.capture.read(settings)
    let file = settings.given("capture.file")
    if file == nil { capture.file = Config.Capture.standardFile(capture.format) }
    guard let file else { return capture }
    if let problem = CaptureName.problem(of: capture.file) {
      if checked.insert(file.key).inserted {
        reader.report(problem.text, at: file.key, file.path, suggestion: problem.suggestion)
      }
      return capture
    }
    let name = CaptureName(capture.file, route: route, stateFolder: "").description
    if let other = recordings.updateValue(route, forKey: name), checked.insert(file.key).inserted {
      reader.report(
        "routes '\(Suggestion.plain(other))' and '\(Suggestion.plain(route))' would record to the same files; write {route} into the name",
        at: file.key, file.path)
    }
    return capture
  }
}

extension Config.Capture {
  static func standardFile(_ format: Format) -> String { "{route}-{date}.\(format.ending)" }
}
