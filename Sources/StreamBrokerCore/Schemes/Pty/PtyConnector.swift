// pty:///run/baudway/modem0: a serial port for programs on this machine, made by us. The link exists while the stream
// is open. Programs read what is written to the stream, and the other way round.

import ByteStreams
import CLinux
import Dispatch
import Glibc

/// Makes pseudo-terminals with a symbolic link, for programs that open a serial port: `pty:///tmp/modem0` (pty(7)).
public struct PtyConnector: Connector {
  public static let grammar = EndpointSchemes.pty
  public static let isLine = true

  private let path: String
  private let line: LineSettings
  private let ownership: NodeOwnership
  private let device: DeviceQueue

  public init(_ url: EndpointURL) throws(URLProblem) {
    path = url.path
    line = LineSettings(url)
    ownership = NodeOwnership(url)
    device = DeviceQueue.of("pty \(url.path)")
  }

  private var folder: String { String(path[..<(path.lastIndex(of: "/") ?? path.startIndex)]) }

  /// The folder: usually the link can't be made because its folder does not exist yet.
  public var node: String? { folder.isEmpty ? nil : folder }

  public var realDevice: String? {
    FileSystem.realPath(folder.isEmpty ? "/" : folder).map { "pty://\($0)\(path.dropFirst(folder.count))" }
  }

  private struct Opened: Sendable {
    let pty: Pseudoterminal
    let name: PtyName
  }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    request.report?(.open(path))
    return device.open(path, on: poller) { [self] () -> Result<Opened, OpenFailure> in
      do throws(OpenFailure) {
        return .success(try make())
      } catch {
        return .failure(error)
      }
    } undo: {
      $0.name.remove()
    } _: { result in
      done(
        result.map { opened in
          PtyEndpointStream(opened.pty, on: poller, device: device) { opened.name.remove() }
        })
    }
  }

  /// Makes the link last: a program that finds it finds everything ready.
  private func make() throws(OpenFailure) -> Opened {
    let pty = try Pseudoterminal.make(line, ownership)
    return Opened(pty: pty, name: try PtyName.link(path, leadingTo: pty.path))
  }
}
