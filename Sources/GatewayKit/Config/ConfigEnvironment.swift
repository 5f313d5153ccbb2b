// Everything outside a config file that it refers to. Tests and fuzzers replace it, so that no byte of a file can reach
// this machine.

import ByteStreams
import Glibc
import StreamBroker
import StreamBrokerCore

struct ConfigEnvironment: Sendable {
  /// Environment variables of the process.
  let variables: [String: String]
  /// The directory of the config file, where relative paths start.
  let directory: String
  /// The content of the file at `path`; EFBIG beyond `limit` bytes.
  var content: @Sendable (_ path: String, _ limit: Int) -> Result<[UInt8], SystemError> = { path, limit in
    do throws(SystemError) { return .success(try FileBytes.read(path, limit: limit)) } catch { return .failure(error) }
  }
  /// Whether the system has no such user or group, by name or number. False when its database does not answer.
  var lacksUser: @Sendable (_ name: String) -> Bool = { name in
    isUnknown { () throws(OpenFailure) in _ = try NodeOwnership.user(name) }
  }
  var lacksGroup: @Sendable (_ name: String) -> Bool = { name in
    isUnknown { () throws(OpenFailure) in _ = try NodeOwnership.group(name) }
  }

  /// The names of files in a folder; empty if it can't be read.
  var names: @Sendable (_ folder: String) -> [String] = { ControlAddress.names(in: $0) }
  /// Owner and permissions of the regular file at `path`; nil where there is none.
  var facts: @Sendable (_ path: String) -> FileFacts? = { FileFacts(path: $0) }
  /// The same of a folder.
  var folderFacts: @Sendable (_ path: String) -> FileFacts? = { FileFacts(folder: $0) }
  /// The addresses of a host, if the machine knows them by itself: of a number, of a name in the hosts file, of its own
  /// names.
  var addresses: @Sendable (_ host: String) -> [SocketAddress] = { host in
    if let known = LocalNames.addresses(of: host) { return known }
    return MachineNames.own.contains { $0.lowercased() == host.lowercased() } ? LocalNames.interfaces() : []
  }
  /// The addresses of the machine's interfaces.
  var interfaces: @Sendable () -> [SocketAddress] = { LocalNames.interfaces() }
  /// Whether the process is root. A user that can change its files can then do what root can.
  var isRoot = geteuid() == 0

  /// Makes a path relative to the config file's directory.
  func resolved(_ path: String) -> String {
    path.hasPrefix("/") || directory == "." ? path : directory == "/" ? "/\(path)" : "\(directory)/\(path)"
  }

  init(variables: [String: String], directory: String) {
    self.variables = variables
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
