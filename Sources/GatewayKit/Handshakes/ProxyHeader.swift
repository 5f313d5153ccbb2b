// The PROXY protocol, versions 1 and 2 (HAProxy's proxy-protocol.txt, sections 2.1 and 2.2): parses the header that a
// proxy sends before a client's bytes, piece by piece. Takes no byte after the header, keeps none of its extensions. No
// sockets here.

import ByteStreams

/// A parsed header.
struct ProxyHeader: Hashable, Sendable {
  /// The client's address. Nil if the proxy connects for itself (LOCAL), or gives no IPv4 or IPv6 address (UNKNOWN).
  let source: SocketAddress?
  /// LOCAL of version 2: a health check of the proxy, without a client.
  var isCheck = false
}

/// Why a connection that must begin with a header is refused.
enum ProxyFault: Error, Hashable, Sendable, CustomStringConvertible {
  case noHeader
  case tooLong
  case malformed(String)

  var description: String {
    switch self {
    case .noHeader: "no PROXY header where one is required"
    case .tooLong: "a PROXY header of version 1 that does not end within \(ProxyReader.longestLine) bytes"
    case .malformed(let what): "malformed PROXY header: \(what)"
    }
  }
}

/// Parses a header from pieces of any size. Holds at most `longestLine` bytes.
struct ProxyReader: Sendable {
  private(set) var header: ProxyHeader?
  private var kept: [UInt8] = []
  /// Bytes of extensions still to be skipped.
  private var toSkip = 0

  /// Bytes held.
  var keptCount: Int { kept.count }

  /// Longest header of version 1, with CR and LF, in bytes.
  static let longestLine = 107
  private static let signature: [UInt8] = [0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A]
  private static let fixed = 16  // signature, version and command, family, length
  private static let word = Array("PROXY ".utf8)

  /// Takes the bytes that belong to the header and returns their number: less than `bytes.count` once the header is
  /// complete. Throws as soon as the bytes can't be a header.
  mutating func take(_ bytes: UnsafeRawBufferPointer) throws(ProxyFault) -> Int {
    var taken = 0
    while header == nil, taken < bytes.count {
      if toSkip > 0 {
        let count = min(toSkip, bytes.count - taken)
        toSkip -= count
        taken += count
      } else {
        kept.append(bytes[taken])
        taken += 1
      }
      try look()
    }
    return taken
  }

  private mutating func look() throws(ProxyFault) {
    guard kept.first == Self.signature[0] else { return try lookAtLine() }
    guard kept.prefix(Self.signature.count).elementsEqual(Self.signature.prefix(kept.count)) else { throw .noHeader }
    guard kept.count >= Self.fixed else { return }
    try lookAtBlock()
  }

  // MARK: - Version 1

  private mutating func lookAtLine() throws(ProxyFault) {
    guard kept.prefix(Self.word.count).elementsEqual(Self.word.prefix(kept.count)) else { throw .noHeader }
    guard kept.last == 0x0A else {
      if kept.count >= Self.longestLine { throw .tooLong }
      return
    }
    guard kept.dropLast().last == 0x0D else { throw .malformed("a line that does not end in CR LF") }
    header = try Self.line(String(decoding: kept.dropFirst(Self.word.count).dropLast(2), as: UTF8.self))
  }

  private static func line(_ text: String) throws(ProxyFault) -> ProxyHeader {
    let words = text.split(separator: " ", omittingEmptySubsequences: false).map(String.init)
    if words[0] == "UNKNOWN" { return ProxyHeader(source: nil) }  // what follows means nothing
    let family: SocketAddress.Family
    switch words[0] {
    case "TCP4": family = .ipv4
    case "TCP6": family = .ipv6
    default: throw .malformed("neither TCP4, TCP6 nor UNKNOWN")
    }
    guard words.count == 5 else { throw .malformed("not two addresses and two ports") }
    guard let from = port(words[3]), port(words[4]) != nil else { throw .malformed("an invalid port") }
    guard let source = address(words[1], from, family), address(words[2], 0, family) != nil else {
      throw .malformed("an address that is not valid for \(words[0])")
    }
    return ProxyHeader(source: source.unmapped)
  }

  private static func address(_ text: String, _ port: UInt16, _ family: SocketAddress.Family) -> SocketAddress? {
    guard !text.contains("%"), let address = SocketAddress(numeric: text, port: port) else { return nil }
    return address.family == family ? address : nil
  }

  private static func port(_ text: String) -> UInt16? {
    guard text.utf8.allSatisfy({ (0x30...0x39).contains($0) }), text == "0" || text.first != "0" else { return nil }
    return UInt16(text)
  }

  // MARK: - Version 2

  private mutating func lookAtBlock() throws(ProxyFault) {
    let command = kept[12]
    guard command == 0x20 || command == 0x21 else { throw .malformed("version or command \(command)") }
    let (family, transport) = (kept[13] >> 4, kept[13] & 15)
    guard family <= 3, transport <= 2 else { throw .malformed("address family \(kept[13])") }
    let length = Int(kept[14]) << 8 | Int(kept[15])
    // TCP over IPv4 or IPv6; other families have no address that `allow` and `deny` could match.
    let size =
      switch (command, kept[13]) {
      case (0x21, 0x11): 12
      case (0x21, 0x21): 36
      default: 0
      }
    guard length >= size else { throw .malformed("\(length) bytes are too few for its addresses") }
    if kept.count < Self.fixed + size { return }
    if kept.count == Self.fixed + size, toSkip == 0, !isSkipping {
      toSkip = length - size
      isSkipping = true
    }
    if toSkip == 0 { header = ProxyHeader(source: size == 0 ? nil : source(size), isCheck: command == 0x20) }
  }

  private var isSkipping = false

  private func source(_ size: Int) -> SocketAddress {
    let block = kept[Self.fixed...].map { $0 }
    if size == 12 { return SocketAddress(ipv4: block[0..<4], port: port(block, at: 8)) }
    return SocketAddress(ipv6: block[0..<16], port: port(block, at: 32)).unmapped
  }

  private func port(_ block: [UInt8], at offset: Int) -> UInt16 {
    UInt16(block[offset]) << 8 | UInt16(block[offset + 1])
  }
}
