// What a command states about itself, and how a program finds the command that a user asked for.

/// One command. Its parameters are its properties with the wrappers `Argument`, `Option` and `Flag`, and those of its
/// properties that are a `ParameterGroup`, in the order of their declaration.
package protocol Command: SendableMetatype {
  static var help: CommandHelp { get }
  init()
  /// Checks what no parameter can know alone. Called before `run`, after all parameters have their values.
  /// Throws `UsageError`.
  func validate() throws
  func run() throws
}

extension Command {
  package func validate() throws {}
}

/// Parameters that several commands share.
package protocol ParameterGroup {
  /// Throws `UsageError`.
  func validate() throws
}

extension ParameterGroup {
  package func validate() throws {}
}

package struct CommandHelp: Sendable {
  let name: String
  let abstract: String
  let discussion: String
  let isHidden: Bool

  /// Of text, line ends count as spaces, and an empty line ends a paragraph. A hidden command is in no list.
  package init(_ name: String, _ abstract: String, discussion: String = "", isHidden: Bool = false) {
    self.name = name
    self.abstract = abstract
    self.discussion = discussion
    self.isHidden = isHidden
  }
}

/// The user's mistake: printed with the command's usage; exit code 64.
package struct UsageError: Error {
  package let text: String
  package init(_ text: String) { self.text = text }
}

/// Ends the program with this code; what was wrong is printed already.
package struct ExitCode: Error, Hashable {
  package let code: Int32
  package init(_ code: Int32) { self.code = code }
}
