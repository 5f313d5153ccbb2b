// Bonds: the keys that the kernel reports, the file that stores them, and the keys loaded into the kernel again.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamBrokerBluetooth

/// Keys that differ from each other.
enum Keys {
  static let adapter = BluetoothAddress([0, 0xAA, 1, 0, 0, 0])
  static let lamp = PairedAddress(BluetoothAddress([0xC0, 0, 0, 0, 0, 5]), .leRandom)
  static let phone = PairedAddress(BluetoothAddress([0, 0xAA, 1, 0, 0, 9]), .classic)

  static func longTerm(_ value: UInt8, kind: UInt8 = 2, role: UInt8 = 0) -> BondKey {
    BondKey(.longTerm, [kind, role, 16] + [UInt8](repeating: 0, count: 10) + [UInt8](repeating: value, count: 16))!
  }
  static func identity(_ value: UInt8) -> BondKey { BondKey(.identity, [UInt8](repeating: value, count: 16))! }
  static func link(_ value: UInt8) -> BondKey { BondKey(.link, [4] + [UInt8](repeating: value, count: 16) + [0])! }
}

@Suite("A pairing event")
struct PairingNewsTests {
  private let place: [UInt8] = [5, 0, 0, 0, 0, 0xC0, 2]

  private func news(_ code: UInt16, _ parameters: [UInt8]) -> PairingEvent? {
    if case .pairing(let news)? = Kernel.event(code, 0, parameters)?.content { news } else { nil }
  }

  @Test("is read: keys, links, questions, failures")
  func read() {
    let key = Keys.longTerm(7)
    #expect(news(0x0A, [1] + place + key.bytes) == .key(Keys.lamp, key, isToKeep: true))
    #expect(news(0x0A, [0] + place + key.bytes) == .key(Keys.lamp, key, isToKeep: false))
    let identity = Keys.identity(3)
    let passing = PairedAddress(BluetoothAddress([0x40, 0, 0, 0, 0, 9]), .leRandom)
    #expect(
      news(0x18, [1, 9, 0, 0, 0, 0, 0x40] + place + identity.bytes)
        == .key(Keys.lamp, identity, isToKeep: true, temporaryAddress: passing))
    let link = Keys.link(4)
    #expect(news(0x09, [1, 9, 0, 0, 1, 0xAA, 0, 0] + link.bytes) == .key(Keys.phone, link, isToKeep: true))
    #expect(news(0x0B, place + [0, 0, 0, 0, 0, 0]) == .linked(Keys.lamp))
    let name: [UInt8] = [4, 9, 0x67, 0x70, 0x73]
    #expect(news(0x0B, place + [0, 0, 0, 0, 5, 0] + name) == .linked(Keys.lamp, name: "gps"))
    #expect(news(0x0B, place + [0, 0, 0, 0, 6, 0] + name) == .linked(Keys.lamp))
    #expect(news(0x0C, place + [4]) == .unlinked(Keys.lamp, byAuthentication: true))
    #expect(news(0x0C, place + [3]) == .unlinked(Keys.lamp, byAuthentication: false))
    #expect(news(0x0E, place + [0]) == .asksForPIN(Keys.lamp))
    #expect(news(0x10, place) == .asksForNumber(Keys.lamp))
    #expect(news(0x11, place + [5]) == .failed(Keys.lamp))
  }

  @Test("is rejected if it is cut off, of unknown kind, or a key that could not be loaded again")
  func hostile() {
    let key = Keys.longTerm(7).bytes
    #expect(news(0x0A, [1] + place + key.dropLast()) == nil)
    #expect(news(0x0A, [1] + place + key + [0]) == nil)
    #expect(news(0x0A, [1] + place + [5] + key.dropFirst()) == nil)
    #expect(news(0x0A, [1] + place + [2, 0, 17] + key.dropFirst(3)) == nil)
    #expect(news(0x0A, [1, 5, 0, 0, 0, 0, 0x40, 2] + key) == nil)  // an address that changes soon
    #expect(news(0x0A, [1, 5, 0, 0, 0, 0, 0xC0, 0] + key) == nil)
    #expect(news(0x09, [1] + place + Keys.link(1).bytes) == nil)
    #expect(news(0x0B, [5, 0, 0, 0, 0, 0xC0, 3]) == nil)
    #expect(news(0x0C, Array(place.dropLast())) == nil)
    #expect(news(0x0A, []) == nil)
  }
}

@Suite("The file of bonds")
struct BondFileTests {
  private func text(_ bytes: [UInt8]) -> String { String(decoding: bytes, as: UTF8.self) }

