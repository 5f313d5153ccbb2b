// The properties of a scheme of listener URLs. Configuration, handshakes and inherited sockets use them. One value per
// scheme, in the table of `ListenerSchemes`.

import ByteStreams
import StreamBroker

struct ListenerTraits: Sendable {
  typealias Make = @Sendable (Config.Listen, ListenerContext) -> any Listener

  /// What clients connect to.
  enum Family: Sendable { case tcp, unix, pty, rfcomm }

  let grammar: SchemeGrammar
  let family: Family
  let usesTLS: Bool
  let usesWebSocket: Bool
  let usesTelnet: Bool
  /// Serves requests itself, instead of leading to a route.
  let isAdmin: Bool
  /// Nil for a scheme that is recognised and checked, but that this build can't listen on.
  let make: Make?

  init(
    _ grammar: SchemeGrammar, _ family: Family, usesTLS: Bool = false, usesWebSocket: Bool = false,
    usesTelnet: Bool = false, isAdmin: Bool = false, make: Make? = nil
  ) {
    self.grammar = grammar
    self.family = family
    self.usesTLS = usesTLS
    self.usesWebSocket = usesWebSocket
    self.usesTelnet = usesTelnet
    self.isAdmin = isAdmin
    self.make = make
  }

  var scheme: String { grammar.scheme }
  /// Whether only programs of this machine can connect; the file's mode decides which.
  var isLocal: Bool { family == .unix || family == .pty }
  /// Whether clients complete a handshake before they reach their route. For telnet it is the log-in, if there is one.
  var hasHandshake: Bool { usesTLS || usesHTTP || usesTelnet }
  /// Whether routes can share a port: the handshake names the route, by server name or by path.
  var canSharePort: Bool { usesTLS || usesHTTP }
  /// Whether clients begin with an HTTP request.
  var usesHTTP: Bool { usesWebSocket || isAdmin }

  /// Whether clients can log in: by HTTP, at telnet's prompt, or by certificate if the route has an authority for them.
  func canLogIn(knowsCertificates: Bool) -> Bool { usesHTTP || usesTelnet || usesTLS && knowsCertificates }
}

extension Config.Listen {
  var traits: ListenerTraits {
    guard let traits = ListenerSchemes.traits(scheme) else {
      preconditionFailure("the configuration lets no listener through whose scheme is not in the table")
    }
    return traits
  }

  var usesTLS: Bool { traits.usesTLS }
  var usesWebSocket: Bool { traits.usesWebSocket }
  var usesHTTP: Bool { traits.usesHTTP }
  var isAdmin: Bool { traits.isAdmin }
  var usesTelnet: Bool { traits.usesTelnet }
  /// A telnet listener whose URL states a role asks nobody: RFC 2217 libraries cannot answer a prompt.
  var asksNobody: Bool { usesTelnet && url.gives("role") }
  /// A client that sends no IAC in its first moments is served as raw TCP.
  var detectsRawTCP: Bool { url.string("raw") == "auto" }
  var isRFCOMM: Bool { traits.family == .rfcomm }
  /// Whether clients connect through a proxy that sends their address.
  var isProxied: Bool { url.string("proxy-protocol") == "required" }
  /// Whether clients complete a handshake before they reach their route; a PROXY header counts as one.
  var hasHandshake: Bool { isProxied || traits.hasHandshake }

  /// Makes the listener of this URL. The configuration accepts only schemes that are built.
  func listener(_ context: ListenerContext) -> any Listener {
    guard let make = traits.make else {
      preconditionFailure("the configuration lets no listener through that is not built")
    }
    return make(self, context)
  }
}
