// Where a running gateway's configuration comes from: a file, the environment that was given to it, and what follows from
// both.

public struct ConfigSource: Sendable {
  public let path: String
  let environment: [String: String]
  private let refusesWritable: Bool

  /// With `refusesWritable` a file that others may write is not taken.
  public init(path: String, environment: [String: String], refusesWritable: Bool = false) {
    self.path = path
    self.environment = environment
    self.refusesWritable = refusesWritable
  }

  /// Reads the file as it is now. Blocks, without end where the file is a pipe or lies on a network.
  public func load() throws(ConfigProblems) -> Config {
    try ConfigFile.load(path: path, environment: environment, refusingWritable: refusesWritable)
  }

  /// Where the control socket is; nil when it is off.
  public func control(_ config: Config) -> ControlAddress? {
    ControlAddress(config.control.socket, configPath: path, environment: environment)
  }

  /// A second place where commands find the control socket when they can't read the file.
  func signpost(for control: ControlAddress) -> ControlAddress? {
    ControlAddress.signpost(for: control, configPath: path, environment: environment)
  }
}