  @Test("returns the stored bonds, one line per device under its adapter")
  func roundTrip() throws {
    var file = BondFile()
    #expect(file.keep(Keys.longTerm(1), of: Keys.lamp, with: Keys.adapter) == true)
    #expect(file.keep(Keys.identity(2), of: Keys.lamp, with: Keys.adapter) == true)
    #expect(file.keep(Keys.link(3), of: Keys.phone, with: Keys.adapter) == true)
    let again = try BondFile(file.encoded)
    #expect(again == file)
    #expect(
      again.bonds(with: Keys.adapter) == [
        Bond(Keys.adapter, Keys.lamp, [Keys.longTerm(1), Keys.identity(2)]),
        Bond(Keys.adapter, Keys.phone, [Keys.link(3)]),
      ])
    #expect(again.bonds(with: BluetoothAddress([9, 9, 9, 9, 9, 9])) == [])
    #expect(again.line(of: Keys.lamp, with: Keys.adapter) == 3)
    #expect(
      text(file.encoded).split(separator: "\n")[3].hasPrefix("00:AA:01:00:00:00 00:AA:01:00:00:09 classic link:04"))
  }

  @Test("has the newest key of a kind: one for both roles, or one for each")
  func newer() {
    var file = BondFile()
    func keys() -> [BondKey] { file.bonds(with: Keys.adapter)[0].keys }
    for key in [
      Keys.longTerm(1, kind: 0, role: 0), Keys.longTerm(2, kind: 0, role: 1), Keys.longTerm(3, kind: 0, role: 1),
    ] {
      _ = file.keep(key, of: Keys.lamp, with: Keys.adapter)
    }
    #expect(keys() == [Keys.longTerm(1, kind: 0, role: 0), Keys.longTerm(3, kind: 0, role: 1)])
    _ = file.keep(Keys.longTerm(4), of: Keys.lamp, with: Keys.adapter)
    #expect(keys() == [Keys.longTerm(4)])
    _ = file.keep(Keys.longTerm(5, kind: 0, role: 1), of: Keys.lamp, with: Keys.adapter)
    #expect(keys() == [Keys.longTerm(5, kind: 0, role: 1)])
  }

  @Test("keeps comments and empty lines, and the order of other lines")
  func remarks() throws {
    var file = BondFile()
    _ = file.keep(Keys.longTerm(1), of: Keys.lamp, with: Keys.adapter)
    let line = text(file.encoded).split(separator: "\n")[2]
    var edited = try BondFile(Array("# the lamp\n\n\(line)\n  # and no more".utf8))
    #expect(edited.line(of: Keys.lamp, with: Keys.adapter) == 3)
    _ = edited.keep(Keys.longTerm(2), of: Keys.lamp, with: Keys.adapter)
    _ = edited.keep(Keys.link(3), of: Keys.phone, with: Keys.adapter)
    #expect(text(edited.encoded).hasPrefix("# the lamp\n\n00:AA:01:00:00:00 C0:00:00:00:00:05 random ltk:02"))
    #expect(edited.line(of: Keys.phone, with: Keys.adapter) == 5)
  }

  @Test(
    "is refused with the number of the wrong line, but not its content",
    arguments: [
      ("00:AA:01:00:00:00", "a bond has"), ("xx C0:00:00:00:00:05 random irk:SECRET", "not an adapter's address"),
      ("00:AA:01:00:00:00 C0:00 random irk:SECRET", "not a device's address"),
      ("00:AA:01:00:00:00 C0:00:00:00:00:05 le irk:SECRET", "not classic, public or random"),
      ("00:AA:01:00:00:00 C0:00:00:00:00:05 random irk:SECRET", "not a key of such a device: irk"),
      ("00:AA:01:00:00:00 C0:00:00:00:00:05 random irk:0000000000000000000000000000000g", "not a key"),
      ("00:AA:01:00:00:00 C0:00:00:00:00:05 random irk:00 SECRET", "not a key of such a device: irk"),
      ("00:AA:01:00:00:00 C0:00:00:00:00:05 random SECRET00SECRET", "not a key of such a device"),
      ("00:AA:01:00:00:00 C0:00:00:00:00:05 random SECRET:00", "not a key of such a device"),
      ("00:AA:01:00:00:00 40:00:00:00:00:05 random irk:00000000000000000000000000000000", "not a key"),
      ("00:AA:01:00:00:00 C0:00:00:00:00:05 classic irk:00000000000000000000000000000000", "not a key"),
      (
        "00:AA:01:00:00:00 C0:00:00:00:00:05 public irk:00000000000000000000000000000000 irk:00000000000000000000000000000000",
        "two keys"
      ), ("\u{1b}[2J", "a control character"), ("a\0b", "a control character"),
    ])
  func hostile(line: String, message: String) {
    let problem = #expect(throws: BondFile.Problem.self) { try BondFile(Array("# one\n\(line)\n".utf8)) }
    #expect(problem?.line == 2)
    #expect(problem?.message.contains(message) == true)
    #expect(problem?.message.contains("SECRET") == false)
  }

  @Test("is refused when it names a device twice, has too many, or is too long")
  func bounds() {
    let irk = "irk:" + String(repeating: "0", count: 32)
    let twice = "00:AA:01:00:00:00 C0:00:00:00:00:05 random \(irk)\n"
    #expect(throws: BondFile.Problem(line: 2, message: "this adapter and device already have a line")) {
      try BondFile(Array((twice + twice).utf8))
    }
    var file = BondFile()
    for number in 0..<256 {
      let device = PairedAddress(BluetoothAddress([0, 0, 0, 0, 0, UInt8(number)]), .lePublic)
      #expect(file.keep(Keys.identity(0), of: device, with: Keys.adapter) == true)
    }
    #expect(file.keep(Keys.identity(0), of: Keys.lamp, with: Keys.adapter) == false)
    let more = file.encoded + Array(twice.utf8)
    #expect(throws: BondFile.Problem.self) { try BondFile(more) }
    #expect(throws: BondFile.Problem.self) { try BondFile([UInt8](repeating: 0x23, count: 256 << 10 | 1)) }
  }

  @Test("survives any change of a byte without a crash, and never gives the kernel a key it would refuse")
  func flipped() {
    var file = BondFile()
    _ = file.keep(Keys.longTerm(1), of: Keys.lamp, with: Keys.adapter)
    _ = file.keep(Keys.link(3), of: Keys.phone, with: Keys.adapter)
    let bytes = file.encoded
    for place in bytes.indices {
      for other in [0, 0x20, 0x0A, 0x39, 0x66, 0xFF] as [UInt8] {
        var changed = bytes
        changed[place] = other
        guard let read = try? BondFile(changed) else { continue }
        for bond in read.bonds(with: Keys.adapter) {
          #expect(bond.keys.allSatisfy { $0.fits(bond.device) && BondKey($0.kind, $0.bytes) != nil })
        }
      }
    }
  }
}

