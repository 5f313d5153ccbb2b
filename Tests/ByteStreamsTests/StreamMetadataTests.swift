import ByteStreams
import Testing

@Suite("A device's metadata")
struct StreamMetadataTests {
  @Test(
    "is text without padding, and of limited length",
    arguments: [
      ("ACME", "ACME"), ("  ACME X  ", "ACME X"), ("ACME\0\0rest", "ACME"), ("", nil), ("   ", nil), ("\0", nil),
      (String(repeating: "ä", count: 1000), String(repeating: "ä", count: 128)),
    ] as [(String, String?)])
  func text(said: String, kept: String?) { #expect(DeviceFacts.text(said.utf8) == kept) }

  @Test("is reported when it has changed")
  func changed() {
    let metadata = StreamMetadata()
    var reported: [Int?] = []
    metadata.changed = { [unowned metadata] in reported.append(metadata.facts.mtu) }
    metadata.update { _ in }
    metadata.update { $0.mtu = 23 }
    metadata.update { $0.mtu = 23 }
    #expect(reported == [23] && !metadata.facts.isEmpty && DeviceFacts().isEmpty)
  }
}
