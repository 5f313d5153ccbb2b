// Standard output, for all commands: what is printed there is printed whole, or the command has failed.

import ArgumentParser
import ByteStreams
import Glibc

/// Everything to standard output, or a line on standard error and the exit code that fits.
func put(_ bytes: some Sequence<UInt8>) throws {
  do throws(SystemError) {
    try writeAll(Array(bytes), to: STDOUT_FILENO)
  } catch {
    throw unwritten(error)
  }
}

/// Says why not everything could be printed, as of a full disk. Who reads it and has enough is nothing to complain about.
func unwritten(_ error: SystemError) -> ExitCode {
  if error.errno != EPIPE { say("baudway: standard output: \(error)") }
  return ExitCode(EX_IOERR)
}

/// Whether what goes to standard output may be coloured: a terminal whose user has not said no (no-color.org).
func hasColours() -> Bool {
  let environment = environment()
  return isatty(STDOUT_FILENO) == 1 && (environment["NO_COLOR"] ?? "").isEmpty && environment["TERM"] != "dumb"
}
