// How a serial port's URL becomes settings, and settings become termios flags. No descriptor, no lane.

import ByteStreams
import CLinux
import Glibc
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("The URL of a serial port")
struct TTYSettingsTests {
  private func settings(_ query: String) throws -> TTYSettings {
    TTYSettings(try EndpointURL("tty:///dev/ttyUSB0\(query)"))
  }

  @Test("by default leaves DTR, RTS and HUPCL alone, opens exclusively, and uses low latency")
  func defaults() throws {
    let plain = try settings("")
    #expect(plain.line.dataBits == 8)
    #expect(plain.line.parity == .none)
    #expect(plain.line.stopBits == .one)
    #expect(plain.line.flowControl == .none)
    #expect(plain.dtr == nil && plain.rts == nil && !plain.hangsUpOnClose)
    #expect(plain.isExclusive && plain.isLowLatency)
  }

  @Test("has a word for each setting of the line")
  func line() throws {
    let odd = try settings("?baud=250000&data=5&parity=mark&stop=1.5&flow=xonxoff").line
    let expected = LineSettings(
      bitsPerSecond: 250_000, dataBits: 5, parity: .mark, stopBits: .oneAndHalf, flowControl: .xonxoff)
    #expect(odd == expected)
  }

  @Test("has a word for each behaviour of the port")
  func port() throws {
    let port = try settings("?dtr=on&rts=off&hupcl=yes&exclusive=no&low-latency=no")
    #expect(port.dtr == true && port.rts == false && port.hangsUpOnClose)
    #expect(!port.isExclusive && !port.isLowLatency)
  }

  @Test("may have a meaningless host, and the bit rate in place of the port number")
  func seedForm() throws {
    let url = try EndpointURL("tty://any:19200/dev/cu.x")
    #expect(TTYSettings(url).line.bitsPerSecond == 19200)
    #expect(try TTYConnector(url).node == "/dev/cu.x")
  }

  @Test("has a word for RS-485 and its delays")
  func rs485() throws {
    #expect(try settings("").rs485 == nil && settings("?rs485=off").rs485 == nil)
    #expect(try settings("?rs485=rts-after-send").rs485 == RS485(rtsIsUpOnSend: false))
    let full = try settings("?rs485=rts-on-send&rs485-delay-before=5ms&rs485-delay-after=1s").rs485
    #expect(full == RS485(rtsIsUpOnSend: true, delayBefore: .milliseconds(5), delayAfter: .seconds(1)))
    let problem = #expect(throws: URLProblem.self) { try settings("?rs485-delay-after=1ms") }
    #expect(problem?.message == "rs485-delay-after: a delay needs rs485=rts-on-send or rs485=rts-after-send")
  }
}

@Suite("Line settings")
struct TTYModesTests {
  private static let formatBits = CSIZE | PARENB | PARODD | CMSPAR | CSTOPB | HUPCL | Int32(bitPattern: CRTSCTS)

  private static let formats: [(LineSettings, Int32)] = [
    (LineSettings(), CS8),
    (LineSettings(dataBits: 5), CS5),
    (LineSettings(dataBits: 6), CS6),
    (LineSettings(dataBits: 7), CS7),
    (LineSettings(parity: .even), CS8 | PARENB),
    (LineSettings(parity: .odd), CS8 | PARENB | PARODD),
    (LineSettings(parity: .mark), CS8 | PARENB | PARODD | CMSPAR),
    (LineSettings(parity: .space), CS8 | PARENB | CMSPAR),
    (LineSettings(stopBits: .two), CS8 | CSTOPB),
    (LineSettings(dataBits: 5, stopBits: .oneAndHalf), CS5 | CSTOPB),
    (LineSettings(flowControl: .rtscts), CS8 | Int32(bitPattern: CRTSCTS)),
    (LineSettings(flowControl: .xonxoff), CS8),
  ]

  @Test("set exactly the flags that termios has for them, whatever was set before", arguments: formats)
  func flags(settings: LineSettings, flags: Int32) throws {
    var before = linux_termios()
    before.cflag = .max
    before.iflag = .max
    for hangsUp in [false, true] {
      let modes = try #require(settings.modes(from: before, hangUpOnClose: hangsUp))
      #expect(Int32(bitPattern: modes.cflag) & Self.formatBits == flags | (hangsUp ? HUPCL : 0))
      #expect(Int32(bitPattern: modes.cflag) & (CREAD | CLOCAL) == CREAD | CLOCAL)
      #expect(modes.iflag == (settings.flowControl == .xonxoff ? UInt32(IXON | IXOFF) : 0))
      #expect(LineSettings(modes) == settings)
    }
  }

  @Test("make the line raw and let a read return from the first byte on")
  func raw() throws {
    var before = linux_termios()
    before.oflag = .max
    before.lflag = .max
    before.time = 7
    let modes = try #require(LineSettings().modes(from: before, hangUpOnClose: false))
    #expect(modes.oflag == 0 && modes.lflag == 0 && modes.min == 1 && modes.time == 0)
  }

  @Test("take any bit rate, both ways", arguments: [1, 9600, 250_000, 4_294_967_295] as [UInt32])
  func rates(rate: UInt32) throws {
    let modes = try #require(LineSettings(bitsPerSecond: rate).modes(from: linux_termios(), hangUpOnClose: false))
    #expect(modes.input_rate == rate && modes.output_rate == rate)
  }

  @Test(
    "that no UART supports are refused",
    arguments: [
      LineSettings(dataBits: 9), LineSettings(dataBits: 4), LineSettings(stopBits: .oneAndHalf),
      LineSettings(bitsPerSecond: 0),
    ])
  func impossible(settings: LineSettings) {
    #expect(settings.modes(from: linux_termios(), hangUpOnClose: false) == nil)
  }
}
