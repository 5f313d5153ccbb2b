// The bond keeper with a played kernel: what it sends, whose keys it keeps, and what it reports when it can do neither.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerBluetooth

@Suite("The keeper of bonds", .timeLimit(.minutes(5)))
struct BondKeeperTests {
  /// The management channel's other end: reads commands and answers them.
  final class Machine: Sendable {
    private let end = Mutex<Int32>(-1)
    /// The codes of the received commands.
    let commands = Mutex<[UInt16]>([])
    /// The bytes of each received message.
    let messages = Mutex<[[UInt8]]>([])
    /// Status of the answer by command code, if it is not success; nil: no answer.
    let statuses = Mutex<[UInt16: UInt8?]>([:])
    /// The event sent right before the answer to a command.
    let before = Mutex<[UInt16: [UInt8]]>([:])
    /// Whether bluetoothd runs, one value per check; the last one repeats.
    let daemon = Mutex<[Bool]>([false])
    let news = Mutex<[String]>([])

    func keeper(_ path: String) -> BondKeeper {
      let kernel = BondKeeper.Kernel { [self] in
        var ends: [Int32] = [-1, -1]
        let type = Int32(SOCK_SEQPACKET.rawValue) | Int32(SOCK_CLOEXEC.rawValue)
        guard socketpair(AF_UNIX, type, 0, &ends) == 0 else { return .failure(OpenFailure("socketpair", nil)) }
        _ = fcntl(ends[0], F_SETFL, O_NONBLOCK)
        let other = ends[1]
        end.withLock { $0 = other }
        DispatchQueue(label: "played kernel").async { [self] in serve(other) }
        return .success(DescriptorParcel(Descriptor(owning: ends[0])))
      } runsDaemon: { [self] _ in
        daemon.withLock { $0.count > 1 ? $0.removeFirst() : $0[0] }
      }
      return BondKeeper(path: path, kernel: kernel) { [self] in
        switch $0 {
        case .kept(let device, _): news.withLock { $0.append("kept \(device)") }
        case .trouble(let text): news.withLock { $0.append(text) }
        case .refused(let device, let reason): news.withLock { $0.append("refused \(device): \(reason)") }
        }
      }
    }

    /// Runs until the keeper is gone.
    private func serve(_ raw: Int32) {
      let socket = Descriptor(owning: raw)
      var buffer = [UInt8](repeating: 0, count: 4096)
      while case let count = recv(socket.raw, &buffer, buffer.count, 0), count >= 6 {
        messages.withLock { $0.append(Array(buffer[..<count])) }
        let code = UInt16(buffer[0]) | UInt16(buffer[1]) << 8
        commands.withLock { $0.append(code) }
        let status = statuses.withLock { $0[code] ?? 0 }
        let event = before.withLock { $0[code] } ?? []
        if !event.isEmpty { send(raw, event) }
        if let status { send(raw, Self.event(1, LittleEndian.bytes(code) + [status])) }
      }
      end.withLock { $0 = -1 }
    }

    private func send(_ raw: Int32, _ event: [UInt8]) { _ = Glibc.send(raw, event, event.count, Int32(MSG_NOSIGNAL)) }

    func say(_ code: UInt16, _ parameters: [UInt8]) { send(end.withLock { $0 }, Self.event(code, parameters)) }

    static func event(_ code: UInt16, _ parameters: [UInt8]) -> [UInt8] {
      [code, 1, UInt16(parameters.count)].flatMap(LittleEndian.bytes) + parameters
    }

    /// The answers to pairing requests.
    var answers: [[UInt8]] { messages.withLock { $0.filter { [0x17, 0x1C, 0x1D, 0x1F].contains($0[0]) } } }

    var loads: [UInt16] { commands.withLock { $0.filter { [0x12, 0x13, 0x30].contains($0) } } }
  }

  let folder: TemporaryFolder
  let adapter: ManagedAdapter
  let machine = Machine()
  var store: BondStore { BondStore(path: folder.path + "/bonds") }

  init() throws {
    folder = try TemporaryFolder()
    let settings: [UInt8] = [0xFF, 0x0F, 0, 0, 0xFF, 0x0F, 0, 0]
    adapter = try #require(ManagedAdapter(1, ([0, 0, 0, 1, 0xAA, 0, 9, 0xFF, 0xFF] + settings)[...]))
  }

