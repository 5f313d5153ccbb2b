// From a URL to Foundation's pair of streams: the public face of this library, with what is known about a stream.

import Foundation
import StreamBroker

extension Stream {
  /// Opens `url`, and calls `completion` on the run loop that `pair` was called on (in its common modes) with two
  /// streams that are connected but not open yet: set their delegates, schedule them, and call `open()`.
  /// ```swift
  /// import Foundation
  /// import StreamBrokerFoundation
  ///
  /// func listen(_ delegate: any StreamDelegate) {
  ///   Stream.pair(for: "tty:///dev/ttyUSB0?baud=9600", timeout: .seconds(5)) { result in
  ///     guard case .success(let (input, _)) = result else { return }
  ///     input.delegate = delegate
  ///     input.schedule(in: .current, forMode: .default)
  ///     input.open()
  ///   }
  ///   RunLoop.current.run(until: Date(timeIntervalSinceNow: 10))
  /// }
  /// ```
  /// `timeout` limits the whole opening. `broker` decides which schemes there are; without one, all of this package,
  /// with Bluetooth. A failure is an `NSError`: of NSPOSIXErrorDomain with the errno if a system call failed, else of
  /// "StreamBroker"; with the URL (`Stream.notificationURLKey`), what to do
  /// (`NSLocalizedRecoverySuggestionErrorKey`) and the library's error (`NSUnderlyingErrorKey`). Notifications about
  /// the streams are posted on `place`.
  ///
  /// Either stream may be used by one thread at a time. The endpoint is closed when both streams are closed or
  /// released. Without a run loop that runs, such as in a task, use the `async` function.
  public static func pair(
    for url: String, timeout: Duration = .seconds(10), broker: Broker? = nil,
    notifying place: NotificationPlace = .background,
    completion: @escaping (Result<(InputStream, OutputStream), any Error>) -> Void
  ) {
    // Unchecked: only this thread's run loop calls it.
    nonisolated(unsafe) let completion = completion
    let back = RunLoopQueue(.current, mode: .common)
    Task(executorPreference: StreamExecutor.shared) {
      let result: Result<EndpointLink, any Error>
      do {
        result = .success(try await EndpointLink.open(url, timeout, broker, place))
      } catch {
        result = .failure(error)
      }
      back.post { completion(result.map { $0.streams() }) }
    }
  }

  /// The same for a `URL`. (Foundation makes none of "rfcomm://00:0A:3A:22:68:73"; a string always works.)
  public static func pair(
    for url: URL, timeout: Duration = .seconds(10), broker: Broker? = nil,
    notifying place: NotificationPlace = .background,
    completion: @escaping (Result<(InputStream, OutputStream), any Error>) -> Void
  ) {
    pair(for: url.absoluteString, timeout: timeout, broker: broker, notifying: place, completion: completion)
  }

  /// Opens `url` and returns two streams that are connected but not open yet, as the function with a completion does;
  /// throws what that one gives as its failure. Cancelling the task ends the opening by `CancellationError`.
  public static func pair(
    for url: String, timeout: Duration = .seconds(10), broker: Broker? = nil,
    notifying place: NotificationPlace = .background
  ) async throws -> sending (InputStream, OutputStream) {
    try await EndpointLink.open(url, timeout, broker, place).streams()
  }

  /// The same for a `URL`.
  public static func pair(
    for url: URL, timeout: Duration = .seconds(10), broker: Broker? = nil,
    notifying place: NotificationPlace = .background
  ) async throws -> sending (InputStream, OutputStream) {
    try await pair(for: url.absoluteString, timeout: timeout, broker: broker, notifying: place)
  }

  /// What is known about the device behind a stream that `pair` made; nil for other streams.
  public var meta: StreamMeta? { (self as? any EndpointStream).map { StreamMeta($0.link.handle.metadata) } }
}

/// What is known about a device. Facts are nil until the device has reported them, or if it reports none.
public struct StreamMeta: Hashable, Sendable {
  /// The device's name for itself.
  public let name: String?
  /// Its manufacturer.
  public let manufacturer: String?
  /// Its model.
  public let model: String?
  /// Its serial number.
  public let serialNumber: String?
  /// The version of its firmware.
  public let version: String?
  /// Signal strength of a radio link in dBm.
  public let signal: Int?
  /// The canonical URL, without secrets.
  public let url: String

  init(_ known: StreamHandle.Metadata) {
    name = known.facts.name
    manufacturer = known.facts.manufacturer
    model = known.facts.model
    serialNumber = known.facts.serialNumber
    version = known.facts.firmware
    signal = known.facts.signalStrength
    url = known.url
  }
}

extension NSError {
  /// An error of the library, as users of Foundation expect it.
  static func of(_ error: any Error, url: String) -> NSError {
    let failure = error as? OpenFailure
    let cause = failure?.cause ?? error as? SystemError
    var facts: [String: Any] = [
      NSLocalizedDescriptionKey: "\(error)", Stream.notificationURLKey: url, NSUnderlyingErrorKey: error,
    ]
    facts[NSLocalizedRecoverySuggestionErrorKey] =
      failure?.advice ?? (error as? URLProblem)?.suggestion.map { "Did you mean '\($0)'?" }
    return NSError(
      domain: cause == nil ? "StreamBroker" : NSPOSIXErrorDomain, code: Int(cause?.errno ?? 0), userInfo: facts)
  }
}
