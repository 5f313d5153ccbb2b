// The scheme foo: TCP, with each byte combined with a key by exclusive or. Copy it for a scheme of your own.
import ByteStreams
import StreamBrokerCore

public struct Foo: Connector {
  public static let grammar = SchemeGrammar(
    "foo", example: "foo://host:4001?key=42", authority: .network(ports: 1...65535),
    parameters: [.init("key", .integer(1...255), standard: "42", "what each byte is combined with")])

  private let tcp: TCPConnector
  private let key: UInt8

  public init(_ url: EndpointURL) throws(URLProblem) {
    tcp = try TCPConnector(url)
    key = UInt8(clamping: url.integer("key") ?? 42)
  }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    tcp.open(request, on: poller) { [key] in done($0.map { FooStream(over: $0, key: key) }) }
  }
}

private final class FooStream: LayeredStream {
  let below: any ByteStream
  var delegate: (any ByteStreamDelegate)? { didSet { if isClosed && delegate != nil { delegate = nil } } }
  private let key: UInt8
  private var isClosed = false

  init(over below: any ByteStream, key: UInt8) {
    (self.below, self.key) = (below, key)
    below.delegate = self
  }
  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    let transfer = try below.read(into: run)
    if case .moved(let count) = transfer { for i in 0..<count { run[i] ^= key } }
    return transfer
  }
  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    try run.prefix(16_384).map { $0 ^ key }.withUnsafeBytes { try below.write($0) }
  }
  func close() { end { below.close() } }
  func abort() { end { below.abort() } }
  private func end(_ closeBelow: () -> Void) {
    isClosed = true
    closeBelow()
    dismissDelegate()
  }
}
