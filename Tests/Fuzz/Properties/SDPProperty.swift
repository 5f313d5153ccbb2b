// A Bluetooth device's answers to a look-up, and its requests to our own list of services. The bytes are read as a data
// element, as a whole answer, as the content of a valid answer, and as a request.

@testable import StreamBrokerBluetooth

enum SDPProperty {
  // Fewer than in the product, because each piece costs as much as all before it.
  private static let mostPieces = 16

  static func check(_ input: [UInt8]) throws(Broken) {
    try checkElement(input)
    // One of each, chosen by the input's length, because continuing an answer is expensive.
    let mtu = input.count.isMultiple(of: 2) ? ServiceList.leastMTU : 672
    try checkRequest(input, mtu)
    try checkRequest(Self.request([2, 4, 6][input.count % 3], Array(input.prefix(600))), mtu)
    try checkAnswer(input)
    try checkAnswer(Self.answer(input, continuation: []))
    try checkAnswer(Self.answer(input, continuation: Array(input.prefix(16))))
  }

  private static func checkElement(_ input: [UInt8]) throws(Broken) {
    guard let element = try? DataElement.read(all: input) else { return }
    let encoded = element.encoded
    try hold((try? DataElement.read(all: encoded)) == element, "an element that does not come back")
    try hold(encoded.count <= input.count, "a longer way to say the same")
  }

  private static func checkAnswer(_ message: [UInt8]) throws(Broken) {
    var lookUp = ChannelLookUp(BluetoothUUID(0x1101), mostPieces: mostPieces)
    // The same message again and again, as a device may send it: the look-up ends, and every request is complete.
    for round in 0...mostPieces + 1 {
      let next = UInt16(truncatingIfNeeded: round + 1)
      var again = message
      if again.count >= 3, round > 0 { again.replaceSubrange(1...2, with: DataElement.bigEndian(UInt64(next), 2)) }
      switch lookUp.handle(again) {
      case .found(let channel): return try hold((1...30).contains(channel), "a channel that there can't be")
      case .giveUp(let fault): return try holdsOneLine(fault.advice, "advice")
      case .wait: return try hold(Array(again[1...2]) != DataElement.bigEndian(UInt64(next), 2), "an answer left alone")
      case .send(let request):
        let length = Int(request[3]) << 8 | Int(request[4])
        try hold(request.count == length + 5 && request.count <= 64, "a request of another length")
      }
    }
    throw Broken("a look-up without end")
  }

  private static let list = {
    var list = ServiceList()
    for channel in 1...3 as ClosedRange<UInt8> {
      _ = list.add(BluetoothUUID(channel == 2 ? 0xABCD : 0x1101), channel: channel, name: "port \(channel)")
    }
    return list
  }()

  /// Every answer is complete and fits the MTU, and a client that continues as told reaches the end.
  private static func checkRequest(_ first: [UInt8], _ mtu: Int) throws(Broken) {
    var request = first
    for _ in 0..<64 {
      guard let answer = list.answer(request, mtu: mtu) else {
        return try hold(request.count < 5, "a request without an answer")
      }
      try hold(answer.count >= 5 && answer.count <= mtu, "an answer that does not fit")
      try hold(Int(answer[3]) << 8 | Int(answer[4]) == answer.count - 5, "an answer of another length")
      try hold(answer[1...2].elementsEqual(request[1...2]), "an answer to something else")
      guard answer[0] != 1, answer.count > 10, answer[answer.count - 5] == 4 else { return }
      // Replace the previous continuation, which was empty or of the same length.
      let isFirst = request.last == 0
      request = Array(request.dropLast(isFirst ? 1 : 5)) + answer.suffix(5)
      let count = request.count - 5
      request.replaceSubrange(3...4, with: DataElement.bigEndian(UInt64(count), 2))
    }
    throw Broken("an answer without end")
  }

  private static func request(_ kind: UInt8, _ parameters: [UInt8]) -> [UInt8] {
    [kind, 0, 1] + DataElement.bigEndian(UInt64(parameters.count), 2) + parameters
  }

  private static func answer(_ list: [UInt8], continuation: [UInt8]) -> [UInt8] {
    guard list.count < 60_000 else { return list }
    let parameters =
      DataElement.bigEndian(UInt64(list.count), 2) + list + [UInt8(continuation.count)] + continuation
    return [7, 0, 1] + DataElement.bigEndian(UInt64(parameters.count), 2) + parameters
  }
}