@Suite("The store of bonds")
struct BondStoreTests {
  private func mode(_ path: String) -> mode_t {
    var state = stat()
    return lstat(path, &state) == 0 ? state.st_mode : 0
  }

  private func keep(_ store: BondStore, _ value: UInt8) throws {
    try store.keep(Keys.longTerm(value), of: Keys.lamp, with: Keys.adapter)
  }

  @Test("makes its folder and a file that only its owner may read, and reads it again")
  func kept() throws {
    let folder = try TemporaryFolder()
    let store = BondStore(path: folder.path + "/state/bonds")
    #expect(throws: BondStore.Fault.self) { try keep(BondStore(path: folder.path + "/no/state/bonds"), 1) }
    #expect(try store.read() == BondFile())
    try keep(store, 1)
    #expect(mode(store.path) & 0o777 == 0o600)
    #expect(mode(folder.path + "/state") & 0o777 == 0o700)
    try keep(store, 2)
    #expect(try store.read().bonds(with: Keys.adapter) == [Bond(Keys.adapter, Keys.lamp, [Keys.longTerm(2)])])
    #expect(access(folder.path + "/state/.bonds.new", F_OK) != 0)
  }

  @Test("never overwrites what it can't read: a mistake, a link, a pipe, a folder, a file that others may read")
  func hostile() throws {
    let folder = try TemporaryFolder()
    let path = folder.path + "/bonds"
    let store = BondStore(path: path)
    func refuses(_ words: String) throws {
      let before = mode(path)
      #expect(throws: BondStore.Fault.self) { try store.read() }
      let fault = #expect(throws: BondStore.Fault.self) { try keep(store, 1) }
      #expect(fault.map { "\($0)".contains(words) } == true, "\(String(describing: fault))")
      #expect(mode(path) == before)
    }
    try write("half a line\n", to: path, mode: 0o600)
    try refuses("bonds:1: a bond has an adapter")
    #expect(try content(of: path) == "half a line\n")
    unlink(path)
    try write("", to: path, mode: 0o640)
    try refuses("chmod 600")
    unlink(path)
    #expect(symlink(folder.path + "/elsewhere", path) == 0)
    try refuses("not a regular file")
    unlink(path)
    #expect(mkfifo(path, 0o600) == 0)
    try refuses("not a regular file")
    unlink(path)
    #expect(mkdir(path, 0o700) == 0)
    try refuses("not a regular file")
  }

  @Test("is not stopped by the leftovers of a killed writer")
  func leftover() throws {
    let folder = try TemporaryFolder()
    try write("half", to: folder.path + "/.bonds.new", mode: 0o600)
    let store = BondStore(path: folder.path + "/bonds")
    try keep(store, 1)
    #expect(try store.read().bonds(with: Keys.adapter).count == 1)
  }

