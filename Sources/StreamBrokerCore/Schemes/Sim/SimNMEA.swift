// sim://nmea?rate=1: a GPS receiver that moves slowly round a circle over Lake Zurich. Sends an RMC and a GGA sentence
// (NMEA 0183) `rate` times a second, with the machine's time. Like a real receiver it does not wait: sentences that are
// not read in time are lost, each as a whole.

import ByteStreams
import Glibc

struct SimNMEA: SimDevice {
  private static let mostKept = 4096  // bytes; half a minute at the rate of most receivers

  let period: Duration?
  private let rate: Double
  private let start: Double  // seconds since 1970
  private var ticks = 0
  private var output: [UInt8] = []

  /// `start` is the time of the first sentences, in seconds since 1970; by default now.
  init(rate: Double, start: Double? = nil) {
    self.rate = rate
    period = .nanoseconds(Int64(1_000_000_000 / rate))
    self.start = start ?? Double(time(nil))
  }

  var hasBytes: Bool { !output.isEmpty }
  var hasSpace: Bool { true }

  mutating func give(_ run: UnsafeMutableRawBufferPointer) -> Int {
    let count = min(run.count, output.count)
    run.copyBytes(from: output[..<count])
    output.removeFirst(count)
    return count
  }

  mutating func take(_ run: UnsafeRawBufferPointer) -> Int { run.count }

  mutating func tick() {
    let passed = Double(ticks) / rate
    ticks += 1
    let fix = Fix(at: start + passed, after: passed)
    let sentences = Self.framed(fix.rmc) + Self.framed(fix.gga)
    if output.count + sentences.count <= Self.mostKept { output += sentences }
  }

  /// "$…*hh\r\n", where hh is the exclusive or of the bytes between "$" and "*".
  static func framed(_ body: String) -> [UInt8] {
    let sum = body.utf8.reduce(0, ^)
    return Array("$\(body)*\(hex(sum))\r\n".utf8)
  }

  private static func hex(_ byte: UInt8) -> String {
    let text = String(byte, radix: 16, uppercase: true)
    return byte < 16 ? "0" + text : text
  }
}

/// The position and its movement: round a circle of 1 km radius in 10 minutes.
private struct Fix {
  private static let latitude = 47.2852  // degrees; south would be negative
  private static let longitude = 8.5653
  private static let radius = 1000.0  // metres
  private static let roundTrip = 600.0  // seconds
  private static let metresPerDegree = 111_320.0  // of latitude

  private let time: String  // hhmmss.ss
  private let date: String  // ddmmyy
  private let position: String  // ddmm.mmmm,N,dddmm.mmmm,E
  private let course: String  // degrees from north
  private let speed: String  // knots

  init(at moment: Double, after passed: Double) {
    let angle = 2 * Double.pi * (passed / Self.roundTrip)  // from north, clockwise
    let north = Self.latitude + Self.radius * cos(angle) / Self.metresPerDegree
    let stretch = Self.metresPerDegree * cos(Self.latitude * .pi / 180)
    let east = Self.longitude + Self.radius * sin(angle) / stretch
    position = "\(Self.degrees(north, width: 2)),N,\(Self.degrees(east, width: 3)),E"
    course = Self.fixed((angle * 180 / .pi + 90).truncatingRemainder(dividingBy: 360), decimals: 1, width: 5)
    speed = Self.fixed(2 * .pi * Self.radius / Self.roundTrip * 3600 / 1852, decimals: 1, width: 5)

    let hundredths = Int((moment * 100).rounded(.down))
    var seconds = time_t(hundredths / 100)
    var calendar = tm()
    gmtime_r(&seconds, &calendar)
    func two(_ number: Int32) -> String { number < 10 ? "0\(number)" : "\(number)" }
    time = "\(two(calendar.tm_hour))\(two(calendar.tm_min))\(two(calendar.tm_sec)).\(two(Int32(hundredths % 100)))"
    date = "\(two(calendar.tm_mday))\(two(calendar.tm_mon + 1))\(two(calendar.tm_year % 100))"
  }

  /// Recommended minimum: time, valid, place, speed, course, date.
  var rmc: String { "GPRMC,\(time),A,\(position),\(speed),\(course),\(date),,,A" }
  /// Fix: time, place, quality, satellites, dilution, altitude, height of the geoid.
  var gga: String { "GPGGA,\(time),\(position),1,08,0.9,408.2,M,47.5,M,," }

  /// ddmm.mmmm
  private static func degrees(_ value: Double, width: Int) -> String {
    let tenThousandths = Int((value * 60 * 10_000).rounded())  // of a minute
    let (degrees, minutes) = tenThousandths.quotientAndRemainder(dividingBy: 600_000)
    return padded(degrees, width: width) + fixed(Double(minutes) / 10_000, decimals: 4, width: 7)
  }

  /// With leading zeros up to `width` characters, including the point.
  private static func fixed(_ value: Double, decimals: Int, width: Int) -> String {
    var scale = 1
    for _ in 0..<decimals { scale *= 10 }
    let (whole, fraction) = Int((value * Double(scale)).rounded()).quotientAndRemainder(dividingBy: scale)
    return padded(whole, width: width - decimals - 1) + "." + padded(fraction, width: decimals)
  }

  private static func padded(_ number: Int, width: Int) -> String {
    let text = String(number)
    return String(repeating: "0", count: max(0, width - text.count)) + text
  }
}
