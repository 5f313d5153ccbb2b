// Standard output for all commands: everything is printed, or the command fails.

import CommandArguments
import ByteStreams
import Glibc

/// Prints everything to standard output, or a line on standard error and throws the right exit code.
func put(_ bytes: some Sequence<UInt8>) throws {
  do throws(SystemError) {
    try writeAll(Array(bytes), to: STDOUT_FILENO)
  } catch {
    throw unwritten(error)
  }
}

/// Prints why output failed, as on a full disk. A reader that has closed the pipe needs no message.
func unwritten(_ error: SystemError) -> ExitCode {
  if error.errno != EPIPE { say("baudway: standard output: \(error)") }
  return ExitCode(EX_IOERR)
}

/// Whether standard output may be coloured: a terminal whose user has not forbidden it (no-color.org).
func hasColours() -> Bool {
  let environment = environment()
  return isatty(STDOUT_FILENO) == 1 && (environment["NO_COLOR"] ?? "").isEmpty && environment["TERM"] != "dumb"
}
