// Which protocol a client spoke instead of TLS, from its first bytes.

import Testing

@testable import StreamTLS

@Suite("Input of a TLS port")
struct NonTLSBytesTests {
  @Test(
    "is recognised by its first bytes",
    arguments: [
      ("GET / HTTP/1.1\r\n", nil), ("PRI * HTTP/2.0\r\n", nil), ("SSH-2.0-OpenSSH", "SSH"),
      ("PROXY TCP4 10.0.0.1", "a PROXY protocol header"), ("AT+GMR\r\n", "plain text"),
      ("\u{1}\u{2}", "unknown bytes"),
    ])
  func reported(text: String, what: String?) {
    switch NonTLSBytes(Array(text.utf8)) {
    case .http: #expect(what == nil)
    case .other(let other): #expect(other == what)
    case nil: Issue.record("taken for TLS")
    }
  }

  @Test("may be TLS when it begins as a handshake, an alert or SSL 2's hello does")
  func tls() {
    for first: [UInt8] in [[0x16, 3, 1], [0x15, 3, 3], [0x80, 46, 1], []] { #expect(NonTLSBytes(first) == nil) }
    if case .other("telnet") = NonTLSBytes([0xFF, 0xFD, 1]) {} else { Issue.record("telnet is not known") }
  }
}
