// `baudway import`: makes a configuration from one of ser2net. Prints it, or writes a new file.

import CommandArguments
import ByteStreams
import GatewayKit
import Glibc

struct Import: Command {
  static let help = CommandHelp(
    "import", "Makes a configuration from one of ser2net.",
    discussion: """
      Reads ser2net.yaml, or ser2net.conf of older versions, and prints a configuration that 'baudway check' accepts. What has no \
      equivalent is a comment there, and a line on standard error with its place in ser2net's file. Exits with code 78 if no route can \
      be made. A connection that only some may use never becomes a route that is open to more.
      """)

  @Argument(help: "ser2net's configuration.", completion: .files(["yaml", "conf"]))
  var file: String
  @Option(
    short: "o", help: "The file to write. It must not exist: nothing is overwritten.", value: "file",
    completion: .files())
  var output: String?

  func run() throws {
    let made: Ser2netImport
    do {
      made = try Ser2netImport.convert(path: file, environment: environment())
    } catch {
      say("\(error)")
      throw ExitCode(EX_CONFIG)
    }
    if let output { try write(made.text, to: output) } else { try put(made.text.utf8) }
    if let lost = made.lost { say("\(lost)") }
    let place = output.map { ", in \($0); 'baudway check \($0)' shows \(made.routes == 1 ? "it" : "them")" } ?? ""
    say(
      "\(file): \(counted(made.routes, "route")) from \(counted(made.connections, "connection"))\(place); "
        + "\(counted(made.lostCount, "thing")) without an equivalent")
  }

  private func counted(_ number: Int, _ noun: String) -> String { "\(number) \(noun)\(number == 1 ? "" : "s")" }

  private func write(_ text: String, to path: String) throws {
    let raw = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o644)
    guard raw >= 0 else {
      let error = SystemError("open")
      say("baudway: \(path): \(error.errno == EEXIST ? "it exists, and nothing is overwritten" : "\(error)")")
      throw ExitCode(EX_CANTCREAT)
    }
    let file = Descriptor(owning: raw)
    do throws(SystemError) { try writeAll(Array(text.utf8), to: file.raw) } catch {
      unlink(path)
      say("baudway: \(path): \(error)")
      throw ExitCode(EX_IOERR)
    }
  }
}
