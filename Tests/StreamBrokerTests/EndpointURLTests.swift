// Which endpoint URLs are accepted, and the message for each that is refused.

import StreamBroker
import StreamTestKit
import Testing

@Suite("An endpoint URL")
struct EndpointURLTests {
  @Test(
    "has one canonical text for each way to write it",
    arguments: [
      ("tty:///dev/ttyUSB0?baud=115200", "tty:///dev/ttyUSB0?baud=115200"),
      ("tty://any:19200/dev/cu.x", "tty:///dev/cu.x?baud=19200"),
      ("tty://adapter:4000000/dev/ttyS0", "tty:///dev/ttyS0?baud=4000000"),
      ("tty://usb/0403:6001/A50285BI?baud=9600", "tty://usb/0403:6001/A50285BI?baud=9600"),
      ("tty://usb/1A86:55d4/X/2", "tty://usb/1a86:55d4/X/2"),
      ("tty://usb/1a86:55d4/a%2fb%20%25%26/12", "tty://usb/1a86:55d4/a%2Fb%20%25%26/12"),
      ("tty:///dev/a?stop=1.5&data=5", "tty:///dev/a?data=5&stop=1.5"),
      ("tty:///dev/a%20b?exclusive=off", "tty:///dev/a%20b?exclusive=no"),
      ("TCP://Host.Local:4001", "tcp://host.local:4001"), ("tcp://[::1]:9000", "tcp://[::1]:9000"),
      ("tcp://[FE80::1%25eth0]:9000/", "tcp://[fe80::1%25eth0]:9000"),
      ("tcp://192.168.0.1:65535", "tcp://192.168.0.1:65535"),
      ("tls://h:1?verify=ca&ca=/etc/ca.pem", "tls://h:1?ca=/etc/ca.pem&verify=ca"),
      ("ws://h:8080/gps?subprotocol=binary", "ws://h:8080/gps?subprotocol=binary"), ("wss://h", "wss://h:443/"),
      ("rfc2217://h:2217?baud=9600&parity=even", "rfc2217://h:2217?baud=9600&parity=even"),
      ("unix:///path.sock", "unix:///path.sock"),
      ("rfcomm://00:0a:3a:22:68:73", "rfcomm://00:0A:3A:22:68:73"),
      ("rfcomm://00-0a-3a-22-68-73-3", "rfcomm://00:0A:3A:22:68:73:3"),
      ("rfcomm://00-0a-3a-22-68-73:30?security=high", "rfcomm://00:0A:3A:22:68:73:30?security=high"),
      ("ble://fff0:128/00:0a:3a:22:68:73", "ble://FFF0:128/00:0A:3A:22:68:73"),
      ("ble://FFF0?name=a%26b", "ble://FFF0?name=a%26b"), ("ble://FFF0?name=Go%50ro%2A", "ble://FFF0?name=GoPro*"),
      (
        "ble://6e400001-b5a3-f393-e0a9-e50e24dcca9e/?profile=nus",
        "ble://6E400001-B5A3-F393-E0A9-E50E24DCCA9E?profile=nus"
      ),
      ("pty:///run/x?mode=0600", "pty:///run/x?mode=0600"), ("sim://nmea?rate=1", "sim://nmea?rate=1"),
      ("exec:/usr/bin/prog?arg=-v&arg=a%20b%3F", "exec:/usr/bin/prog?arg=-v&arg=a%20b%3F"),
      ("exec:///usr/bin/prog", "exec:/usr/bin/prog"), ("exec:////usr/bin/prog", "exec:////usr/bin/prog"),
      ("exec:/x?arg=%C2%A0", "exec:/x?arg=%C2%A0"), ("tcp://[FE80::A%25enP2p1s0]:1", "tcp://[fe80::a%25enP2p1s0]:1"),
    ])
  func canonical(text: String, canonical: String) throws {
    let url = try EndpointURL(text)
    #expect(url.description == canonical)
    #expect(url.text == text)
    let again = try EndpointURL(canonical)
    #expect(again == url && again.description == canonical)
  }

