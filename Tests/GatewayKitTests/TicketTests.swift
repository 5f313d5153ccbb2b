import Testing

@testable import GatewayKit

@Suite("A ticket for a terminal")
struct TicketTests {
  private let ada = Identity(name: "ada", proof: .nothing)
  private let second: UInt64 = 1_000_000_000

  @Test("is good for one connection to its route")
  func once() {
    var tickets = Tickets()
    tickets.add("one", for: "gps", ada, at: 0)
    #expect(tickets.redeem("two", for: "gps", at: 1) == nil)
    #expect(tickets.redeem("one", for: "gps", at: 1) == ada && tickets.redeem("one", for: "gps", at: 1) == nil)
    tickets.add("one", for: "gps", ada, at: 0)
    #expect(tickets.redeem("one", for: "lab", at: 1) == nil && tickets.redeem("one", for: "gps", at: 1) == nil)
  }

  @Test("of a log-in by certificate is for connections that show the certificate")
  func certificate() {
    let own = ClientCertificate(subject: "CN=ada", names: ["ada"])
    let other = ClientCertificate(subject: "CN=eve", names: ["eve"])
    let ada = Identity(name: "ada", proof: .certificate(own))
    var tickets = Tickets()
    for (shown, isGood) in [(own, true), (other, false), (nil, false)] as [(ClientCertificate?, Bool)] {
      tickets.add("one", for: "gps", ada, at: 0)
      #expect((tickets.redeem("one", for: "gps", showing: shown, at: 1) == ada) == isGood)
    }
    // Any certificate may come beside a password or token.
    tickets.add("one", for: "gps", self.ada, at: 0)
    #expect(tickets.redeem("one", for: "gps", showing: other, at: 1) == self.ada)
  }

  @Test("expires, and takes no memory then")
  func expires() {
    var tickets = Tickets()
    tickets.add("one", for: "gps", ada, at: 0)
    #expect(tickets.redeem("one", for: "gps", at: 10 * second) == nil && tickets.count == 0)
    tickets.add("one", for: "gps", ada, at: 0)
    #expect(tickets.redeem("one", for: "gps", at: 10 * second - 1) == ada)
  }

  @Test("is one of a limited number, and the oldest gives way")
  func bounded() {
    var tickets = Tickets()
    for number in 0...Tickets.most { tickets.add("\(number)", for: "gps", ada, at: UInt64(number)) }
    #expect(tickets.count == Tickets.most)
    #expect(tickets.redeem("0", for: "gps", at: 0) == nil && tickets.redeem("1", for: "gps", at: 0) == ada)
  }

  @Test("has a name of 256 bits that a sub-protocol may have")
  func names() {
    let names = Set((0..<100).map { _ in Tickets.newName() })
    #expect(names.count == 100 && names.allSatisfy { $0.utf8.count == 64 && BearerToken.isToken($0) })
    #expect(Tickets.name(in: "ticket.ab") == "ab" && Tickets.name(in: "bearer.ab") == nil)
  }
}
