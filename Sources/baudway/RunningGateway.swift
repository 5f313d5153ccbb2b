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
  /// Where it may be, the likeliest first.
  private let addresses: [ControlAddress]
  /// The one that people are told of when there is nobody at any.
  private let usual: ControlAddress?
  /// The file that said so.
  private let path: String?

  /// Throws when the configuration turns the socket off.
  init(_ option: ControlOption, config: String) throws {
    if let name = option.control {
      addresses = [name.hasPrefix("@") ? .abstract(String(name.dropFirst())) : .path(name)]
      (path, usual) = (nil, addresses.first)
      return
    }
    // A file that was broken or removed since says nothing against the gateway, which goes on with what it read before.
    let socket = ConfigFile.controlSocket(path: config, environment: environment())
    addresses = ControlAddress.places(socket, configPath: config, environment: environment())
    path = config
    usual = ControlAddress(socket ?? .automatic, configPath: config, environment: environment(), isAsking: true)
    if addresses.isEmpty {
      say("baudway: the configuration turns the control socket off (control.socket)")
      throw ExitCode(EX_UNAVAILABLE)
    }
  }

  /// The answer, or a line on standard error and the exit code that fits.
  func ask(_ request: ControlRequest, within limit: Duration) throws -> [UInt8] {
    do throws(Refusal) {
      return try answer(request, within: limit)
    } catch {
      // Why this may be the wrong address.
      if let problems { say("\(problems)") }
      say(refusal(error))
      throw ExitCode(error.error.errno == EACCES ? EX_NOPERM : EX_UNAVAILABLE)
    }
  }

  /// Why nobody answered, at the first address or at the one where somebody was.
  struct Refusal: Error {
    let address: ControlAddress
    let error: SystemError
  }

  /// Asks at one place after the other, until somebody is there.
  func answer(_ request: ControlRequest, within limit: Duration) throws(Refusal) -> [UInt8] {
    var shown: Refusal?
    for address in addresses {
      do throws(SystemError) {
        return try ControlClient.ask(request.line, at: address, within: limit)
      } catch {
        let refusal = Refusal(address: address, error: error)
        guard error.call == "connect", [ENOENT, ECONNREFUSED, ENOTDIR].contains(error.errno) else { throw refusal }
        if shown == nil || address == usual { shown = refusal }
      }
    }
    throw shown ?? Refusal(address: .path(""), error: SystemError("connect", ENOENT))  // there is an address
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

  func refusal(_ refusal: Refusal) -> String {
    let (address, error) = (refusal.address, refusal.error)
    switch error.errno {
    case EACCES:
      let group = if case .path = address { ", as one of its group" } else { "" }
      return "baudway: you may not ask the gateway at \(address): \(error); ask as its user\(group) or as root"
    case EADDRINUSE: return "baudway: no gateway answers at \(address): another user has taken that name"
    default: return "baudway: no gateway answers at \(address): \(error)"
    }
  }
}