  @Test("has the parts connectors ask for")
  func parts() throws {
    let tty = try EndpointURL("tty://any:4000000/dev/cu.x?exclusive=no&dtr=off")
    #expect(tty.scheme == "tty" && tty.port == 4_000_000 && tty.path == "/dev/cu.x" && tty.host == "")
    #expect(tty.integer("baud") == 4_000_000 && tty.flag("exclusive") == false && tty.string("dtr") == "off")
    #expect(tty.integer("data") == 8 && tty.flag("low-latency") == true && tty.string("stop") == "1")
    #expect(tty.duration("rs485-delay-before") == .zero && tty.string("unheard-of") == nil)
    #expect(tty.gives("dtr") && !tty.gives("rts"))
    let exec = try EndpointURL("exec:/bin/x?arg=1&arg=a%26b&arg=2")
    #expect(exec.path == "/bin/x" && exec.strings("arg") == ["1", "a&b", "2"])
    #expect(try EndpointURL("tcp://[::1]:9000").host == "::1")
    #expect(try EndpointURL("rfcomm://00-0a-3a-22-68-73-3").port == 3)
    #expect(try EndpointURL("ble://FFF0:128/00:0a:3a:22:68:73").path == "/00:0A:3A:22:68:73")
  }

  @Test(
    "that is wrong gives an error with the fault, its position, and a suggestion",
    arguments: [
      ("", 0, "empty; expected a URL such as tcp://host:4001"),
      ("tyy:///dev/x", 0, "unknown scheme 'tyy'; did you mean 'tty'?"),
      ("localhost:4001", 0, "unknown scheme 'localhost'; did you mean 'tcp://localhost:4001'?"),
      ("0.0.0.0:4001", 0, "no scheme; expected a URL such as tcp://host:4001; did you mean 'tcp://0.0.0.0:4001'?"),
      ("/dev/ttyS0", 0, "no scheme; expected a URL such as tcp://host:4001; did you mean 'tty:///dev/ttyS0'?"),
      (
        "tty:/dev/x", 4,
        "expected '//' after 'tty:', as in tty:///dev/ttyUSB0?baud=115200; did you mean 'tty:///dev/x'?"
      ),
      (
        "/dev/ttyUSB0,115200,8N1", 0,
        "no scheme; expected a URL such as tcp://host:4001; did you mean 'tty:///dev/ttyUSB0?baud=115200'?"
      ),
      ("ttyUSB0:9600", 0, "unknown scheme 'ttyusb0'; did you mean 'tty:///dev/ttyUSB0?baud=9600'?"),
      (
        "/dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0", 0,
        "no scheme; expected a URL such as tcp://host:4001; did you mean "
          + "'tty:///dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0'?"
      ),
      ("tcp:4001", 4, "expected '//' after 'tcp:', as in tcp://host:4001"),
      ("tcp:h:4001", 4, "expected '//' after 'tcp:', as in tcp://host:4001; did you mean 'tcp://h:4001'?"),
      ("tcp:://h:4001", 4, "expected '//' after 'tcp:', as in tcp://host:4001; did you mean 'tcp://h:4001'?"),
      ("ws:h/x?token=secret", 3, "expected '//' after 'ws:', as in ws://host:8080/gps"),
      ("unix:./lab.sock", 5, "expected '//' after 'unix:', as in unix:///run/x.sock"),
      ("unix://./lab.sock", 7, "unix takes no host, as in unix:///run/x.sock"),
      ("pty:gps", 4, "expected '//' after 'pty:', as in pty:///run/baudway/modem0"),
      ("pty://gps", 6, "pty takes no host, as in pty:///run/baudway/modem0"),
      ("pty://~/x", 6, "pty takes no host, as in pty:///run/baudway/modem0"),
      (
        "pty://run/x?mode=0600", 6,
        "pty takes no host, as in pty:///run/baudway/modem0; did you mean 'pty:///run/x?mode=0600'?"
      ),
      ("tty://dev/ttyS0", 6, "'dev' after two slashes is a host, not a directory; did you mean 'tty:///dev/ttyS0'?"),
      ("tty://any:19200", 15, "needs the absolute path of a file, as in tty:///dev/ttyUSB0?baud=115200"),
      ("tty:///dev/x?buad=9600", 13, "unknown parameter 'buad'; did you mean 'baud'?"),
      (
        "rfcomm://00:0A:3A:22:68:73?channel=3", 27,
        "write the channel after the address, as in rfcomm://00:0A:3A:22:68:73:3"
      ),
      (
        "rfcomm://ff-ff-ff-ff-ff-ff:1", 9,
        "'ff-ff-ff-ff-ff-ff:1' is not a Bluetooth address; expected one such as 00:0A:3A:22:68:73"
      ),
      (
        "ble://FFE0/00:00:00:00:00:00", 11,
        "'00:00:00:00:00:00' is not a Bluetooth address; expected one such as 00:0A:3A:22:68:73"
      ),
      ("ble://nus", 6, "'nus' is not a service; expected a UUID such as FFE0; 'baudway scan' lists nearby devices"),
      ("tty:///dev/x?baud=fast", 18, "baud: expected a whole number from 1 to 4294967295, not 'fast'"),
      ("tty:///dev/x?baud=0", 18, "baud: expected a whole number from 1 to 4294967295, not '0'"),
      (
        "tty:///dev/x?data=08", 18,
        "data: expected a whole number from 5 to 8, not '08'; did you mean '8'?"
      ),
      (
        "tty:///dev/x?parity=evn", 20,
        "parity: expected none, even, odd, mark or space, not 'evn'; did you mean 'even'?"
      ),
      ("tty:///dev/x?flow=dtrdsr", 18, "flow: Linux has no DTR/DSR flow control; use rtscts or xonxoff"),
      ("tty:///dev/x?baud=9600&stop=1.5", 28, "stop: 1.5 stop bits exist with data=5 only"),
      ("tty:///dev/x?baud=9600&baud=9600", 23, "'baud' is given twice"),
      ("tty://any:9600/dev/x?baud=9600", 26, "'baud' is given twice: as the port and by name"),
      ("tty:///dev/x?exclusive", 13, "exclusive: needs a value; expected yes or no (on or off), or strict"),
      (
        "tty:///dev/x?rs485-delay-before=1ms", 32,
        "rs485-delay-before: a delay needs rs485=rts-on-send or rs485=rts-after-send"
      ),
      (
        "tty://usb/0403-6001", 9,
        "not a USB identity; expected usb/VID:PID, usb/VID:PID/SERIAL or usb/VID:PID/SERIAL/INTERFACE"
      ),
      ("tcp://host", 10, "needs a port, as in tcp://host:4001"), ("tcp://:1", 6, "needs a host, as in tcp://host:4001"),
      ("tcp://h:0", 8, "port: expected a whole number from 1 to 65535, not '0'"),
      ("tcp://h:99999999999999999999", 8, "port: expected a whole number from 1 to 65535, not '99999999999999999999'"),
      ("tls://h:1/x", 9, "tls takes no path, as in tls://host:4001?ca=ca.pem"),
      ("sim://echo/x", 10, "sim takes no path, as in sim://nmea?rate=1"),
      // Not suggested: it would give a warning.
      ("tcp:h:4001/x", 4, "expected '//' after 'tcp:', as in tcp://host:4001"),
      ("tcp://h:1/%zz", 10, "broken %-escape; expected % and two hexadecimal digits (a % itself is %25)"),
      ("tcp://h:1?baud=1", 10, "unknown parameter 'baud'; tcp has none"),
      ("tcp://::1:9000", 6, "an IPv6 address needs brackets, as in tcp://[::1]:4001"),
      ("tcp://[::g]:1", 7, "'::g' is not an IPv6 address"), ("tcp://[::1:1", 6, "'[' without ']'"),
      ("tcp://1.2.3.256:1", 6, "'1.2.3.256' is not an IPv4 address"),
      // Unicode combines this letter and the slash into one character.
      ("tcp://\u{D4E}%2F:1", 6, "'\u{D4E}/' is not a host name or an address"),
      ("pty:///x?mode=+660", 14, "mode: expected permission bits in octal, such as 0660, not '+660'"),
      ("tcp://u:p@h:1", 9, "a URL takes no user name or password"),
      ("wss://u:p@h", 9, "a URL takes no user name or password here: use user=… and password=…"),
      ("ws://h?user=ada", 12, "user: a user needs a password: add password=…"),
      ("ws://h?user=a:b&password=p", 12, "user: a user's name must not contain a colon (RFC 7617)"),
      ("ws://h?password=geheim", 16, "password: a password needs a user: add user=…"),
      ("ws://h?token=t&user=u&password=p", 13, "token: a token replaces user and password: remove one or the other"),
      ("ws://h?token=two%20words", 13, "token: a bearer token must be ASCII, without spaces"),
      ("ws://h?deflate=maybe", 15, "deflate: expected yes or no (on or off), not 'maybe'"),
      ("tcp://h%zz:1", 7, "broken %-escape; expected % and two hexadecimal digits (a % itself is %25)"),
      ("unix:///a%2", 9, "broken %-escape; expected % and two hexadecimal digits (a % itself is %25)"),
      ("unix:///a%ff", 9, "%-escapes that are not UTF-8"), ("unix:///a%00", 9, "%-escape of a control character"),
      ("unix:///a\u{0}", 9, "control character \\0 in a URL"), ("unix:///a\n", 9, "control character \\n in a URL"),
      ("unix:///a b", 9, "space in a URL; write an intended space as %20; did you mean 'unix:///a%20b'?"),
      (
        "unix:///a#b", 9,
        "'#' in a URL; a comment needs a space before it, and a '#' within the URL is written %23; did you mean 'unix:///a #b'?"
      ),
      ("unix://run/x", 7, "unix takes no host, as in unix:///run/x.sock; did you mean 'unix:///run/x'?"),
      ("sim://nmae", 6, "unknown sim 'nmae'; expected echo, nmea, console, flood or sink; did you mean 'nmea'?"),
      ("sim://echo?rate=2", 16, "rate: only sim://nmea has a rate"),
      (
        "rfcomm://00:0a:3a:22:68", 9,
        "'00:0a:3a:22:68' is not a Bluetooth address; expected one such as 00:0A:3A:22:68:73"
      ),
      ("rfcomm://00:0a:3a:22:68:73:31", 27, "channel: expected a whole number from 1 to 30, not '31'"),
      (
        "ble://FFF0/6e400001-b5a3-f393-e0a9-e50e24dcca9e", 11,
        "a device UUID, as Apple systems generate them, is not valid here; 'baudway scan' shows the device's address"
      ),
      (
        "ble://A0:B1:C2:D3:E4:F5", 6,
        "a device address in the place of the service; expected ble://SERVICE/A0:B1:C2:D3:E4:F5"
      ),
      ("ble://FFE0?name=*", 16, "name: '*' alone fits every device; write how the name begins, as in GoPro*"),
    ])
  func wrong(text: String, offset: Int, message: String) {
    let problem = #expect(throws: URLProblem.self) { try EndpointURL(text) }
    #expect(problem?.description == message)
    #expect(problem?.offset == offset)
  }

