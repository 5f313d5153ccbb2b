// What `check` prints after the configuration: the most memory that clients can use, by the limits where `check` runs.

extension Config {
  package func costs(within limits: ProcessLimits) -> String {
    let routes = routes.map(\.worstCaseMemory).reduce(0) { $0.addingReportingOverflow($1).partialValue }
    let bound = HandshakeLimit(self, limits)
    let hasHandshakes = self.routes.flatMap(\.listen).contains(where: \.hasHandshake)
    let all = routes + (hasHandshakes ? bound.memory : 0)
    var lines: [String] = []
    if hasHandshakes {
      lines.append(
        "# handshakes: at most \(bound.most) unfinished at a time, \(bound.bytesEach >> 10) KiB each: "
          + "at most \(bound.memory >> 20) MiB")
      if let parts = bound.parts {
        lines.append(
          "#   by \(limits.descriptors) open files \(parts.byDescriptors), by \(limits.memory >> 20) MiB of memory "
            + "\(parts.byMemory); the limits are those of this command's environment")
      }
    }
    lines.append(
      "# memory: at most \((all + (1 << 20) - 1) >> 20) MiB for clients of all routes, in addition to the gateway's own"
    )
    return lines.joined(separator: "\n") + "\n"
  }
}
