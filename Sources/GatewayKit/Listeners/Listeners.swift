// The list of listener kinds: one line each.

enum Listeners {
  static func make(_ listen: Config.Listen, _ context: ListenerContext) -> any Listener {
    switch listen.scheme {
    case "tcp" where !listen.isGreeted: TCPListener(listen, context)
    case "tcp", "tls", "ws", "wss": GreetingListener(listen, context)
    case "unix": UnixListener(listen, context)
    case "pty": PtyListener(listen, context)
    case "rfcomm": RFCOMMListener(listen, context)
    default: preconditionFailure("the configuration lets no listener through that is not built")
    }
  }
}