  func write(_ file: BondFile) throws {
    let raw = open(store.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
    guard raw >= 0 else { throw SystemError("open") }
    let descriptor = Descriptor(owning: raw)
    let bytes = file.encoded
    #expect(Glibc.write(descriptor.raw, bytes, bytes.count) == bytes.count)
  }

  func kept() throws -> [PairedAddress] { try store.read().bonds(with: Keys.adapter).map(\.device) }

  @Test("loads every list into the kernel, and keeps only the keys of devices that openings named")
  func named() throws {
    let keeper = machine.keeper(store.path)
    #expect(keeper.prepared(adapter).side == .ours)
    #expect(machine.loads == [0x12, 0x13, 0x30])
    let stranger = PairedAddress(BluetoothAddress([0xC0, 0, 0, 0, 0, 6]), .leRandom)
    keeper.expect(Keys.lamp)
    for device in [stranger, Keys.lamp] { machine.say(0x0A, [1] + device.encoded + Keys.longTerm(1).bytes) }
    machine.say(0x09, [1] + Keys.phone.encoded + Keys.link(2).bytes)
    // Events sent before are read before.
    _ = keeper.prepared(adapter)
    #expect(try kept() == [Keys.lamp])
    // Pairing over Classic also makes a key for Low Energy.
    keeper.expect(Keys.phone)
    let phone = PairedAddress(Keys.phone.address, .lePublic)
    machine.say(0x0A, [1] + phone.encoded + Keys.longTerm(1).bytes)
    _ = keeper.prepared(adapter)
    #expect(try kept() == [Keys.lamp, phone])
  }

  @Test("recognises by its identity address a device found by a temporary one")
  func passing() throws {
    let keeper = machine.keeper(store.path)
    _ = keeper.prepared(adapter)
    keeper.expect(PairedAddress(BluetoothAddress([0x40, 0, 0, 0, 0, 9]), .leRandom))
    machine.say(0x18, [1, 8, 0, 0, 0, 0, 0x40] + Keys.phone.encoded.dropLast() + [1] + Keys.identity(3).bytes)
    machine.say(0x18, [1, 9, 0, 0, 0, 0, 0x40] + Keys.lamp.encoded + Keys.identity(3).bytes)
    machine.say(0x0A, [1] + Keys.lamp.encoded + Keys.longTerm(1).bytes)
    _ = keeper.prepared(adapter)
    #expect(try kept() == [Keys.lamp])
    #expect(try store.read().bonds(with: Keys.adapter).first?.keys.count == 2)
  }

  @Test("keeps no bonds where the file cannot be written, and reports that once")
  func unwritable() throws {
    let keeper = machine.keeper(folder.path + "/no/state/bonds")
    for _ in 1...3 { #expect(keeper.prepared(adapter).side == .nobody) }
    #expect(machine.loads == [])
    #expect(machine.news.withLock { $0.count } == 1)
    #expect(machine.news.withLock { $0.first }?.hasPrefix("bonds are neither used nor kept: ") == true)
  }

  @Test("sees a folder that nobody may write", .enabled(if: geteuid() != 0, "root may write to any folder"))
  func forbidden() throws {
    try store.checkThatItCanBeWritten()
    #expect(chmod(folder.path, 0o500) == 0)
    defer { chmod(folder.path, 0o700) }
    #expect(throws: BondStore.Fault.self) { try store.checkThatItCanBeWritten() }
  }

  @Test(
    "ignores an adapter that is removed meanwhile, without an error", arguments: [0x15, 0x13, 0x30] as [UInt16])
  func gone(code: UInt16) throws {
    let keeper = machine.keeper(store.path)
    machine.statuses.withLock { $0[code] = ManagementStatus.invalidIndex }
    #expect(keeper.prepared(adapter).side == .nobody)
    machine.statuses.withLock { $0[code] = 0 }
    machine.before.withLock { $0[code] = Machine.event(5, []) }
    #expect(keeper.prepared(adapter).side == .nobody)
    // Another adapter may have its index now.
    keeper.expect(Keys.lamp)
    machine.say(0x0A, [1] + Keys.lamp.encoded + Keys.longTerm(1).bytes)
    _ = keeper.prepared(adapter)
    #expect(try kept() == [])
    #expect(machine.news.withLock { $0 } == [])
  }

  @Test("does not count a missing answer as success, and explains a refusal", .waits)
  func refused() throws {
    let keeper = machine.keeper(store.path)
    machine.statuses.withLock { $0[0x13] = .some(nil) }
    #expect(keeper.prepared(adapter).side == .nobody)
    machine.statuses.withLock { $0[0x13] = 0x0D }
    #expect(keeper.prepared(adapter).side == .nobody)
    #expect(machine.news.withLock { $0 } == ["\(store.path): the kernel refused these bonds (status 13)"])
    machine.statuses.withLock { $0 = [0x15: ManagementStatus.notPowered] }
    #expect(keeper.prepared(adapter).side == .ours)
  }

  @Test("loads nothing if bluetoothd has just started")
  func daemon() throws {
    let keeper = machine.keeper(store.path)
    machine.daemon.withLock { $0 = [false, true] }
    #expect(keeper.prepared(adapter).side == .daemon)
    #expect(machine.loads == [])
  }

  @Test("reports once that a bond can't be kept, however many openings succeed")
  func full() throws {
    var file = BondFile()
    for number in 0..<UInt8.max {
      let device = PairedAddress(BluetoothAddress([0, 0, 0, 0, 1, number]), .lePublic)
      _ = file.keep(Keys.identity(0), of: device, with: Keys.adapter)
    }
    let last = PairedAddress(BluetoothAddress([0, 0, 0, 0, 2, 0]), .lePublic)
    _ = file.keep(Keys.identity(0), of: last, with: Keys.adapter)
    try write(file)
    let keeper = machine.keeper(store.path)
    keeper.expect(Keys.lamp)
    for _ in 1...3 {
      #expect(keeper.prepared(adapter).side == .ours)
      machine.say(0x0A, [1] + Keys.lamp.encoded + Keys.longTerm(1).bytes)
    }
    _ = keeper.prepared(adapter)
    #expect(machine.news.withLock { $0.count } == 1)
    #expect(machine.news.withLock { $0.first }?.contains("has 256 bonds") == true)
  }
}
