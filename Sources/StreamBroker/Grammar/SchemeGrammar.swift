// What the URLs of one scheme look like: one table drives parsing, checking, defaults and documentation, and the
// mapping form of the config file, where each parameter is a key beside `url:`.
// EndpointSchemes holds the tables of endpoints; the gateway has its own for listeners.

public struct SchemeGrammar: Sendable {
  public let scheme: String
  /// An example for people, shown in errors and documents.
  public let example: String
  public let authority: Authority
  public let path: Path
  public let parameters: [Parameter]
  /// Whether a route to such an endpoint shares one link among its clients when nothing else is said.
  public let sharesLink: Bool
  /// Whether only one can have what the URL names, so that two routes to it are a mistake.
  public let isExclusive: Bool
  let rules: [Rule]

  public init(
    _ scheme: String, example: String, authority: Authority, path: Path = .none, parameters: [Parameter] = [],
    sharesLink: Bool = false, isExclusive: Bool = false, rules: [Rule] = []
  ) {
    self.scheme = scheme
    self.example = example
    self.authority = authority
    self.path = path
    self.parameters = parameters
    self.sharesLink = sharesLink
    self.isExclusive = isExclusive
    self.rules = rules
  }

  public func parameter(_ name: String) -> Parameter? { parameters.first { $0.name == name } }
}

extension SchemeGrammar {
  /// What stands between `//` and the path.
  public enum Authority: Hashable, Sendable {
    /// Nothing: `unix:///run/x.sock`.
    case none
    /// Nothing, and the two slashes may be missing: `exec:/usr/bin/prog`.
    case opaque
    /// A host, and a port within the range unless there is a default.
    case network(ports: ClosedRange<Int>, defaultPort: Int? = nil)
    /// The same, where no host, or `*`, means all addresses.
    case listening(ports: ClosedRange<Int>, defaultPort: Int? = nil)
    /// A host that means nothing, and a port that is the named parameter: `tty://any:19200`.
    case ignored(portIs: String)
    case words([String])
    /// A Bluetooth address, and as a seventh group the RFCOMM channel.
    case bluetooth
    /// The UUID of a BLE service, and as a port the PSM of an L2CAP channel.
    case service
    /// A reverse-DNS name: `ea://com.vendor.protocol`.
    case protocolName
  }

  public enum Path: Hashable, Sendable {
    case none
    /// Any path, `/` when there is none.
    case any
    /// An absolute file name.
    case file
    /// An absolute file name, or after the host `usb` an identity: `/VID:PID[/SERIAL[/INTERFACE]]`.
    case device
    /// `/` and a Bluetooth address.
    case bluetooth(isRequired: Bool)
  }

  public struct Parameter: Sendable {
    public let name: String
    public let kind: ValueKind
    /// The value when none is given, in the text form of its kind; nil when "not given" means something of its own.
    public let standard: String?
    public let isRepeatable: Bool
    /// Other ways to write a value: `1.0` for `1`.
    public let aliases: [String: String]
    /// Values understood but never granted, and why.
    public let refused: [String: String]
    public let support: Support
    /// What it does, in one line for people.
    public let summary: String

    public init(
      _ name: String, _ kind: ValueKind, standard: String? = nil, isRepeatable: Bool = false,
      aliases: [String: String] = [:], refused: [String: String] = [:], support: Support = .built, _ summary: String
    ) {
      self.name = name
      self.kind = kind
      self.standard = standard
      self.isRepeatable = isRepeatable
      self.aliases = aliases
      self.refused = refused
      self.support = support
      self.summary = summary
    }
  }

  /// A condition over the whole URL.
  public struct Rule: Sendable {
    /// Where the fault lies: a parameter's name, or nil for the URL itself.
    let parameter: String?
    /// What is wrong with this URL, or nil when nothing is.
    let fault: @Sendable (EndpointURL) -> String?

    public init(_ parameter: String?, _ fault: @escaping @Sendable (EndpointURL) -> String?) {
      self.parameter = parameter
      self.fault = fault
    }
  }
}

/// Whether this build does what a parameter or key asks for.
public enum Support: Hashable, Sendable {
  case built
  /// Known and checked. Only these values are what the build does anyway; none when nothing may be said.
  case later(except: [String] = [])

  /// Whether `value`, in its canonical text, can be granted.
  public func grants(_ value: String) -> Bool {
    switch self {
    case .built: true
    case .later(let granted): granted.contains(value)
    }
  }
}
