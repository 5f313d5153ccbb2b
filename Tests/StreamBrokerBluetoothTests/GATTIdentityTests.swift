// Who a device is: questions one after the other, and whatever comes in between.

import ByteStreams
import Testing

@testable import StreamBrokerBluetooth

@Suite("The identity of a device")
struct GATTIdentityTests {
  private func message(_ bytes: [UInt8]) throws -> ATTMessage { try ATTMessage(bytes[...]) }
  private func value(_ text: String) throws -> ATTMessage {
    try message([0x09, UInt8(text.utf8.count + 2), 3, 0] + Array(text.utf8))
  }
  private func refusal() throws -> ATTMessage { try message([0x01, 0x08, 1, 0, 0x0A]) }

  @Test("is asked for one question at a time, and complete when all are answered")
  func all() throws {
    var identity = GATTIdentity()
    var facts = DeviceFacts()
    let answers = ["HMSoft", "ACME\0\0", "X 1", "42", "1.2 "]
    for (number, answer) in zip([0x00, 0x29, 0x24, 0x25, 0x26] as [UInt8], answers) {
      #expect(!identity.isOver && !identity.isAsking)
      #expect(identity.ask() == [0x08, 1, 0, 0xFF, 0xFF, number, 0x2A])
      #expect(identity.isAsking && identity.ask() == nil)
      let answer = try value(answer)
      #expect(identity.handle(answer, &facts))
      let late = try value("late")
      #expect(!identity.handle(late, &facts))
    }
    #expect(identity.isOver && identity.ask() == nil)
    var wanted = DeviceFacts()
    (wanted.name, wanted.manufacturer, wanted.model) = ("HMSoft", "ACME", "X 1")
    (wanted.serialNumber, wanted.firmware) = ("42", "1.2")
    #expect(facts == wanted)
  }

  @Test("is not known of a device that refuses, or says nothing, and it is not asked for ever")
  func none() throws {
    var identity = GATTIdentity()
    var facts = DeviceFacts()
    var questions = 0
    while identity.ask() != nil {
      questions += 1
      let answer = try questions.isMultiple(of: 2) ? refusal() : value("")
      #expect(identity.handle(answer, &facts))
    }
    #expect(questions == 5 && facts.isEmpty && identity.isOver)
  }

  @Test("leaves other messages alone, before, between and after")
  func others() throws {
    var identity = GATTIdentity()
    var facts = DeviceFacts()
    let (early, refused) = (try value("early"), try refusal())
    #expect(!identity.handle(early, &facts))
    #expect(!identity.handle(refused, &facts))
    _ = identity.ask()
    for bytes in [[0x13], [0x1B, 1, 0, 0x41], [0x01, 0x12, 1, 0, 0x0A], [0x03, 23, 0], [0x02, 23, 0]] as [[UInt8]] {
      let other = try message(bytes)
      #expect(!identity.handle(other, &facts))
    }
    #expect(identity.isAsking && facts.isEmpty)
    identity.giveUp()
    #expect(!identity.isAsking && identity.isOver && identity.ask() == nil)
    let late = try value("late")
    #expect(!identity.handle(late, &facts) && facts.isEmpty)
  }
}
