// For output that is to be whole, from where it is no harm to block: standard output, the log, files. Streams write otherwise.

import Glibc

/// Writes all of `bytes`. Blocks, also where somebody has made the descriptor non-blocking, as a terminal's other users may.
public func writeAll(_ bytes: [UInt8], to raw: Int32) throws(SystemError) {
  var rest = bytes[...]
  while !rest.isEmpty {
    let count = rest.withUnsafeBytes { Glibc.write(raw, $0.baseAddress, $0.count) }
    if count > 0 {
      rest = rest.dropFirst(count)
    } else if count == 0 {
      throw SystemError("write", EIO)  // no kernel does that, or it would be tried for ever
    } else if errno == EAGAIN {
      var wait = pollfd(fd: raw, events: Int16(POLLOUT), revents: 0)
      poll(&wait, 1, 1000)
    } else if errno != EINTR {
      throw SystemError("write")
    }
  }
}
