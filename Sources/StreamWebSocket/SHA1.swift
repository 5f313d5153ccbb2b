// SHA-1 of RFC 3174, only for Sec-WebSocket-Accept. It protects nothing there: it shows that a response belongs to this
// request.

func sha1(_ message: [UInt8]) -> [UInt8] {
  var padded = message + [0x80]
  while padded.count % 64 != 56 { padded.append(0) }
  let bits = UInt64(message.count) * 8
  for shift in stride(from: 56, through: 0, by: -8) { padded.append(UInt8(truncatingIfNeeded: bits >> UInt64(shift))) }

  var state: [UInt32] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0]
  var words = [UInt32](repeating: 0, count: 80)
  for block in stride(from: 0, to: padded.count, by: 64) {
    for index in 0..<16 {
      let start = block + 4 * index
      words[index] = padded[start..<start + 4].reduce(0) { $0 << 8 | UInt32($1) }
    }
    for index in 16..<80 {
      words[index] = rotatedLeft(words[index - 3] ^ words[index - 8] ^ words[index - 14] ^ words[index - 16], by: 1)
    }
    var (a, b, c, d, e) = (state[0], state[1], state[2], state[3], state[4])
    for index in 0..<80 {
      let (mix, constant): (UInt32, UInt32) =
        switch index {
        case ..<20: (b & c | ~b & d, 0x5A82_7999)
        case ..<40: (b ^ c ^ d, 0x6ED9_EBA1)
        case ..<60: (b & c | b & d | c & d, 0x8F1B_BCDC)
        default: (b ^ c ^ d, 0xCA62_C1D6)
        }
      let next = rotatedLeft(a, by: 5) &+ mix &+ e &+ words[index] &+ constant
      (a, b, c, d, e) = (next, a, rotatedLeft(b, by: 30), c, d)
    }
    for (index, value) in [a, b, c, d, e].enumerated() { state[index] &+= value }
  }
  return state.flatMap { word in [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: word >> UInt32($0)) } }
}

private func rotatedLeft(_ word: UInt32, by count: UInt32) -> UInt32 { word << count | word >> (32 - count) }
