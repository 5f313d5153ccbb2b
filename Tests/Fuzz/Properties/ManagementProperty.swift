// The kernel's management channel: events, each preceded by its length, go to the choice of an adapter, a scan, a
// connection and its pairing; any device in range can advertise. All of these must end, send only valid requests, and
// find only what was asked for. The same bytes are also read as a file of bonds.

@testable import StreamBrokerBluetooth

enum ManagementProperty {
  static func check(_ input: [UInt8]) throws(Broken) {
    for wanted in [nil, "hci0", "00:AA:01:00:00:00"] { try choose(wanted, events(of: input)) }
    let address = BluetoothAddress([0, 0xAA, 1, 0, 0, 3])
    for wish in [
      ScanFlow.Wish(service: BluetoothUUID(0xFFE0)), ScanFlow.Wish(service: BluetoothUUID(0xFFE0), name: "A"),
      ScanFlow.Wish(service: BluetoothUUID(0xFFE0), address: address),
    ] { try scan(for: wish, events(of: input)) }
    try link(events(of: input))
    try keep(input)
  }

  private static func events(of input: [UInt8]) -> [ManagementEvent] {
    var events: [ManagementEvent] = []
    var rest = input[...]
    while let length = rest.popFirst() {
      if let event = ManagementEvent(Array(rest.prefix(Int(length)))) { events.append(event) }
      rest = rest.dropFirst(Int(length))
    }
    return events
  }

  private static func choose(_ wanted: String?, _ events: [ManagementEvent]) throws(Broken) {
    var flow = AdapterFlow(wanted)
    try checkCommand(flow.firstCommand)
    var isOver = false
    for event in events {
      var step = flow.handle(event)
      if step == .retryLater { step = flow.handleRetry() }
      if isOver { try hold(step == .wait, "a choice that goes on after its end") }
      switch step {
      case .send(let command): try checkCommand(command)
      case .ready(let adapter):
        isOver = true
        try hold(adapter.hasLE, "an adapter without LE")
        try hold(wanted != "hci0" || adapter.index == 0, "another adapter")
      case .giveUp(let fault):
        isOver = true
        try holdsOneLine(fault.advice, "advice")
      case .retryLater: throw Broken("a retry that is put off")
      case .wait: break
      }
    }
  }

  private static func scan(for wish: ScanFlow.Wish, _ events: [ManagementEvent]) throws(Broken) {
    var flow = ScanFlow(wish, on: 0)
    try checkCommand(flow.firstCommand)
    var isOver = false
    for event in events {
      let step = flow.handle(event)
      if isOver { try hold(step == .wait, "a scan that goes on after its end") }
      switch step {
      case .send(let command): try checkCommand(command)
      case .found(let device, let ending):
        isOver = true
        try hold(wish.fits(device), "\(device) was not looked for")
        if let ending { try checkCommand(ending) }
      case .giveUp(let fault):
        isOver = true
        try holdsOneLine(fault.advice, "advice")
      case .retryLater:
        if case .send(let command) = flow.handleRetry() { try checkCommand(command) }
      case .wait: break
      }
      if isOver { try hold(flow.handleRetry() == .wait, "a scan that begins again after its end") }
    }
  }

  private static func link(_ events: [ManagementEvent]) throws(Broken) {
    let device = PairedAddress(BluetoothAddress([0xC0, 0, 0, 0, 0, 5]), .leRandom)
    var connecting = ConnectFlow(device, on: 0, timeout: .seconds(1))
    var securing = SecureFlow(device, on: 0, .init(side: .ours, lines: [device: 1], path: "/b"))
    var isOver = false
    for event in events {
      let step = connecting.handle(.management(event))
      if isOver { try hold(step == .wait, "a connection that goes on after its end") }
      if case .giveUp = step { isOver = true }
      guard case .send(let command) = securing.handle(event) else { continue }
      try checkCommand(command)
      try hold(command.parameters == device.encoded, "an answer to another's pairing")
    }
  }

  /// A file of bonds reads back as it was written, and the kernel accepts its content.
  private static func keep(_ input: [UInt8]) throws(Broken) {
    guard let file = try? BondFile(input) else { return }
    try hold((try? BondFile(file.encoded)) == file, "a file of bonds that is read otherwise when it is written again")
    for bond in file.bonds(with: BluetoothAddress([0, 0xAA, 1, 0, 0, 0])) {
      try hold(bond.keys.allSatisfy { $0.fits(bond.device) }, "a key that the kernel would refuse")
    }
  }

  private static func checkCommand(_ command: ManagementCommand) throws(Broken) {
    let bytes = command.encoded
    try hold(bytes.count == 6 + command.parameters.count, "a command of \(bytes.count) bytes")
    try hold(Int(LittleEndian.word(bytes[4...])) == command.parameters.count, "a command of another length")
  }
}
