// The serial line of a handle: settings, DTR, RTS, break, modem lines, error counters.

import ByteStreams

extension StreamHandle {
  /// The serial line behind the stream. Its calls fail with ENOTTY if the endpoint has none, and with ENOTCONN while
  /// the link is lost.
  public var line: Line { Line(stream: self) }

  /// All calls are carried out in order with each other. A change of settings waits until the bytes before it are sent,
  /// for a second at most. A call that is cancelled or has no time left may still be carried out.
  public struct Line: Sendable {
    fileprivate let stream: StreamHandle

    /// The settings in force.
    public var settings: LineSettings {
      get async throws { try await stream.ask(within: nil) { line, _, done in done(.success(line.settings)) } }
    }

    /// Applies the settings, and again each time the link is opened later. Returns those in force then: a driver may
    /// round or refuse some.
    @discardableResult
    public func apply(_ settings: LineSettings, within timeout: Duration? = nil) async throws -> LineSettings {
      try await stream.ask(within: timeout) { line, core, done in
        line.whenSent(on: core.poller) {
          line.apply(settings) { result in
            if case .success(let inForce) = result { core.keep(inForce) }
            done(result)
          }
        }
      }
    }

    /// Raises or drops DTR or RTS.
    public func set(_ output: ModemOutput, _ isOn: Bool, within timeout: Duration? = nil) async throws {
      try await stream.ask(within: timeout) { line, _, done in line.set(output, isOn, done) }
    }

    /// Sends a break of this length.
    public func sendBreak(_ length: Duration = .milliseconds(250), within timeout: Duration? = nil) async throws {
      try await stream.ask(within: timeout) { line, core, done in
        line.setBreak(true) { result in
          guard case .success = result else { return done(result) }
          core.poller.timers.after(length) { line.setBreak(false, done) }
        }
      }
    }

    /// Discards bytes that the driver holds.
    public func purge(_ what: Purge, within timeout: Duration? = nil) async throws {
      try await stream.ask(within: timeout) { line, _, done in line.purge(what, done) }
    }

    /// The modem's lines and the driver's error counters now.
    public var condition: LineCondition {
      get async throws {
        try await stream.ask(within: nil) { line, _, done in
          var isFirst = true
          line.watch { result in
            guard isFirst else { return }
            isFirst = false
            line.endWatch()
            done(result)
          }
        }
      }
    }
  }
}
