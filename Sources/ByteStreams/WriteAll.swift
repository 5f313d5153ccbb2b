// Writes output completely, where blocking does no harm: standard output, the log, files. Of the streams only
// BlockingStream uses it, on its queue.

import Glibc

/// Writes all of `bytes`. Blocks even if another program has made the descriptor non-blocking, as other users of a
/// terminal may.
package func writeAll(_ bytes: [UInt8], to raw: Int32) throws(SystemError) {
  var rest = bytes[...]
  while !rest.isEmpty {
    let count = rest.withUnsafeBytes { Glibc.write(raw, $0.baseAddress, $0.count) }
    if count > 0 {
      rest = rest.dropFirst(count)
    } else if count == 0 {
      throw SystemError("write", EIO)  // no kernel does this; a retry could loop for ever
    } else if errno == EAGAIN {
      var wait = pollfd(fd: raw, events: Int16(POLLOUT), revents: 0)
      poll(&wait, 1, 1000)
    } else if errno != EINTR {
      throw SystemError("write")
    }
  }
}
