// Which configuration `serve` and `check` read.

import CommandArguments
import GatewayKit
import Glibc

struct ConfigFileArgument: ParameterGroup {
  @Argument(help: "The configuration.", completion: .files(["yaml"]))
  var file: String?
  @Option(
    short: "c",
    help: "The same. Without either: config.yaml in this folder, and if there is none, \(systemConfig).",
    value: "file", completion: .files(["yaml"]))
  var config: String?

  func validate() throws { try requireOne(file, config) }

  /// The path; prints what is missing, and throws exit code 78, if none is named and there is none at the usual places.
  func path() throws -> String {
    if let path = file ?? config { return path }
    // One that can't be read exists, too: passing it over would serve something else than was meant.
    if let path = ["config.yaml", systemConfig].first(where: exists) { return path }
    say("baudway: no configuration: neither config.yaml in this folder nor \(systemConfig) exists; use --config FILE")
    throw ExitCode(EX_CONFIG)
  }

  /// For `check`: returns warnings, too.
  func examine() throws -> (config: Config, warnings: [ConfigProblem]) {
    let path = try path()
    return try printingProblems { () throws(ConfigProblems) in
      try ConfigFile.examine(path: path, environment: environment())
    }
  }

  /// Returns the configuration and warnings, or prints all its problems on standard error and throws exit code 78.
  func load(_ path: String, refusingWritable: Bool) throws -> (config: Config, warnings: [ConfigProblem]) {
    try printingProblems { () throws(ConfigProblems) in
      try ConfigFile.load(path: path, environment: environment(), refusingWritable: refusingWritable)
    }
  }

  private func printingProblems<Result>(_ read: () throws(ConfigProblems) -> Result) throws -> Result {
    do {
      return try read()
    } catch {
      say("\(error)")
      throw ExitCode(EX_CONFIG)
    }
  }

  private func exists(_ path: String) -> Bool {
    var status = stat()
    return lstat(path, &status) == 0
  }
}

/// The configuration of the service.
let systemConfig = "/etc/baudway/config.yaml"

func requireOne(_ file: String?, _ config: String?) throws {
  if file != nil && config != nil { throw UsageError("the configuration is named twice: FILE and --config") }
}
