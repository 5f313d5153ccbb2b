// The command line: one file per command. Exit codes are those of sysexits(3).

import CommandArguments
import CLinux
import GatewayKit
import Glibc
import StreamBroker

@main
enum Baudway {
  static var program: Program {
    Program(
      "baudway", "Puts serial ports and Bluetooth devices on the network.", version: Version.text,
      commands: [
        Serve.self, Check.self, Status.self, Reload.self, Kick.self, Reset.self, Release.self, Reopen.self,
        Capture.self, Health.self, Devices.self, Scan.self, Connect.self, Import.self, HashPassword.self, Schema.self,
        Complete.self,
      ])
  }

  static func main() {
    // Lanes wander between Dispatch's threads. With an arena for each thread, a wave of clients would leave 1 MiB in
    // each, and each reserves 64 MiB of addresses. Few threads wait for the one arena: handshakes run on one lane, and
    // carrying bytes allocates nothing.
    linux_use_one_arena()
    openStandardDescriptors()
    // Swift finds them by /proc. Without words, a probe's `health` would print the help and succeed.
    let arguments = CommandLine.arguments
    guard !arguments.isEmpty else {
      say("baudway: can't read its own command line; is /proc mounted?")
      exit(EX_OSERR)
    }
    do {
      switch try program.read(Array(arguments.dropFirst()), columns: columns()) {
      case .run(let command): try command.run()
      case .print(let text): try put((text + "\n").utf8)
      }
    } catch let code as ExitCode {
      exit(code.code)
    } catch let error as UsageError {
      say("baudway: \(error.text)")
      exit(EX_USAGE)
    } catch {
      say("baudway: \(error)")
      exit(EX_SOFTWARE)
    }
  }
}

/// Opens /dev/null for each standard descriptor that our parent has closed. Otherwise the first socket or event counter
/// that we open would get that number, and text that we print would go into it. They are opened for reading only, so
/// that a closed input is at its end, and writing to a closed output is still an error.
private func openStandardDescriptors() {
  for number in STDIN_FILENO...STDERR_FILENO where fcntl(number, F_GETFD) < 0 {
    _ = open("/dev/null", O_RDONLY)  // the lowest number that is free: this one
  }
}

/// The width for help: that of the terminal, but no more than is easy to read.
private func columns() -> Int {
  var size = winsize()
  guard ioctl(STDOUT_FILENO, UInt(TIOCGWINSZ), &size) == 0, size.ws_col > 0 else { return 80 }
  return min(100, Int(size.ws_col))
}

/// Allows as many clients as the system permits: the soft limit is for programs that use select(2).
func raiseDescriptorLimit() {
  var limit = rlimit()
  guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return }
  limit.rlim_cur = limit.rlim_max
  setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
}

/// Ends the command with a message and exit code 71 where a limit of the process is too small for it.
func require(_ needs: StartupLimits) throws {
  do throws(StartShortage) {
    try needs.check()
  } catch {
    say("baudway: \(error)")
    throw ExitCode(EX_OSERR)
  }
}

/// Prints a line to standard error, for users at the terminal before there is a log.
func say(_ text: String) {
  let line = Array((text + "\n").utf8)
  _ = write(STDERR_FILENO, line, line.count)
}

/// The environment as a dictionary; the first of two settings of one name counts, as for getenv(3).
func environment() -> [String: String] {
  var settings: [String: String] = [:]
  var next = environ
  while let setting = next.pointee {
    // Not by Characters: this runs at every start.
    if let sign = strchr(setting, Int32(UInt8(ascii: "="))) {
      let name = String(decoding: UnsafeRawBufferPointer(start: setting, count: sign - setting), as: UTF8.self)
      if settings[name] == nil { settings[name] = String(cString: sign + 1) }
    }
    next += 1
  }
  return settings
}
