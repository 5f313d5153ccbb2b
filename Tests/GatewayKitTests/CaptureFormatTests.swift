import StreamBroker
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A recording's format")
struct CaptureFormatTests {
  private static func encoded(
    _ format: Config.Capture.Format, _ events: [(CaptureRecord.Kind, ControlLines, UInt64, [UInt8])],
    finishes: Bool = true
  ) -> [UInt8] {
    var encoder = format.encoder()
    var output: [UInt8] = []
    encoder.begin(CaptureSubject(route: "gps", endpoint: "sim://nmea"), at: CaptureRig.start, to: &output)
    for (kind, lines, later, bytes) in events {
      bytes.withUnsafeBytes {
        encoder.add(
          CaptureRecord(kind: kind, lines: lines, time: CaptureRig.start + later, bytes: $0), to: &output)
      }
    }
    if finishes { encoder.finishLine(to: &output) }
    return output
  }

  @Test("pcapng has the bytes of the specification, for each direction")
  func golden() {
    let empty = Self.encoded(.pcapng, [])
    let file = Self.encoded(.pcapng, [(.toDevice, [.dtr, .rts], 1_000_001_999, [0x41, 0x42, 0x43, 0x44, 0x45])])
    let expected: [UInt8] =
      [6, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0]  // type, length, interface
      + [0x23, 0x03, 0xEC, 0x18, 0xCF, 0x89, 0x85, 0xE5]  // 1795813804123457999 ns, upper half first
      + [17, 0, 0, 0, 17, 0, 0, 0]
      + [0, 0, 0, 1, 0, 0, 0, 1, 0x01, 0x18, 0, 0]  // 1 s 1 µs, to the device, DTR and RTS
      + [0x41, 0x42, 0x43, 0x44, 0x45, 0, 0, 0]
      + [2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0]  // flags: outbound; end
      + [64, 0, 0, 0]
    #expect(Array(file.dropFirst(empty.count)) == expected)
    #expect(Array(empty.prefix(4)) == [0x0A, 0x0D, 0x0D, 0x0A])
    #expect(Array(empty[8..<24]) == [0x4D, 0x3C, 0x2B, 0x1A, 1, 0, 0, 0] + [UInt8](repeating: 255, count: 8))
  }

  @Test("pcapng has link type 250, the route's name, nanoseconds, and each event with its words")
  func events() throws {
    let loss = Array("missing here: 17 bytes".utf8)
    let file = try PcapngReader(
      Self.encoded(
        .pcapng,
        [
          (.change, [.dtr], 0, Array("line 115200 8N1".utf8)), (.fromDevice, [.dtr, .cts], 5_000, [0, 255]),
          (.lost, [], 6_000, loss), (.serialBreak, [], 7_000, Array("break begins".utf8)), (.complete, [], 8_000, []),
        ]))
    #expect(file.linkType == 250)
    #expect(file.interface[2] == Array("gps".utf8) && file.interface[3] == Array("sim://nmea".utf8))
    #expect(file.interface[9] == [9])
    #expect(file.section[4] == Array("Baudway \(Version.text)".utf8))
    #expect(file.packets.map(\.event) == [0, 2, 5, 9, 6])
    #expect(file.packets.map(\.lines) == [0x10, 0x11, 0, 0, 0])
    #expect(file.packets.map(\.footer).allSatisfy { $0 == 0 })
    #expect(file.packets[1].data == [0, 255] && file.packets[1].flags == 1 && file.packets[1].comment == nil)
    #expect(file.packets[1].time == CaptureRig.start + 5_000 && file.packets[1].microseconds == 5)
    #expect(file.packets[0].comment == "line 115200 8N1" && file.packets[0].data == [])
    #expect(file.packets[2].comment == "missing here: 17 bytes")
    #expect(file.packets[3].comment == "break begins")
  }

