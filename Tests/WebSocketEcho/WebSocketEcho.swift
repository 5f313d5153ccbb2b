// `websocket-echo`: sends each message back, with the gateway's own WebSocket code. Conformance suites use it as a
// server, or with --connect as the client of Autobahn's fuzzing server.

import ByteStreams
import CommandArguments
import Dispatch
import Glibc
import StreamTLS
import StreamWebSocket

@main
struct WebSocketEcho: Command {
  static let help = CommandHelp(
    "run", "Echoes WebSocket messages; a server for conformance suites, or a client of Autobahn's fuzzing server.")

  static func main() {
    let program = Program(
      "websocket-echo", "Echoes WebSocket messages.", version: "of the tests", commands: [WebSocketEcho.self])
    do {
      switch try program.read(["run"] + CommandLine.arguments.dropFirst()) {
      case .run(let command): try command.run()
      case .print(let text): print(text)
      }
    } catch let error as UsageError {
      fail(error.text)
    } catch {
      fail(error)
    }
  }

  @Option(help: "Listen on this port of 127.0.0.1; 0 picks one. It is printed once it listens.")
  var port: UInt16?

  @Option(
    help: "Instead: run all cases of the fuzzing server at this address, such as 127.0.0.1:9001.", value: "address")
  var connect: String?

  @Option(help: "What this client calls itself in the fuzzing server's report.")
  var agent = "baudway"

  @Flag(help: "Agree to permessage-deflate, or offer it.")
  var deflate

  @Option(help: "Listen with TLS, with this certificate.", value: "file", completion: .files())
  var certificate: String?

  @Option(help: "The certificate's key.", value: "file", completion: .files())
  var key: String?

  @Option(
    help: "With --connect: over TLS, to a server that this authority vouches for.", value: "file", completion: .files())
  var ca: String?

  func validate() throws {
    guard (port == nil) != (connect == nil) else { throw UsageError("either --port or --connect is needed") }
    guard (certificate == nil) == (key == nil) else { throw UsageError("--certificate and --key need each other") }
    guard connect == nil ? ca == nil : certificate == nil else {
      throw UsageError("--certificate goes with --port, --ca with --connect")
    }
  }

  func run() throws {
    let lane = try Lane("echo")
    let deflate = deflate ? DeflateSettings(windowBits: 15) : nil
    if let port {
      let context = try certificate.map { certificate in
        try TLSServerContext(.init(identities: [.init(certificate: certificate, key: key ?? "")]))
      }
      lane.post { lane in
        do {
          let server = try EchoServer(port: port, deflate: deflate, context, on: lane.poller)
          server.start()
          print("listening on \(server.address)")
          flushOutput()
        } catch {
          fail(error)
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
            exit(0)
          }
        } catch {
          fail(error)
        }
      }
    }
    dispatchMain()
  }
}

/// Prints why, and ends the program.
func fail(_ error: Any) -> Never {
  let line = Array("websocket-echo: \(error)\n".utf8)
  _ = write(STDERR_FILENO, line, line.count)
  exit(1)
}
