// What a config file refers to outside itself. The system's, or a world of their own for tests and fuzzers, in which no
// byte of a file can reach this machine.

import ByteStreams
import Glibc
import StreamBroker

struct Surroundings: Sendable {
  let environment: [String: String]
  /// Where `file:` paths begin: the directory of the config file.
  let directory: String
  /// The content of the file at a path, of at most so many bytes.
  var content: @Sendable (_ path: String, _ limit: Int) -> Result<[UInt8], SystemError> = { path, limit in
    do throws(SystemError) { return .success(try FileBytes.read(path, limit: limit)) } catch { return .failure(error) }
  }
  /// Whether this system has no such user or group, by name or number. One whose databases don't answer is believed.
  var lacksUser: @Sendable (_ name: String) -> Bool = { name in
    isUnknown { () throws(OpenFailure) in _ = try NodeOwnership.user(name) }
  }
  var lacksGroup: @Sendable (_ name: String) -> Bool = { name in
    isUnknown { () throws(OpenFailure) in _ = try NodeOwnership.group(name) }
  }

  /// Owner and permissions of the file at a path; nil where there is none.
  var facts: @Sendable (_ path: String) -> FileFacts? = { FileFacts(path: $0) }
  /// Whether we may do anything, so that who changes our files may, too.
  var isRoot = geteuid() == 0

  init(environment: [String: String], directory: String) {
    self.environment = environment
    self.directory = directory
  }
}

private func isUnknown(_ lookUp: () throws(OpenFailure) -> Void) -> Bool {
  do throws(OpenFailure) {
    try lookUp()
    return false
  } catch {
    return error.cause == nil
  }
}