  @Test("waits for another writer, but not forever for one that was stopped")
  func locked() throws {
    let folder = try TemporaryFolder()
    var store = BondStore(path: folder.path + "/bonds")
    store.lockPatience = .milliseconds(50)
    do {
      let other = Descriptor(owning: open(folder.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC))
      #expect(flock(other.raw, LOCK_EX) == 0)
      let fault = #expect(throws: BondStore.Fault.self) { try keep(store, 1) }
      #expect(fault == .isInUse(path: store.path))
    }
    try keep(store, 1)
  }

  private func write(_ text: String, to path: String, mode: mode_t) throws {
    let raw = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode)
    guard raw >= 0 else { throw SystemError("open") }
    let file = Descriptor(owning: raw)
    fchmod(file.raw, mode)
    _ = Glibc.write(file.raw, text, text.utf8.count)
  }

  private func content(of path: String) throws -> String {
    let raw = open(path, O_RDONLY | O_CLOEXEC)
    guard raw >= 0 else { throw SystemError("open") }
    let file = Descriptor(owning: raw)
    var bytes = [UInt8](repeating: 0, count: 4096)
    return String(decoding: bytes[..<max(0, read(file.raw, &bytes, bytes.count))], as: UTF8.self)
  }
}

@Suite("Our own service list")
struct ServiceListMarkTests {
  @Test("is known to our other processes while it exists")
  func mark() {
    let mark = UnixAddress.abstract("baudway-test-\(getpid())")
    #expect(!BluetoothDaemon.isSet(mark))
    var held = BluetoothDaemon.setMark(mark)
    #expect(held != nil && BluetoothDaemon.isSet(mark) && BluetoothDaemon.setMark(mark) == nil)
    _ = held?.take()
    held = nil
    #expect(!BluetoothDaemon.isSet(mark))
  }
}

@Suite("The kernel, before a connection")
struct BondLoadingTests {
  private func adapter(can: [UInt8], does: [UInt8]) throws -> ManagedAdapter {
    try #require(ManagedAdapter(1, ([0, 0, 0, 1, 0xAA, 0, 9, 0xFF, 0xFF] + can + does)[...]))
  }

  @Test("is set to bondable and gets every key of this adapter, in one list per kind")
  func all() throws {
    let bonds = [
      Bond(Keys.adapter, Keys.lamp, [Keys.longTerm(1), Keys.identity(2)]),
      Bond(Keys.adapter, Keys.phone, [Keys.link(3)]),
    ]
    let commands = BondLoading.commands(bonds, for: try adapter(can: [0xFF, 0x0F, 0, 0], does: [0x81, 2, 0, 0]))
    #expect(
      commands.map(\.code) == [
        .setInputOutput, .setSimplePairing, .setSecureConnections, .setBondable, .loadLinkKeys, .loadLongTermKeys,
        .loadIdentities,
      ])
    #expect(commands.allSatisfy { $0.adapter == 1 })
    #expect(commands[0].encoded == [0x18, 0, 1, 0, 1, 0, 3])
    #expect(commands[4].parameters == [0, 1, 0] + Keys.phone.encoded + Keys.link(3).bytes)
    #expect(commands[5].parameters == [1, 0] + Keys.lamp.encoded + Keys.longTerm(1).bytes)
    #expect(commands[5].encoded.count == 6 + 2 + 36)
    #expect(commands[6].parameters == [1, 0] + Keys.lamp.encoded + Keys.identity(2).bytes)
  }

  @Test("gets commands to remove deleted bonds, but none for settings that hold already or are not supported")
  func nothing() throws {
    let ready = BondLoading.commands([], for: try adapter(can: [0xFF, 0x0F, 0, 0], does: [0xFF, 0x0F, 0, 0]))
    #expect(ready.map(\.code) == [.setInputOutput, .loadLinkKeys, .loadLongTermKeys, .loadIdentities])
    #expect(ready[2].parameters == [0, 0])
    let lowEnergyOnly = BondLoading.commands([], for: try adapter(can: [0x11, 2, 0, 0], does: [1, 2, 0, 0]))
    #expect(lowEnergyOnly.map(\.code) == [.setInputOutput, .setBondable, .loadLongTermKeys, .loadIdentities])
  }
}

@Suite("Where bonds are kept")
struct BondPathTests {
  @Test("is set by the environment, or systemd's state directory, or is /var/lib/baudway")
  func paths() {
    #expect(BondKeeper.path([:]) == "/var/lib/baudway/bonds")
    #expect(BondKeeper.path(["STATE_DIRECTORY": "/var/lib/a:/var/lib/b"]) == "/var/lib/a/bonds")
    #expect(BondKeeper.path(["STATE_DIRECTORY": "/x", "BAUDWAY_BONDS": "/y/keys"]) == "/y/keys")
    #expect(BondKeeper.path(["BAUDWAY_BONDS": "", "STATE_DIRECTORY": ""]) == "/var/lib/baudway/bonds")
  }
}
