// Built-in devices for demos, tests and benchmarks: sim://echo, sim://nmea?rate=1, sim://console, sim://flood, sim://sink.
// This folder is the guide for adding a scheme: a connector, a line in Schemes.swift, its grammar, a rig in the tests.

import ByteStreams

public struct SimConnector: Connector {
  public static let scheme = "sim"
  public static let isLine = false

  private let kind: Kind

  /// The host of the URL.
  private enum Kind: Sendable {
    case echo, console, flood, sink
    case nmea(rate: Double)
  }

  public init(_ url: EndpointURL) throws(URLProblem) {
    switch url.host {
    case "echo": kind = .echo
    case "console": kind = .console
    case "flood": kind = .flood
    case "sink": kind = .sink
    default: kind = .nmea(rate: url.string("rate").flatMap(Double.init) ?? 1)
    }
  }

  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    do {
      done(.success(SimStream(try device(), on: poller)))
    } catch {
      done(.failure(OpenFailure("open sim://echo", error)))  // the one that needs memory
    }
    return DoneAtOnce()
  }

  private func device() throws(SystemError) -> any SimDevice {
    switch kind {
    case .echo: try SimEcho()
    case .console: SimConsole()
    case .flood: SimFlood()
    case .sink: SimSink()
    case .nmea(let rate): SimNMEA(rate: rate)
    }
  }
}
