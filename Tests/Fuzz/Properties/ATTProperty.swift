// A Bluetooth device's messages to a look-up of a serial service, each preceded by its length. The look-up must end,
// every request must be complete, and the result must be usable.

@testable import StreamBrokerBluetooth

enum ATTProperty {
  static func check(_ input: [UInt8]) throws(Broken) {
    var lookUp = GATTLookUp(GATTWish(service: BluetoothUUID(0xFFE0)))
    var rest = input[...]
    var isSecured = false
    while let length = rest.popFirst() {
      let message = Array(rest.prefix(Int(length)))
      rest = rest.dropFirst(Int(length))
      switch lookUp.handle(message) {
      case .send(let request): try checkRequest(request)
      case .secure:
        try hold(!isSecured, "encrypted twice")
        isSecured = true
        if case .send(let request) = lookUp.handleSecured() { try checkRequest(request) }
      case .ready(let plan):
        try hold((ATTMessage.leastMTU...ATTMessage.mostMTU).contains(plan.mtu), "an MTU of \(plan.mtu)")
        try hold(plan.early.count <= input.count, "more was told than came")
        try hold(lookUp.handle(message) == .wait, "a look-up that goes on after its end")
      case .giveUp(let fault): return try holdsOneLine(fault.advice, "advice")
      case .wait: break
      }
    }
    // A device that sends the same message without end.
    var endless = GATTLookUp(GATTWish(service: BluetoothUUID(0xFFE0)))
    for _ in 0...GATTLookUp.mostMessages {
      switch endless.handle(Array(input.prefix(64))) {
      case .giveUp, .ready: return
      case .secure: _ = endless.handleSecured()
      case .send, .wait: break
      }
    }
    throw Broken("a look-up without end")
  }

  private static func checkRequest(_ request: [UInt8]) throws(Broken) {
    try hold((1...23).contains(request.count), "a request of \(request.count) bytes, for the least MTU")
    switch request[0] {
    case 0x04, 0x08:
      let (first, last) = (LittleEndian.word(request[1...]), LittleEndian.word(request[3...]))
      try hold(first <= last, "a range from \(first) to \(last)")
    case 0x01, 0x02, 0x03, 0x06, 0x12, 0x1E: break
    default: throw Broken("a request of kind \(request[0])")
    }
  }
}
