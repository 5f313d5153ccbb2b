// The numbers of telnet: commands (RFC 854) and the options that Baudway has.

/// A command, after the byte IAC (255).
package enum TelnetCommand: UInt8, Sendable {
  /// Ends a subnegotiation.
  case subnegotiationEnd = 240
  case noOperation = 241
  /// The break key. A serial port sends a break.
  case breakKey = 243
  case areYouThere = 246
  case subnegotiation = 250
  case will = 251
  case wont = 252
  case `do` = 253
  case dont = 254
  /// "Interpret as command"; twice, it is the data byte 255.
  case iac = 255
}

/// An option of RFC 856, 857, 858 or 2217. Others are refused.
package enum TelnetOption: UInt8, Sendable, CaseIterable {
  /// Data without the rules for CR (RFC 856).
  case binary = 0
  /// The sender echoes what it receives (RFC 857).
  case echo = 1
  /// Data without "go ahead" (RFC 858).
  case suppressGoAhead = 3
  /// A serial port's line (RFC 2217).
  case comPort = 44
}

/// The other side broke the rules in a way that nothing can be done about.
package struct TelnetFault: Error, Hashable, CustomStringConvertible {
  package let description: String
  init(_ description: String) { self.description = description }
}
