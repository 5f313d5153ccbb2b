// rfc2217://host:port?baud=…, rfc2217s://… and telnet://host:port: a connection as for tcp or tls, and telnet over it.
// With RFC 2217 the stream has a serial line, whose settings in the URL are in force when it opens.

import ByteStreams
import StreamBrokerCore

/// Connects to serial ports behind RFC 2217 servers, such as ser2net, pyserial's, or another Baudway:
/// `rfc2217://host:4001?baud=115200`. The stream's `serialLine` is the line of that port.
public struct RFC2217Connector: Connector {
  public static let grammar = EndpointSchemes.rfc2217
  public static let isLine = true
  private let tcp: TCPConnector
  private let target: TelnetTarget

  public init(_ url: EndpointURL) throws(URLProblem) {
    tcp = TCPConnector(host: url.host, port: UInt16(clamping: url.port ?? 0))
    target = TelnetTarget(url, line: RemoteLine.Wish(url))
  }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = TelnetOpening(target, request, on: poller, done)
    opening.wait(for: tcp.open(request, on: poller) { opening.isConnected($0) })
    return opening
  }
}

/// The same over TLS: `rfc2217s://host:4001?baud=115200`. Verifies the server, unless the URL has `verify=none`.
public struct SecureRFC2217Connector: Connector {
  public static let grammar = EndpointSchemes.rfc2217s
  public static let isLine = true
  private let dialer: TLSDialer
  private let target: TelnetTarget

  public init(_ url: EndpointURL) throws(URLProblem) {
    dialer = TLSDialer(url)
    target = TelnetTarget(url, line: RemoteLine.Wish(url))
  }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = TelnetOpening(target, request, on: poller, done)
    opening.wait(
      for: dialer.open(request, on: poller) { result in opening.isConnected(result.map { $0 as any ByteStream }) })
    return opening
  }
}

/// Connects to telnet servers, without requests to a serial line: `telnet://host:4001`.
public struct TelnetConnector: Connector {
  public static let grammar = EndpointSchemes.telnet
  public static let isLine = false
  private let tcp: TCPConnector
  private let target: TelnetTarget

  public init(_ url: EndpointURL) throws(URLProblem) {
    tcp = TCPConnector(host: url.host, port: UInt16(clamping: url.port ?? 0))
    target = TelnetTarget(url, line: nil)
  }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = TelnetOpening(target, request, on: poller, done)
    opening.wait(for: tcp.open(request, on: poller) { opening.isConnected($0) })
    return opening
  }
}

/// What an opening asks the server for.
struct TelnetTarget: Sendable {
  /// "host:port"
  let authority: String
  /// Nil for plain telnet.
  let line: RemoteLine.Wish?

  init(_ url: EndpointURL, line: RemoteLine.Wish?) {
    let host = url.host.contains(":") ? "[\(url.host)]" : url.host
    authority = "\(host):\(url.port ?? 0)"
    self.line = line
  }
}