  @Test(
    "may have a path that its scheme does not have: a warning has its position and the URL to write instead",
    arguments: [
      ("tcp://H:4001/foo", 12, "tcp takes no path: '/foo' is ignored; write tcp://h:4001"),
      ("tcp://[::1]:9000//a/b", 16, "tcp takes no path: '//a/b' is ignored; write tcp://[::1]:9000"),
      (
        "rfcomm://00-0a-3a-22-68-73-3/x", 28,
        "rfcomm takes no path: '/x' is ignored; write rfcomm://00:0A:3A:22:68:73:3"
      ),
      (
        "rfcomm://00:0a:3a:22:68:73/%20x?security=high", 26,
        "rfcomm takes no path: '/%20x' is ignored; write rfcomm://00:0A:3A:22:68:73?security=high"
      ),
    ])
  func ignoredPath(text: String, offset: Int, message: String) throws {
    let url = try EndpointURL(text)
    #expect(url.warnings.map(\.description) == [message])
    #expect(url.warnings.map(\.offset) == [offset])
    let instead = try EndpointURL(String(message[message.firstRange(of: "write ")!.upperBound...]))
    #expect(instead == url && instead.description == url.description && instead.warnings.isEmpty)
    #expect(url.path == "" && url.device == instead.device)
    #expect(url.resolvingPaths(from: "/etc").warnings == url.warnings)
  }

