// Address blocks, as in allow and deny lists.

import ByteStreams
import Testing

@Suite("A network")
struct AddressBlockTests {
  private func address(_ host: String) throws -> SocketAddress { try #require(SocketAddress(numeric: host, port: 1)) }

  @Test(
    "holds the addresses that share its prefix",
    arguments: [
      ("10.0.0.0/8", "10.255.0.1", true), ("10.0.0.0/8", "11.0.0.1", false), ("10.1.2.3", "10.1.2.3", true),
      ("10.1.2.3", "10.1.2.4", false), ("0.0.0.0/0", "192.0.2.1", true), ("0.0.0.0/0", "::1", false),
      ("192.168.3.128/25", "192.168.3.127", false), ("192.168.3.128/25", "192.168.3.200", true),
      ("fe80::/10", "febf::1", true), ("fe80::/10", "fec0::1", false), ("::/0", "2001:db8::1", true),
      ("2001:db8::/65", "2001:db8::8000:0:0:1", false), ("2001:db8::/65", "2001:db8::7fff:0:0:1", true),
      ("::1", "::1", true), ("10.0.0.0/8", "::ffff:10.0.0.1", true),
      ("::ffff:10.0.0.0/104", "10.1.2.3", true), ("::ffff:10.0.0.0/104", "11.0.0.1", false),
      ("::ffff:10.0.0.1", "10.0.0.1", true),
    ])
  func holds(network: String, host: String, isIn: Bool) throws {
    #expect(try #require(AddressBlock(network)).contains(address(host)) == isIn)
  }

  @Test(
    "is read strictly",
    arguments: [
      "", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/08", "::/129", "10.0.0", "host/8", "fe80::1%1/64", "1.2.3.4/-1",
    ])
  func strict(text: String) { #expect(AddressBlock(text) == nil) }

  @Test("is shown as it was written", arguments: ["10.0.0.0/8", "::1", "2001:db8::/32", "10.1.2.3"])
  func shown(text: String) { #expect(AddressBlock(text)?.description == text) }
}
