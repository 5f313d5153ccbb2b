// Command lines of a program with every kind of parameter.

import Testing

@testable import CommandArguments

private struct Files: ParameterGroup {
  @Option(short: "c", help: "The file.", value: "file", completion: .files(["yaml"]))
  var config: String?

  func validate() throws { if config == "" { throw UsageError("--config is empty") } }
}

private struct Send: Command {
  enum Speed: String, CaseIterable, ParameterValue { case slow, fast }

  static let help = CommandHelp(
    "send", "Sends numbers.", discussion: "First\nparagraph.\n\nSecond paragraph.")

  @Argument(help: "Where to.", completion: .words(["here", "there"]))
  var place: String
  @Argument(help: "Numbers.", name: "number", completion: .found { [Candidate($0.arguments.joined(), note: "before")] })
  var numbers: [UInt64]
  @Option(short: "s", help: "How fast.")
  var speed = Speed.slow
  @Option(help: "How often.", value: "count")
  var times: Int?
  @Flag(help: "Without a word.")
  var isQuiet
  let files = Files()

  func validate() throws { if times == 13 { throw UsageError("13 is too unlucky") } }
  func run() throws {}
}

private struct Hidden: Command {
  static let help = CommandHelp("hidden", "In no list.", isHidden: true)
  func run() throws {}
}

private let program = Program("tool", "Does things.", version: "1.2.3", commands: [Send.self, Hidden.self])

private func send(_ words: String...) throws -> Send {
  guard case .run(let command) = try program.read(["send"] + words) else { throw UsageError("not run") }
  return try #require(command as? Send)
}

private func printed(_ words: String..., columns: Int = 80) throws -> String {
  guard case .print(let text) = try program.read(words, columns: columns) else { throw UsageError("not printed") }
  return text
}

private func refusal(_ words: String...) -> String {
  do {
    _ = try program.read(words)
    return ""
  } catch let error as UsageError {
    return String(error.text.prefix { $0 != "\n" })
  } catch { return "\(error)" }
}

@Suite("A command line")
struct CommandLineTests {
  @Test("fills parameters by place and by name, in any order")
  func fills() throws {
    var command = try send("here")
    #expect(command.place == "here" && command.numbers.isEmpty && command.speed == .slow && command.times == nil)
    #expect(!command.isQuiet && command.files.config == nil)
    command = try send(
      "--times", "3", "there", "1", "--is-quiet", "2", "-s", "fast", "--config=a=b", "18446744073709551615")
    #expect(
      command.place == "there" && command.numbers == [1, 2, .max] && command.speed == .fast && command.times == 3)
    #expect(command.isQuiet && command.files.config == "a=b")
    #expect(try send("x", "-cfile", "-s=fast").files.config == "file")
    #expect(try send("-").place == "-")
    #expect(try send("--", "--times").place == "--times")
    #expect(try send("x", "--times", "-5").times == -5)
  }

  @Test("is refused with the reason, and with what was probably meant")
  func refuses() {
    #expect(refusal("sned") == "command 'sned' does not exist; did you mean 'send'?")
    #expect(refusal("hiden") == "command 'hiden' does not exist")
    #expect(refusal("--versoin") == "option '--versoin' does not exist; did you mean '--version'?")
    #expect(refusal("send") == "PLACE is missing")
    #expect(refusal("send", "x", "1", "y") == "NUMBER…: 'y' is not a number from 0 to 18446744073709551615")
    #expect(refusal("send", "x", "--tmies", "1") == "option '--tmies' does not exist here; did you mean '--times'?")
    #expect(refusal("send", "x", "--times") == "--times needs a value: How often.")
    #expect(refusal("send", "x", "--times", "1", "--times", "1") == "--times is there twice")
    #expect(refusal("send", "x", "--is-quiet=yes") == "--is-quiet takes no value")
    #expect(refusal("send", "x", "-s", "fats") == "--speed: 'fats' is not slow or fast; did you mean 'fast'?")
    #expect(refusal("send", "x", "--times", "13") == "13 is too unlucky")
    #expect(refusal("send", "x", "-c", "") == "--config is empty")
    #expect(refusal("hidden", "x\u{1B}") == "'x\\u{1B}' is one word too many")
  }

  @Test("asks for the version and for help in each usual way")
  func asks() throws {
    #expect(try printed("-V") == "tool 1.2.3" && printed("--version") == "tool 1.2.3")
    let general = try printed()
    #expect(try [printed("-h"), printed("--help"), printed("help")].allSatisfy { $0 == general })
    for word in ["-h", "--help", "help"] { #expect(try printed("help", word) == general) }
    #expect(general.contains("\n  send  Sends numbers.\n") && !general.contains("hidden"))
    let send = try printed("help", "send")
    #expect(try [printed("send", "-h"), printed("send", "x", "--help")].allSatisfy { $0 == send })
    #expect(
      send == """
        Sends numbers.

        Usage: tool send [OPTION…] PLACE [NUMBER…]

          PLACE    Where to.
          NUMBER…  Numbers.

        Options:
          -s, --speed SPEED  How fast. Values: slow or fast. Default: slow.
          --times COUNT      How often.
          --is-quiet         Without a word.
          -c, --config FILE  The file.
          -h, --help         Prints this.

        First paragraph.

        Second paragraph.
        """)
    #expect(try printed("send", "-h", columns: 40).split(separator: "\n").allSatisfy { $0.count <= 46 })
    #expect(refusal("help", "sned") == "command 'sned' does not exist; did you mean 'send'?")
  }

  @Test("is completed: commands, options, their values, words and files")
  func completes() {
    func lines(_ words: String...) -> [String] { program.completions(of: words) }
    #expect(lines("") == ["send\tSends numbers.", "help\tExplains a command."])
    #expect(lines("--v") == ["--version\tPrints the version."])
    #expect(lines("help", "s") == ["send\tSends numbers."])
    #expect(lines("nonsense", "") == [])
    #expect(lines("send", "h") == ["here"])
    #expect(lines("send", "--times", "3", "t") == ["there"])
    #expect(lines("send", "here", "4", "") == ["here4\tbefore"])
    #expect(lines("send", "--t") == ["--times\tHow often."])
    #expect(lines("send", "--times", "3", "--t") == [])
    #expect(lines("send", "-s", "") == ["slow", "fast"])
    #expect(lines("send", "--speed=f") == ["--speed=fast"])
    #expect(lines("send", "-c", "x") == [":files\tyaml"])
    #expect(lines("send", "--", "--") == [])
    #expect(lines("hidden", "") == [])
  }

  @Test("is completed without what would control the terminal, or make another candidate")
  func harmless() {
    let candidate = Candidate("a\nb", note: "\u{1B}[2J\tx\n:files")
    #expect(candidate.word == "a\\nb" && candidate.note == "\\u{1B}[2J\\tx\\n:files")
  }

  @Test("is described for programs")
  func described() {
    let text = program.description
    #expect(
      text.contains(#""name":"send","abstract":"Sends numbers.","discussion":["First paragraph.","Second paragraph."]"#)
    )
    #expect(text.contains(#"{"kind":"option","name":"speed","value":"speed","help":"How fast.","isRequired":false,"#))
    #expect(text.contains(#""choices":["slow","fast"],"short":"s","default":"slow"}"#))
  }
}