  @Test("text is a line for each line of bytes, with UTC and offset, and no byte of a device ends a line")
  func text() {
    let lines = Self.encoded(
      .text,
      [
        (.fromDevice, [], 0, Array("one\r\ntw".utf8)), (.fromDevice, [], 1_000_000, Array("o\\\n".utf8)),
        (.toDevice, [], 2_000_000, [0x1B, 0xFF, 0x09]), (.fromDevice, [], 3_000_000, Array("rest".utf8)),
        (.change, [], 4_000_000, Array("link open".utf8)),
      ])
    #expect(
      String(decoding: lines, as: UTF8.self) == #"""
        2026-11-27T21:10:03.123456+00:00 < one\r\n
        2026-11-27T21:10:03.123456+00:00 < two\\\n
        2026-11-27T21:10:03.125456+00:00 > \x1b\xff\t
        2026-11-27T21:10:03.126456+00:00 < rest
        2026-11-27T21:10:03.127456+00:00 - link open

        """#)
  }

  @Test("hex has 16 bytes in a line, also where they came in several pieces")
  func hex() {
    let lines = Self.encoded(
      .hex, [(.fromDevice, [], 0, Array(0x30..<0x38)), (.fromDevice, [], 1_000, Array(0x38..<0x42))])
    #expect(
      String(decoding: lines, as: UTF8.self) == """
        2026-11-27T21:10:03.123456+00:00 < 30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f |0123456789:;<=>?|
        2026-11-27T21:10:03.123457+00:00 < 40 41                                           |@A|

        """)
  }

  @Test("raw has the bytes and nothing else")
  func raw() {
    let bytes = Self.encoded(
      .raw, [(.change, [], 0, [1]), (.toDevice, [], 0, [2, 3]), (.fromDevice, [], 0, [4]), (.complete, [], 0, [])])
    #expect(bytes == [2, 3, 4])
  }
}

@Suite("The name of a recording's file")
struct CaptureNameTests {
  @Test("is relative to the state folder, with route and date filled in")
  func filled() {
    let name = CaptureName("{route}/a-{date}.pcapng", route: "gps", stateFolder: "/var/lib/baudway")
    #expect(name.folder == "/var/lib/baudway/gps/")
    #expect(name.name(name.next(at: CaptureRig.start, after: [])) == "a-20261127T211003Z.pcapng")
    #expect(CaptureName("/tmp/x", route: "gps", stateFolder: "/var").folder == "/tmp/")
  }

  @Test("has the folder of all routes for which `{route}` alone makes another one")
  func root() {
    func root(_ template: String) -> String { CaptureName(template, route: "gps", stateFolder: "/s").root }
    #expect(root("a/{route}/b/x") == "/s/a/" && root("{route}/x") == "/s/" && root("/a{route}/x") == "/")
    #expect(root("a/b/{route}") == "/s/a/b/" && root("/x") == "/")
  }

  @Test("gets a number before its ending when it is taken, and the next number after that")
  func numbers() {
    let plain = CaptureName("x.pcapng", route: "gps", stateFolder: "/s")
    #expect(plain.name(plain.next(at: 0, after: [])) == "x.pcapng")
    #expect(plain.name(plain.next(at: 0, after: ["x.pcapng"])) == "x~2.pcapng")
    #expect(plain.name(plain.next(at: 0, after: ["x~9.pcapng", "x~10.pcapng", "y~12.pcapng"])) == "x~11.pcapng")
    let dated = CaptureName("{date}", route: "gps", stateFolder: "/s")
    #expect(dated.name(dated.next(at: CaptureRig.start, after: ["20261127T211003Z"])) == "20261127T211003Z~2")
    #expect(dated.name(dated.next(at: CaptureRig.start, after: ["20261127T211002Z"])) == "20261127T211003Z")
  }

  @Test(
    "knows its own files, and no others",
    arguments: [
      "a-.pcapng", "a-20261127T211003Z.pcap", "b-20261127T211003Z.pcapng", "a-20261127T211003Z~1.pcapng",
      "a-20261127T211003Z~02.pcapng", "a-20261127T211003Z~-3.pcapng", "a-20261127T211003Z-2.pcapng",
      "a-2026-11-27T2110Z.pcapng", "a-20261127T211003Z.pcapng.pcapng", "a-board-20261127T211003Z.pcapng", "",
    ])
  func others(name: String) {
    let ours = CaptureName("a-{date}.pcapng", route: "gps", stateFolder: "/s")
    #expect(ours.mark(of: name) == nil)
    #expect(ours.mark(of: "a-20261127T211003Z~3.pcapng") == CaptureName.Mark(date: "20261127T211003Z", number: 3))
  }

  @Test("begins in systemd's state folder, else in the user's, else in /var/lib/baudway")
  func stateFolder() {
    func folder(_ environment: [String: String], user: UInt32 = 1000) -> String {
      CaptureEnvironment.stateFolder(environment, user: user)
    }
    let all = ["STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "XDG_STATE_HOME": "/x", "HOME": "/home/ada"]
    #expect(folder(all) == "/var/lib/a")
    #expect(folder(["XDG_STATE_HOME": "/x", "HOME": "/home/ada"]) == "/x/baudway")
    #expect(folder(["HOME": "/home/ada"]) == "/home/ada/.local/state/baudway")
    #expect(folder(["HOME": "/root"], user: 0) == "/var/lib/baudway")
    #expect(folder(["XDG_STATE_HOME": "x"]) == "/var/lib/baudway")
  }
}
