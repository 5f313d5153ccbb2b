// How commands find the running gateway and ask it, and their messages when there is none.

import ByteStreams
import CommandArguments
import GatewayKit
import Glibc

/// Says which gateway is meant, in commands with words of their own.
struct GatewayOptions: ParameterGroup {
  @Option(
    short: "c", help: "The gateway that was started with this configuration.", value: "file",
    completion: .files(["yaml"]))
  var config: String?
  @Option(help: "The gateway with this control socket: a path, or @NAME for an abstract one.", value: "address")
  var control: String?

  static let explanation = """
    Without a configuration and --control it is the gateway that runs on this machine. If several run, they are listed, and the exit \
    code is 64.
    """

  func gateway() throws -> RunningGateway { try RunningGateway(control: control, config: config) }
}

/// The same in the other commands, where a word alone is the configuration.
struct GatewayChoice: ParameterGroup {
  @Argument(help: "The gateway that was started with this configuration.", completion: .files(["yaml"]))
  var file: String?
  let options = GatewayOptions()

  func validate() throws { try requireOne(file, options.config) }

  func gateway() throws -> RunningGateway {
    try RunningGateway(control: options.control, config: file ?? options.config)
  }
}

struct RunningGateway {
  /// Addresses where the gateway may be, the likeliest first.
  private let addresses: [ControlAddress]
  /// The address that messages name when no gateway answers at any.
  private let usual: ControlAddress?
  /// The configuration file, if one was named.
  private let path: String?

  /// Throws, after a message, when the configuration turns the socket off, or no single gateway can be found.
  init(control: String?, config: String?) throws {
    if let name = control {
      addresses = [name.hasPrefix("@") ? .abstract(String(name.dropFirst())) : .path(name)]
      (path, usual) = (nil, addresses.first)
    } else if let config {
      // The file may be broken or removed by now; the gateway then still runs with what it read before.
      let socket = ConfigFile.controlSocket(path: config, environment: environment())
      addresses = ControlAddress.addresses(socket, configPath: config, environment: environment())
      path = config
      usual = ControlAddress(socket ?? .automatic, configPath: config, environment: environment(), isAsking: true)
      if addresses.isEmpty {
        say("baudway: the configuration turns the control socket off (control.socket)")
        throw ExitCode(EX_UNAVAILABLE)
      }
    } else {
      addresses = [try Self.onlyOne(GatewaySearch.all(environment: environment()))]
      (path, usual) = (nil, addresses.first)
    }
  }

  private static func onlyOne(_ found: [FoundGateway]) throws -> ControlAddress {
    let ours = found.filter(\.admits)
    if ours.count == 1 { return ours[0].address }
    if ours.count > 1 {
      say("baudway: several gateways run on this machine; say which one is meant:")
      for one in ours { say("  --control \(one.address)  (pid \(one.process): \(one.commandLine))") }
      throw ExitCode(EX_USAGE)
    }
    guard let other = found.first else {
      say("baudway: no gateway was found on this machine; --config FILE or --control ADDRESS names one")
      throw ExitCode(EX_UNAVAILABLE)
    }
    say(forbidden(other.address, SystemError("connect", EACCES)))
    throw ExitCode(EX_NOPERM)
  }

  /// Returns the answer, or prints a line on standard error and throws the right exit code.
  func ask(_ request: ControlRequest, within limit: Duration) throws -> [UInt8] {
    do throws(Refusal) {
      return try answer(request, within: limit)
    } catch {
      // Mistakes in the file may explain a wrong address.
      if let problems { say("\(problems)") }
      say(refusal(error))
      throw ExitCode(error.error.errno == EACCES ? EX_NOPERM : EX_UNAVAILABLE)
    }
  }

  /// Why there is no answer, at the first or usual address, or at one where a gateway is.
  struct Refusal: Error {
    let address: ControlAddress
    let error: SystemError
  }

  /// Hands each piece of the answer to `take`, and nil at its end or when nobody reads standard output any more, until it
  /// returns false.
  func follow(_ request: ControlRequest, _ take: ([UInt8]?) throws -> Bool) throws {
    let connection: DescriptorParcel
    do throws(Refusal) {
      connection = try onGateway { (address) throws(SystemError) in
        try ControlClient.begin(request.line, at: address, within: .seconds(2))
      }
    } catch {
      say(refusal(error))
      throw ExitCode(error.error.errno == EACCES ? EX_NOPERM : EX_UNAVAILABLE)
    }
    guard let socket = connection.take() else { return }
    try ControlClient.follow(socket, until: STDOUT_FILENO, take)
  }

  func answer(_ request: ControlRequest, within limit: Duration) throws(Refusal) -> [UInt8] {
    try onGateway { (address) throws(SystemError) in
      try ControlClient.ask(request.line, at: address, within: limit)
    }
  }

  /// Asks at one address after the other, until a gateway is found.
  private func onGateway<Answer>(_ ask: (ControlAddress) throws(SystemError) -> Answer) throws(Refusal) -> Answer {
    var shown: Refusal?
    for address in addresses {
      do throws(SystemError) {
        return try ask(address)
      } catch {
        let refusal = Refusal(address: address, error: error)
        // Another user may have taken an abstract name (EADDRINUSE); the gateway may be at the next address.
        guard error.call == "connect", [ENOENT, ECONNREFUSED, ENOTDIR, EADDRINUSE].contains(error.errno) else {
          throw refusal
        }
        if shown == nil || address == usual { shown = refusal }
      }
    }
    throw shown ?? Refusal(address: .path(""), error: SystemError("connect", ENOENT))  // `addresses` is not empty
  }

  /// The problems of the configuration.
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
    case EACCES: return Self.forbidden(address, error)
    case EADDRINUSE: return "baudway: no gateway answers at \(address): another user has taken that name"
    default: return "baudway: no gateway answers at \(address): \(error)"
    }
  }

  private static func forbidden(_ address: ControlAddress, _ error: SystemError) -> String {
    let group = address.group.map { ", as a member of group '\($0)'" } ?? ""
    return "baudway: no permission to use the gateway at \(address): \(error); run this as its user\(group) or as root"
  }
}

// MARK: - Completion

extension RunningGateway {
  /// The routes of the gateway that the words name, or of the only one.
  static func routes(_ words: CompletionContext) -> [Candidate] {
    snapshot(words)?.routes.map { Candidate($0.name, note: $0.endpoint) } ?? []
  }

  /// The sessions of the route that the words name, without those that they name already.
  static func sessions(_ words: CompletionContext) -> [Candidate] {
    guard let route = snapshot(words)?.routes.first(where: { $0.name == words.arguments.first }) else { return [] }
    return route.clients.filter { !words.arguments.dropFirst().contains("\($0.number)") }
      .map { Candidate("\($0.number)", note: $0.user ?? $0.address ?? $0.listener) }
  }

  /// A shell waits for it: it is silent, and takes a second at most.
  private static func snapshot(_ words: CompletionContext) -> Snapshot? {
    let (control, config) = (words.options["control"], words.options["config"])
    let found = GatewaySearch.all(environment: environment()).filter(\.admits)
    guard control != nil || config != nil || found.count == 1,
      let gateway = try? RunningGateway(control: control, config: config),
      let answer = try? gateway.answer(.status, within: .seconds(1))
    else { return nil }
    return Snapshot.read(answer)
  }
}
