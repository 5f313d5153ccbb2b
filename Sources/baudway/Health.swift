// `baudway health`: for HEALTHCHECK and probes. Asks the running gateway; exit code 0 if it serves on all addresses.

import ArgumentParser
import GatewayKit

struct Health: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Asks the running gateway whether it serves on every address; exit code 0 or 1.",
    discussion: "Takes the same configuration file as the gateway, which says where its control socket is.")

  @OptionGroup var file: ConfigArgument

  func run() throws {
    // A file that was broken since says nothing against the gateway, which goes on with what it read before.
    let socket: Config.Control.Socket
    do {
      socket = try ConfigFile.load(path: file.config, environment: environment()).control.socket
    } catch {
      say("\(error)")
      socket = .automatic
    }
    guard let address = ControlAddress(socket, configPath: file.config, environment: environment()) else {
      say("baudway: the configuration turns the control socket off (control.socket)")
      throw ExitCode(1)
    }
    do {
      let answer = try ControlClient.ask("health", at: address)
      print(answer)
      guard answer.hasPrefix(#"{"healthy":true"#) else { throw ExitCode(1) }
    } catch let error as ExitCode {
      throw error
    } catch {
      say("baudway: no gateway answers at \(address): \(error)")
      throw ExitCode(1)
    }
  }
}
