// Opens a URL many times and then does nothing, until its input ends. Tests/Library/idle measures it.
//   idle URL COUNT

@preconcurrency import Glibc  // stdout is a variable there
import StreamBrokerCore

await Task.detached {}.value  // starts what each program with async code has, so that 0 streams count it, too
let broker = Broker(CoreSchemes.all)
var streams: [StreamHandle] = []
for _ in 0..<(Int(CommandLine.arguments[2]) ?? 0) { streams.append(try await broker.connect(CommandLine.arguments[1])) }
print("open")
fflush(stdout)
withExtendedLifetime(streams) { _ = getchar() }
