// When OpenSSL gets no memory, one connection fails and nothing else does. Each test runs in its own process, because
// OpenSSL's allocator can be replaced only before its first use.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("Without memory", .timeLimit(.minutes(3)))
struct MemoryTests {
  @Test("a handshake of a server fails at whichever allocation it is, and the next one succeeds")
  func server() async {
    await #expect(processExitsWith: .success) {
      let pair = try Handshakes()
      var word: [TLSFailure] = []
      for count in Handshakes.counts {
        let (isOver, failure) = try pair.run(short: count, isServer: true)
        if isOver { break }
        if let failure, !word.contains(failure) { word.append(failure) }
        try #require(count < Handshakes.most, "an allocation always fails")
      }
      #expect(word.first == .noMemory)  // the failure of SSL_new
      #expect(try pair.run(short: .max, isServer: true).isOver)
    }
  }

  @Test("a handshake of a client fails at whichever allocation it is, and the next one succeeds")
  func client() async {
    await #expect(processExitsWith: .success) {
      let pair = try Handshakes()
      for count in Handshakes.counts {
        let (isOver, failure) = try pair.run(short: count, isServer: false)
        if isOver { break }
        #expect(count > 0 || failure == .noMemory)
        try #require(count < Handshakes.most, "an allocation always fails")
      }
      #expect(try pair.run(short: .max, isServer: false).isOver)
    }
  }

  @Test(
    "a client's certificate checked against a list gets no verdict, or the right one", arguments: [true, false])
  func verdict(isRevoked: Bool) async {
    await #expect(processExitsWith: .success) { [isRevoked] in
      let pair = try Handshakes()
      let chain = try pair.chain()
      if isRevoked { try pair.revoke() }
      let context = try TLSServerContext(pair.settings)
      func isRight(_ verdict: TLSClientChain.Verdict) -> Bool {
        if case .refused(let fault) = verdict {
          isRevoked && fault.text == "is revoked"
        } else {
          !isRevoked && verdict == .good
        }
      }
      try #require(isRight(context.verdict(on: chain)))  // OpenSSL allocates some things at first use
      var unknown = 0
      for count in 0... {
        var verdict = TLSClientChain.Verdict.unknown
        let isShort = OpenSSLMemory.run(short: count) { verdict = context.verdict(on: chain) }
        if verdict == .unknown {
          unknown += 1
        } else {
          #expect(isRight(verdict), "\(verdict) with \(count) allocations")
        }
        if !isShort { break }
        try #require(count < 20_000, "an allocation always fails")
      }
      #expect(unknown > 0 && isRight(context.verdict(on: chain)))
    }
  }

  @Test("a context is refused with a reason at whichever allocation it is")
  func context() async {
    await #expect(processExitsWith: .success) {
      let pair = try Handshakes()
      var count = 0
      while true {
        var isMade = false
        let isShort = OpenSSLMemory.run(short: count) { isMade = (try? TLSServerContext(pair.settings)) != nil }
        if isMade && !isShort { break }
        count += 13  // steps, because each try takes some milliseconds
        try #require(count < 200_000, "an allocation always fails")
      }
    }
  }
}

/// Both ends of one connection in this thread; one of them runs out of memory.
private struct Handshakes {
  let settings: TLSServerSettings
  /// Each of the first 200 allocations, which make the connection, and some of the thousands after them.
  static let counts = Array(0..<200) + Array(stride(from: 200, through: most, by: 23))
  static let most = 200 + 23 * 2000

  private let rig: TLSRig
  private let server: TLSServerContext
  private let client: TLSClientContext
  private let serial: Int

  init() throws {
    try #require(OpenSSLMemory.takeOver())
    rig = try TLSRig()
    try rig.folder.write("list.pem", rig.authority.revocationList(of: [7]))
    var settings = rig.server
    settings.clientAuth = .required
    settings.clientCA = rig.folder / "ca.pem"
    settings.crl = rig.folder / "list.pem"
    self.settings = settings
    server = try TLSServerContext(settings)
    var wishes = TLSClientSettings()
    wishes.ca = rig.folder / "ca.pem"
    let ada = try rig.authority.issue(.init("ada"))
    serial = ada.serial
    try rig.folder.write("ada.pem", ada.certificate)
    try rig.folder.write("ada.key", ada.key)
    wishes.identity = TLSIdentity(certificate: rig.folder / "ada.pem", key: rig.folder / "ada.key")
    client = try TLSClientContext(wishes)
    // OpenSSL makes some objects once, at first use, and does not retry after a failure; so both sides run once with
    // enough memory.
    try #require(try run(short: .max, isServer: true).isOver)
    try #require(try run(short: .max, isServer: false).isOver)
  }

  /// The client certificate that a server keeps.
  func chain() throws -> TLSClientChain {
    let (near, far) = try FarEnd.pair()
    let one = try near.take()
    let other = try far.take()
    let serving = try TLSHandshake(server, over: one.raw)
    let asking = try TLSHandshake(client, to: "gw.test", over: other.raw)
    for _ in 0..<12 {
      _ = try asking.advance()
      if try serving.advance() == .finished { break }
    }
    return try #require(serving.takeSession().facts.shown?.chain)
  }

  /// Adds the client's certificate to the revocation list.
  func revoke() throws { try rig.folder.write("list.pem", rig.authority.revocationList(of: [7, serial])) }

  /// Runs a handshake in which one side has memory for `count` allocations. Returns whether that side finished with no
  /// failed allocation, and its failure if it has one.
  func run(short count: Int, isServer: Bool) throws -> (isOver: Bool, failure: TLSFailure?) {
    let (near, far) = try FarEnd.pair()
    let one = try near.take()
    let other = try far.take()
    let (oneRaw, otherRaw) = (one.raw, other.raw)
    var failure: TLSFailure?
    var isDone = false
    var left = count
    // The side under test advances in steps; between them the other side has enough memory.
    var handshakes: (short: TLSHandshake?, other: TLSHandshake)
    handshakes.other =
      isServer ? try TLSHandshake(client, to: "gw.test", over: otherRaw) : try TLSHandshake(server, over: otherRaw)
    handshakes.short = nil
    var isShort = false
    for _ in 0..<12 where failure == nil && !isDone {
      let before = OpenSSLMemory.count
      isShort =
        OpenSSLMemory.run(short: left) {
          do throws(TLSFailure) {
            if handshakes.short == nil {
              handshakes.short =
                isServer
                ? try TLSHandshake(server, over: oneRaw) : try TLSHandshake(client, to: "gw.test", over: oneRaw)
            }
            guard let handshake = handshakes.short else { return }
            isDone = try handshake.advance() == .finished
            if isDone { _ = handshake.takeSession().facts.peer?.subject }
          } catch {
            failure = error
          }
        } || isShort
      if left != .max { left -= min(left, OpenSSLMemory.count - before) }
      _ = try? handshakes.other.advance()
    }
    _ = (one.raw, other.raw)  // keeps both descriptors open up to here
    return (isDone && !isShort, failure)
  }
}
