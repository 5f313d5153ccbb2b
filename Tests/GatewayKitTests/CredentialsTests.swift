// How clients authenticate.

import StreamBroker
import Testing

@testable import GatewayKit

@Suite("A credential", .timeLimit(.minutes(5)))
struct CredentialsTests {
  @Test(
    "is read from an Authorization header",
    arguments: [
      ("Basic YWRhOnNlY3JldA==", Credential.password(user: "ada", Secret("secret"))),
      ("basic  YWRhOjpzOg==", .password(user: "ada", Secret(":s:"))),
      ("BASIC w6Q6w7Y=", .password(user: "ä", Secret("ö"))),
      ("Bearer 0123456789.-_~+x", .token(Secret("0123456789.-_~+x"))),
    ])
  func good(value: String, credential: Credential) { #expect(Credential(authorization: value) == credential) }

  @Test(
    "that is malformed is refused",
    arguments: [
      "", "Basic", "Basic ", "Basic YWRhOnNlY3JldA", "Basic YWRhOnNlY3JldA=", "Basic YWRhOnNlY3JldB==",
      "Basic YWRh OnNlY3JldA==",
      "Basic YWRh", "Basic OnNlY3JldA==", "Basic YWRhOg==", "Basic /w==", "Basic YQBhOmI=", "Basic YWRhOnNlY3JldA==,",
      "Bearer",
      "Bearer ", "Bearer a b", "Bearer a,b", "Bearer a/b=", "Bearer a\r\nX: y", "Digest x",
      "Negotiate YWRhOnNlY3JldA==",
      "Bearer " + String(repeating: "x", count: 1025), "Basic " + String(repeating: "QUFB", count: 2000),
    ])
  func broken(value: String) { #expect(Credential(authorization: value) == nil) }

  @Test("may be a sub-protocol, as a browser's page sends it")
  func subprotocol() {
    #expect(Credential(subprotocol: "bearer.0123456789abcdef") == .token(Secret("0123456789abcdef")))
    for name in ["bearer.", "Bearer.x", "baudway.v1", "bearer.a b", "bearer", ""] {
      #expect(Credential(subprotocol: name) == nil)
    }
  }

  @Test("is refused if several are sent at once")
  func one() {
    let (token, header) = ("bearer.0123456789abcdef", "Bearer fedcba9876543210")
    #expect(Credential(authorization: [], subprotocols: ["baudway.v1", token]) == .token(Secret("0123456789abcdef")))
    #expect(Credential(authorization: [header], subprotocols: ["binary"]) == .token(Secret("fedcba9876543210")))
    #expect(Credential(authorization: [], subprotocols: ["binary"]) == Credential.none)
    #expect(Credential(authorization: [], subprotocols: []) == Credential.none)
    #expect(Credential(authorization: [header, header], subprotocols: []) == nil)
    #expect(Credential(authorization: [header], subprotocols: [token]) == nil)
    #expect(Credential(authorization: [], subprotocols: [token, token]) == nil)
    #expect(Credential(authorization: [], subprotocols: ["bearer."]) == nil)
    #expect(Credential(authorization: ["Digest x"], subprotocols: []) == nil)
  }

  @Test(
    "in base64 has one valid form",
    arguments: [
      ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob"), ("Zm9vYmE=", "fooba"),
      ("Zm9vYmFy", "foobar"),
    ])
  func base64(text: String, plain: String) {
    #expect(Base64.decode(text.utf8) == Array(plain.utf8))
    // Refused: missing or extra padding, padding at the start, a character outside the alphabet.
    for other in [
      String(text.dropLast()), text + "=", "=" + text.dropFirst(), text + "====", text.replacing("Z", with: "\n"),
    ] {
      #expect(Base64.decode(other.utf8) == nil, "\(other)")
    }
  }

  @Test("in base64 has no unused bits that are set", arguments: ["Zh==", "Zm9=", "Zm8=", "Zg=="])
  func leftOver(text: String) { #expect((Base64.decode(text.utf8) != nil) == ["Zm8=", "Zg=="].contains(text)) }

  @Test("never appears in printed text")
  func hidden() {
    for credential in [Credential.password(user: "ada", Secret("hunter2")), .token(Secret("hunter2"))] {
      #expect(!"\(credential)".contains("hunter2") && !String(reflecting: credential).contains("hunter2"))
    }
  }
}
