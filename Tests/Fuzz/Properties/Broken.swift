// What must hold for every input, as functions of bytes that do not know the fuzzer: Driver runs them under libFuzzer,
// Replay on the stored inputs. A property that does not hold throws; a trap is a finding as well.

/// An input for which a property does not hold.
struct Broken: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}

/// One fuzz target.
enum Property: String, CaseIterable {
  case url, config, ser2net, control, credentials, messages, proxy, sdp, att, gatt, management, adverts, frames,
    upgrade, telnet, negotiation, comport, requests, queries, contents, policies

  /// The checker throws for an input for which the property does not hold. For one thread at a time.
  func checker() throws(Broken) -> ([UInt8]) throws(Broken) -> Void {
    switch self {
    case .url: return URLProperty.check
    case .config: return ConfigProperty.check
    case .ser2net: return Ser2netProperty.check
    case .credentials: return CredentialsProperty.check
    case .proxy: return ProxyProperty.check
    case .messages: return MessagesProperty.check
    case .sdp: return SDPProperty.check
    case .att: return ATTProperty.check
    case .management: return ManagementProperty.check
    case .adverts: return AdvertsProperty.check
    case .frames: return FramesProperty.check
    case .upgrade: return UpgradeProperty.check
    case .telnet: return TelnetProperty.check
    case .negotiation: return NegotiationProperty.check
    case .queries: return QueriesProperty.check
    case .requests:
      let requests = try RequestsProperty()
      return { input throws(Broken) in try requests.check(input) }
    case .contents:
      let contents = try ContentsProperty()
      return { input throws(Broken) in try contents.check(input) }
    case .comport:
      let stream = try ComPortProperty()
      return { input throws(Broken) in try stream.check(input) }
    case .gatt:
      let stream = try GATTStreamProperty()
      return { input throws(Broken) in try stream.check(input) }
    case .policies:
      let policies = try PoliciesProperty()
      return { input throws(Broken) in try policies.check(input) }
    case .control:
      let control = try ControlProperty()
      return { input throws(Broken) in try control.check(input) }
    }
  }
}

func hold(_ condition: Bool, _ rule: @autoclosure () -> String) throws(Broken) {
  if !condition { throw Broken(rule()) }
}

/// Messages are single lines: whatever a file or a client puts into one, terminals and logs get one line of text.
func holdsOneLine(_ text: String?, _ what: String) throws(Broken) {
  guard let text else { return }
  let isLine = text.unicodeScalars.allSatisfy { scalar in
    if scalar.isASCII { return scalar.value >= 0x20 && scalar.value != 0x7F }
    return scalar.properties.generalCategory != .control && scalar != "\u{2028}" && scalar != "\u{2029}"
  }
  try hold(isLine, "\(what) is no single line: \(text.debugDescription)")
}
