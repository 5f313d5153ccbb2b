// How commands find the running gateway and ask it, and what they say when there is none.

import ArgumentParser
import ByteStreams
import GatewayKit
import Glibc

/// For the commands that talk to a running gateway, beside the configuration that says where its control socket is.
struct ControlOption: ParsableArguments {
  @Option(
    help: ArgumentHelp(
      "The control socket, a path or @NAME for an abstract one. Else the configuration says where it is.",
      valueName: "address"))
  var control: String?
}

struct RunningGateway {
  let address: ControlAddress
  /// The file that said so.
  private let path: String?

  /// Throws when the configuration turns the socket off.
  init(_ option: ControlOption, config: String) throws {
    if let name = option.control {
      address = name.hasPrefix("@") ? .abstract(String(name.dropFirst())) : .path(name)
      path = nil
      return
    }
    // A file that was broken since says nothing against the gateway, which goes on with what it read before.
    let socket = ConfigFile.controlSocket(path: config, environment: environment()) ?? .automatic
    guard let address = ControlAddress(socket, configPath: config, environment: environment(), isAsking: true) else {
      say("baudway: the configuration turns the control socket off (control.socket)")
      throw ExitCode(EX_UNAVAILABLE)
    }
    self.address = address
    path = config
  }

  /// The answer, or a line on standard error and the exit code that fits.
  func ask(_ request: ControlRequest, within limit: Duration) throws -> [UInt8] {
    do throws(SystemError) {
      return try ControlClient.ask(request.line, at: address, within: limit)
    } catch {
      // Why this may be the wrong address.
      if let problems { say("\(problems)") }
      say(refusal(error))
      throw ExitCode(error.errno == EACCES ? EX_NOPERM : EX_UNAVAILABLE)
    }
  }

  /// What is wrong with the configuration.
  var problems: ConfigProblems? {
    guard let path else { return nil }
    do throws(ConfigProblems) {
      _ = try ConfigFile.load(path: path, environment: environment())
      return nil
    } catch {
      return error
    }
  }

  func refusal(_ error: SystemError) -> String {
    switch error.errno {
    case EACCES:
      let group = if case .path = address { ", as one of its group" } else { "" }
      return "baudway: you may not ask the gateway at \(address): \(error); ask as its user\(group) or as root"
    case EADDRINUSE: return "baudway: no gateway answers at \(address): another user has taken that name"
    default: return "baudway: no gateway answers at \(address): \(error)"
    }
  }
}
