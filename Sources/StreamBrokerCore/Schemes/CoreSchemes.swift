// The schemes that need nothing but the kernel. To add one, add a folder beside this file, a line here, and its table
// in Grammar/EndpointSchemes.swift.

/// The schemes of this library, for programs that do without OpenSSL and zlib: `Broker(CoreSchemes.all)`.
public enum CoreSchemes {
  /// `tty`, `tcp`, `unix`, `pty`, `exec` and `sim`.
  public static let all: [any Connector.Type] = [
    TTYConnector.self,
    TCPConnector.self,
    UnixConnector.self,
    PtyConnector.self,
    ExecConnector.self,
    SimConnector.self,
  ]
}
