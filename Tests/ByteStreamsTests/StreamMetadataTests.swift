import ByteStreams
import Testing

@Suite("What is known of a device")
struct StreamMetadataTests {
  @Test(
    "is text without what fills it up, and not without end",
    arguments: [
      ("ACME", "ACME"), ("  ACME X  ", "ACME X"), ("ACME\0\0rest", "ACME"), ("", nil), ("   ", nil), ("\0", nil),
      (String(repeating: "ä", count: 1000), String(repeating: "ä", count: 128)),
    ] as [(String, String?)])
  func text(said: String, kept: String?) { #expect(DeviceFacts.text(said.utf8) == kept) }

  @Test("is told once it has changed")
  func changed() {
    let metadata = StreamMetadata()
    var told: [Int?] = []
    metadata.changed = { [unowned metadata] in told.append(metadata.facts.mtu) }
    metadata.update { _ in }
    metadata.update { $0.mtu = 23 }
    metadata.update { $0.mtu = 23 }
    #expect(told == [23] && !metadata.facts.isEmpty && DeviceFacts().isEmpty)
  }
}
