// The form of one scheme's URLs. One table drives parsing, checks, defaults and documentation, and the mapping form of
// the config file, where each parameter is a key beside `url:`. EndpointSchemes has the tables of endpoints; the
// gateway has its own for listeners, and a scheme of another package brings its own with its connector.

/// The form of a scheme's URLs, as a table: what may follow the scheme, which parameters there are, and their defaults.
/// The broker parses and checks URLs by it, so a connector gets valid values only.
public struct SchemeGrammar: Sendable {
  /// The name, in lower case: "tty".
  public let scheme: String
  /// An example for people, shown in errors and documents.
  public let example: String
  /// What stands between `//` and the path.
  public let authority: Authority
  /// What the path may be.
  public let path: Path
  /// The parameters after `?`, in the order of the canonical URL.
  public let parameters: [Parameter]
  /// Whether the clients of a route share one link to such an endpoint, unless configured otherwise.
  public let sharesLink: Bool
  /// Whether only one program can have the endpoint open, so that two routes to it are a mistake.
  public let isExclusive: Bool
  /// Checked in order, once all parts of a URL are valid.
  public let rules: [Rule]
  /// For a scheme that no URL can open: makes the message from what follows `scheme:`.
  let refusal: (@Sendable (_ rest: String) -> String)?

  /// `scheme` is in lower case: letters, digits, `+`, `-` and `.`. The example is a valid URL of it, and each default is a
  /// value of its parameter's kind. `StreamConformance` checks that.
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
    refusal = nil
  }

  /// A scheme that is known but cannot be opened. Its URLs are not parsed: each gives the message of `refusal`.
  public init(_ scheme: String, example: String, refusal: @escaping @Sendable (_ rest: String) -> String) {
    self.scheme = scheme
    self.example = example
    authority = .opaque
    path = .any
    parameters = []
    sharesLink = false
    isExclusive = false
    rules = []
    self.refusal = refusal
  }

  /// The parameter of this name.
  public func parameter(_ name: String) -> Parameter? { parameters.first { $0.name == name } }
}

extension SchemeGrammar {
  /// The part between `//` and the path.
  public enum Authority: Hashable, Sendable {
    /// Nothing: `unix:///run/x.sock`.
    case none
    /// Nothing, and the two slashes are optional: `exec:/usr/bin/prog`.
    case opaque
    /// A host, and a port within the range; the port is optional if there is a default.
    case network(ports: ClosedRange<Int>, defaultPort: Int? = nil)
    /// The same for a listener: no host, or `*`, means all addresses.
    case listening(ports: ClosedRange<Int>, defaultPort: Int? = nil)
    /// The host is ignored, and the port is the named parameter: `tty://any:19200`.
    case ignored(portIs: String)
    /// One of these words: `sim://echo`.
    case words([String])
    /// Any name; the text says of what, for errors: "a protocol name".
    case name(String)
    /// A Bluetooth address, optionally with the RFCOMM channel as a seventh group.
    case bluetooth
    /// The UUID of a BLE service, optionally with the PSM of an L2CAP channel as its port.
    case service
  }

  /// The part after the authority.
  public enum Path: Hashable, Sendable {
    /// No path.
    case none
    /// No path. One that is given is ignored, with a warning: URLs of CornucopiaStreams may have one.
    case ignored
    /// Any path; `/` if none is given.
    case any
    /// An absolute file name.
    case file
    /// An absolute file name. After the host `usb`, an identity: `/VID:PID[/SERIAL[/INTERFACE]]`.
    case device
    /// Nothing, or `/` and a Bluetooth address.
    case bluetooth
  }

  /// One parameter of the query.
  public struct Parameter: Sendable {
    /// As it is written in the URL: "low-latency".
    public let name: String
    /// How its value is read and checked.
    public let kind: ValueKind
    /// The default, in the text form of its kind; nil if a missing value has a meaning of its own.
    public let standard: String?
    /// Whether it may be given several times.
    public let isRepeatable: Bool
    /// Other spellings of a value: `1.0` for `1`.
    public let aliases: [String: String]
    /// Values that are recognised but always refused, with the reason.
    public let refused: [String: String]
    /// Whether this build supports it.
    public let support: Support
    /// What it does, in one line for people.
    public let summary: String

    /// `standard` is the default as text, which `kind` must accept. `summary` is one line for people.
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

  /// A condition on the whole URL.
  public struct Rule: Sendable {
    /// The parameter at fault, or nil for the URL itself.
    public let parameter: String?
    /// What is wrong with this URL; nil if nothing is.
    public let fault: @Sendable (EndpointURL) -> String?

    /// `fault` gets a URL whose parts are valid, and returns what is wrong with it as a sentence, or nil.
    public init(_ parameter: String?, _ fault: @escaping @Sendable (EndpointURL) -> String?) {
      self.parameter = parameter
      self.fault = fault
    }
  }
}

/// Whether this build supports a parameter or key.
public enum Support: Hashable, Sendable {
  /// Supported.
  case built
  /// Known and checked, but not supported. Only the listed values are accepted, because the build does that anyway.
  /// With an empty list no value is.
  case later(except: [String] = [])

  /// Whether `value`, in its canonical text, is supported.
  public func grants(_ value: String) -> Bool {
    switch self {
    case .built: true
    case .later(let granted): granted.contains(value)
    }
  }
}
