// The source of a running gateway's configuration: a file, and the environment given with it. The gateway reloads from
// it.

package struct ConfigSource: Sendable {
  package let path: String
  let environment: [String: String]
  private let refusesWritable: Bool

  /// With `refusesWritable`, `load` refuses a file that its group or others may write.
  package init(path: String, environment: [String: String], refusesWritable: Bool = false) {
    self.path = path
    self.environment = environment
    self.refusesWritable = refusesWritable
  }

  /// Reads the current file. Blocks: up to 30 s for a pipe, without end on a network file system that hangs.
  package func load() throws(ConfigProblems) -> (config: Config, warnings: [ConfigProblem]) {
    try ConfigFile.load(path: path, environment: environment, refusingWritable: refusesWritable)
  }

  /// The address of the control socket; nil when it is off.
  package func control(_ config: Config) -> ControlAddress? {
    ControlAddress(config.control.socket, configPath: path, environment: environment)
  }

  /// A second address at which commands find the control socket when they cannot read the file.
  func socketLink(for control: ControlAddress) -> ControlAddress? {
    ControlAddress.socketLink(for: control, configPath: path, environment: environment)
  }
}
