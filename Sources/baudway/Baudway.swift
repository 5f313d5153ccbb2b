// The command line: one file per command. Exit codes are those of sysexits(3).

import ArgumentParser
import CLinux
import GatewayKit
import Glibc
import StreamBroker

@main
struct Baudway: ParsableCommand {
  static let configuration = CommandConfiguration(
    commandName: "baudway",
    abstract: "Puts serial ports and Bluetooth devices on the network.",
    version: "baudway \(Version.text)",
    subcommands: [
      Serve.self, Check.self, Status.self, Reload.self, Kick.self, Health.self, Devices.self, Scan.self,
      Connect.self, HashPassword.self, Schema.self,
    ])

  static func main() {
    // With an arena for each thread, and lanes wander between Dispatch's threads, a wave of clients leaves 1 MiB in each, and each
    // reserves 64 MiB of addresses. Few wait for the one: clients are greeted on one lane, and carrying bytes allocates nothing.
    linux_use_one_arena()
    openStandardDescriptors()
    do {
      var command = try parseAsRoot()
      try command.run()
    } catch {
      guard exitCode(for: error) == .success else { exit(withError: error) }
      // --help, --version
      do { try put((fullMessage(for: error) + "\n").utf8) } catch { exit(withError: error) }
    }
  }
}

/// Standard descriptors that whoever started us has closed lead to /dev/null: the first socket or event counter that we open would
/// get their numbers, and with them what is printed, or the bytes that a device is sent. Opened to be read only, so that a
/// closed input has ended, and writing to a closed output is the error that it was.
private func openStandardDescriptors() {
  for number in STDIN_FILENO...STDERR_FILENO where fcntl(number, F_GETFD) < 0 {
    _ = open("/dev/null", O_RDONLY)  // the lowest number that is free: this one
  }
}

/// The configuration file, for the commands that need one.
struct ConfigArgument: ParsableArguments {
  @Argument(help: "The configuration file.", completion: .file(extensions: ["yaml"]))
  var config = "config.yaml"

  /// The same for `check`, which says more.
  func examine() throws -> (config: Config, warnings: [ConfigProblem]) {
    do {
      return try ConfigFile.examine(path: config, environment: environment())
    } catch {
      say("\(error)")
      throw ExitCode(EX_CONFIG)
    }
  }

  /// The configuration, or all its problems on standard error and exit code 78.
  func load(refusingWritable: Bool = false) throws -> Config {
    do {
      return try ConfigFile.load(path: config, environment: environment(), refusingWritable: refusingWritable)
    } catch {
      say("\(error)")
      throw ExitCode(EX_CONFIG)
    }
  }
}

/// As many clients as the system allows us: the soft limit is for programs that use select(2).
func raiseDescriptorLimit() {
  var limit = rlimit()
  guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return }
  limit.rlim_cur = limit.rlim_max
  setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
}

/// Ends the command with a sentence and exit code 71 where a limit of the process is too small for it.
func require(_ needs: StartNeeds) throws {
  do throws(StartShortage) {
    try needs.check()
  } catch {
    say("baudway: \(error)")
    throw ExitCode(EX_OSERR)
  }
}

/// A line to standard error, for people at the terminal before there is a log.
func say(_ text: String) {
  let line = Array((text + "\n").utf8)
  _ = write(STDERR_FILENO, line, line.count)
}

/// The environment as a dictionary; the first of two settings of one name counts, as for getenv(3).
func environment() -> [String: String] {
  var settings: [String: String] = [:]
  var next = environ
  while let setting = next.pointee {
    let parts = String(cString: setting).split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
    if parts.count == 2, settings[String(parts[0])] == nil { settings[String(parts[0])] = String(parts[1]) }
    next += 1
  }
  return settings
}
