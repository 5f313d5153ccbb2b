// Built-in devices for demos, tests and benchmarks: sim://echo, sim://nmea?rate=1, sim://console, sim://flood,
// sim://sink. This folder is the guide for adding a scheme: a connector, a line in CoreSchemes.swift, a table in
// EndpointSchemes.swift, a rig in the tests.

import ByteStreams

/// Simulated devices without hardware: `sim://echo`, `sim://nmea?rate=1`, `sim://console`, `sim://flood`, `sim://sink`.
public struct SimConnector: Connector {
  public static let grammar = EndpointSchemes.sim
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
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    request.report?(.open("sim"))
    do {
      done(.success(SimStream(try device(), on: poller)))
    } catch {
      done(.failure(OpenFailure("open sim://echo", error)))  // only echo allocates a ring, which can fail
    }
    return CompletedOpening()
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
