// The two streams that `Stream.pair` makes: subclasses of Foundation's that pass every call on to their side of the
// link. (Foundation's own streams call no delegate on Linux, and cannot be made for a descriptor.)

import Foundation
import StreamBroker

/// A stream that `Stream.pair` made.
protocol EndpointStream: Stream {
  var link: EndpointLink { get }
}

final class EndpointInputStream: InputStream, EndpointStream {
  let link: EndpointLink
  private var side: InputSide { link.input }

  init(_ link: EndpointLink) {
    self.link = link
    super.init(data: Data())
    side.stream = self
  }

  deinit { link.closeInput() }

  override func open() { side.open() }
  override func close() { link.closeInput() }
  override func read(_ buffer: UnsafeMutablePointer<UInt8>, maxLength len: Int) -> Int {
    side.read(into: buffer, most: len)
  }
  override func getBuffer(
    _ buffer: UnsafeMutablePointer<UnsafeMutablePointer<UInt8>?>, length len: UnsafeMutablePointer<Int>
  ) -> Bool { false }
  override var hasBytesAvailable: Bool { side.isReadyNow }

  override weak var delegate: (any StreamDelegate)? {
    get { side.delegate }
    set { side.delegate = newValue }
  }
  override var streamStatus: Status { side.status }
  override var streamError: (any Error)? { side.error }
  override func schedule(in aRunLoop: RunLoop, forMode mode: RunLoop.Mode) { side.add(aRunLoop, mode) }
  override func remove(from aRunLoop: RunLoop, forMode mode: RunLoop.Mode) { side.remove(aRunLoop, mode) }
  override func property(forKey key: PropertyKey) -> AnyObject? {
    key == .fileCurrentOffsetKey ? NSNumber(value: side.moved) : nil
  }
  override func setProperty(_ property: AnyObject?, forKey key: PropertyKey) -> Bool { false }
}

final class EndpointOutputStream: OutputStream, EndpointStream {
  let link: EndpointLink
  private var side: OutputSide { link.output }

  init(_ link: EndpointLink) {
    self.link = link
    super.init(toMemory: ())
    side.stream = self
  }

  required init(toMemory: ()) { fatalError("streams of endpoints are made by Stream.pair") }

  deinit { link.closeOutput() }

  override func open() { side.open() }
  override func close() { link.closeOutput() }
  override func write(_ buffer: UnsafePointer<UInt8>, maxLength len: Int) -> Int {
    side.write(UnsafeBufferPointer(start: buffer, count: max(0, len)))
  }
  override var hasSpaceAvailable: Bool { side.isReadyNow }

  override weak var delegate: (any StreamDelegate)? {
    get { side.delegate }
    set { side.delegate = newValue }
  }
  override var streamStatus: Status { side.status }
  override var streamError: (any Error)? { side.error }
  override func schedule(in aRunLoop: RunLoop, forMode mode: RunLoop.Mode) { side.add(aRunLoop, mode) }
  override func remove(from aRunLoop: RunLoop, forMode mode: RunLoop.Mode) { side.remove(aRunLoop, mode) }
  override func property(forKey key: PropertyKey) -> AnyObject? {
    key == .fileCurrentOffsetKey ? NSNumber(value: side.moved) : nil
  }
  override func setProperty(_ property: AnyObject?, forKey key: PropertyKey) -> Bool { false }
}