  @Test("whose path is ignored has only the parameters of its text in the URL to write instead")
  func ignoredPathBeside() {
    let parsed = EndpointURL.parse(
      "rfcomm://00:0a:3a:22:68:73/x?security=high", beside: [("adapter", "hci1")])
    #expect(
      parsed.url?.warnings.map(\.message) == [
        "rfcomm takes no path: '/x' is ignored; write rfcomm://00:0A:3A:22:68:73?security=high"
      ])
  }

  @Test("has no warning for a single slash, or if it has problems")
  func noWarning() throws {
    #expect(try EndpointURL("tcp://h:4001/").warnings.isEmpty)
    #expect(try EndpointURL("rfcomm://00:0a:3a:22:68:73/").warnings.isEmpty)
    #expect(EndpointURL.parse("tcp://h:0/x").problems.map(\.offset) == [8])
  }

  @Test(
    "of ea gives an error that names the URLs to use instead, with the device's address if it has one",
    arguments: [
      ("ea://com.x.y/AA:BB:CC:DD:EE:FF", "AA:BB:CC:DD:EE:FF"),
      ("ea://com.x.y/aa-bb-cc-dd-ee-ff?x=1", "AA:BB:CC:DD:EE:FF"),
      ("EA://AA:BB:CC:DD:EE:FF", "AA:BB:CC:DD:EE:FF"), ("ea://com.obdlink", "ADDRESS"),
      ("ea://com.obdlink/", "ADDRESS"), ("ea://com.obdlink:1/foo?AA:BB:CC:DD:EE:FF", "ADDRESS"), ("ea://", "ADDRESS"),
      ("ea:com.obdlink", "ADDRESS"), ("ea://com.obdlink/%zz", "ADDRESS"), ("ea://u@com.obdlink", "ADDRESS"),
    ])
  func accessory(text: String, address: String) {
    let answer =
      "ea does not work on Linux; use rfcomm://\(address), ble://SERVICE/\(address), or, for a device that speaks raw "
      + "bytes at its accessory service, rfcomm://\(address)?uuid=00000000-DECA-FADE-DECA-DEAFDECACAFF; "
      + "'baudway scan' lists nearby devices with their URLs"
    for built in [nil, ["tty", "tcp"]] as [Set<String>?] {
      let problems = EndpointURL.parse(text, beside: [("baud", "9600")], built: built).problems
      #expect(problems.map(\.description) == [answer])
      #expect(problems.map(\.offset) == [0])
    }
  }

  @Test("reports all its problems, in order")
  func all() {
    let parsed = EndpointURL.parse("tty:///dev/x?buad=1&data=9&flow=dtrdsr&parity=x")
    #expect(parsed.url == nil)
    #expect(parsed.problems.map(\.offset) == [13, 25, 32, 46])
  }

  @Test("accepts parameters given separately too, but each only once")
  func beside() {
    let good = EndpointURL.parse("tty:///dev/x?data=7", beside: [("baud", "9600"), ("dtr", "on")])
    #expect(good.url?.description == "tty:///dev/x?baud=9600&data=7&dtr=on")
    let bad = EndpointURL.parse("tty:///dev/x?data=7", beside: [("data", "8"), ("bauds", "9"), ("dtr", "yes")])
    #expect(bad.problems.map(\.beside?.index) == [0, 1, 2])
    #expect(bad.problems.map(\.beside?.isValue) == [false, false, true])
    #expect(
      bad.problems.map(\.description) == [
        "'data' is given twice", "unknown key 'bauds'; did you mean 'baud'?",
        "dtr: expected keep, on or off, not 'yes'",
      ])
  }

  @Test("of a scheme missing in this build reports that if asked")
  func later() {
    let parsed = EndpointURL.parse("ble://FFF0", built: ["tty", "tcp", "sim"])
    #expect(parsed.problems.map(\.description) == ["scheme 'ble' is not in \(Version.name)"])
    #expect(EndpointURL.parse("sim://echo", built: ["tty", "tcp", "sim"]).problems.isEmpty)
  }

  @Test("of an unknown scheme gives an error with this build's schemes")
  func unknown() {
    let parsed = EndpointURL.parse("carrier-pigeon://x", built: ["tty", "tcp"])
    #expect(parsed.problems.map(\.description) == ["no scheme; expected a URL such as tcp://host:4001"])
    let known = EndpointURL.parse("pigeon://x", built: ["tty", "tcp"])
    #expect(known.problems.map(\.description) == ["unknown scheme 'pigeon'; expected tty or tcp"])
  }

  @Test("of more than 4096 bytes is not parsed")
  func length() {
    let text = "exec:///" + String(repeating: "a", count: 4088)
    #expect(EndpointURL.parse(text).problems.isEmpty)
    #expect(EndpointURL.parse(text + "a").problems.map(\.description) == ["longer than 4096 bytes"])
  }

  @Test("never shows a secret")
  func secrets() throws {
    let grammar = SchemeGrammar(
      "x", example: "x://", authority: .none, parameters: [.init("token", .secret, "for this test")])
    let url = try EndpointURL("x://?token=hunter2", schemes: [grammar])
    #expect(url.description == "x://?token=***")
    #expect(url.secret("token")?.reveal() == "hunter2")
    #expect(!"\(url.settings)".contains("hunter2"))
    var dumped = ""
    dump(url.settings, to: &dumped)
    #expect(!dumped.contains("hunter2"))
  }

  @Test("of a WebSocket that requires a log-in shows neither password nor token")
  func logIn() throws {
    let byName = try EndpointURL("wss://h/x?user=ada&password=geheim&deflate=yes")
    #expect(byName.description == "wss://h:443/x?user=ada&password=***&deflate=yes")
    #expect(byName.secret("password")?.reveal() == "geheim")
    #expect(try EndpointURL("ws://h?token=geheim").description == "ws://h:80/?token=***")
    #expect(try EndpointURL("ws://h?token=one") != EndpointURL("ws://h?token=other"), "a reload would not notice")
  }

  @Test("survives any damage to a good one", arguments: EndpointSchemes.all.map(\.example))
  func damage(example: String) {
    var random = SeededRandom()
    let odd: [Unicode.Scalar] = [":", "/", "?", "%", "&", "=", "[", "]", "@", "\u{0}", "é", "0", "\u{202e}", "-", "."]
    for _ in 0..<2000 {
      var scalars = Array(example.unicodeScalars)
      for _ in 0..<Int.random(in: 1...3, using: &random) {
        let place = scalars.indices.randomElement(using: &random) ?? 0
        switch Int.random(in: 0..<3, using: &random) {
        case 0 where !scalars.isEmpty: scalars.remove(at: place)
        case 1: scalars.insert(odd.randomElement(using: &random)!, at: place)
        default: scalars = Array(scalars.prefix(place))
        }
      }
      var text = String.UnicodeScalarView()
      text.append(contentsOf: scalars)
      let parsed = EndpointURL.parse(String(text))
      #expect(parsed.problems.allSatisfy { (0...scalars.count).contains($0.offset) }, "\(String(text))")
      if let url = parsed.url {
        #expect((try? EndpointURL(url.description)) == url, "\(String(text)) → \(url)")
      }
    }
  }

  @Test("has good defaults and a parsable example in every table", arguments: EndpointSchemes.all.map(\.scheme))
  func tables(scheme: String) throws {
    let grammar = try #require(EndpointSchemes.grammar(scheme))
    if scheme != "ea" { #expect(throws: Never.self) { try EndpointURL(grammar.example) } }
    for parameter in grammar.parameters {
      guard let standard = parameter.standard else { continue }
      let value = try parameter.kind.read(standard)
      #expect(value.description == standard && parameter.support.grants(standard), "\(scheme) \(parameter.name)")
    }
  }
}
