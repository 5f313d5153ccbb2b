// `websocket-echo`: says back what it hears, message by message, on the gateway's own WebSocket code. For conformance suites: as a
// server, or with --connect as the client of Autobahn's fuzzing server.

import ArgumentParser
import ByteStreams
import Dispatch
import StreamTLS
import StreamWebSocket

@main
struct WebSocketEcho: ParsableCommand {
  static let configuration = CommandConfiguration(
    commandName: "websocket-echo",
    abstract: "Echoes WebSocket messages; a server for conformance suites, or a client of Autobahn's fuzzing server.")

  @Option(help: "Listen on this port of 127.0.0.1; 0 picks one. It is printed once it listens.")
  var port: UInt16?

  @Option(help: "Instead: run all cases of the fuzzing server at this address, such as 127.0.0.1:9001.")
  var connect: String?

  @Option(help: "What this client calls itself in the fuzzing server's report.")
  var agent = "baudway"

  @Flag(help: "Agree to permessage-deflate, or offer it.")
  var deflate = false

  @Option(parsing: .upToNextOption, help: ArgumentHelp("Listen with TLS.", valueName: "certificate key"))
  var tls: [String] = []

  @Option(
    help: ArgumentHelp(
      "With --connect: over TLS, to a server that this authority vouches for.", valueName: "certificate"))
  var ca: String?

  func validate() throws {
    guard (port == nil) != (connect == nil) else { throw ValidationError("Either --port or --connect is needed.") }
    guard tls.isEmpty || tls.count == 2 else {
      throw ValidationError("--tls takes two files: a certificate and its key.")
    }
    guard connect == nil ? ca == nil : tls.isEmpty else {
      throw ValidationError("--tls goes with --port, --ca with --connect.")
    }
  }

  func run() throws {
    let lane = try Lane("echo")
    let deflate = deflate ? DeflateSettings(windowBits: 15) : nil
    if let port {
      let context =
        try tls.isEmpty ? nil : TLSServerContext(.init(identities: [.init(certificate: tls[0], key: tls[1])]))
      lane.post { lane in
        do {
          let server = try EchoServer(port: port, deflate: deflate, context, on: lane.poller)
          server.start()
          print("listening on \(server.address)")
          flushOutput()
        } catch {
          WebSocketEcho.exit(withError: error)
        }
      }
    } else if let connect {
      let agent = agent
      var settings = TLSClientSettings()
      settings.ca = ca
      let context = try ca == nil ? nil : TLSClientContext(settings)
      lane.post { lane in
        do {
          try FuzzingClient(of: connect, context, agent: agent, deflate: deflate, on: lane.poller).start {
            WebSocketEcho.exit()
          }
        } catch {
          WebSocketEcho.exit(withError: error)
        }
      }
    }
    dispatchMain()
  }
}
