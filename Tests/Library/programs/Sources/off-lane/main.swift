// A mistake that compiles: the stream lives on the lane, and this code does not. It ends with the sentence that says
// so.

import ByteStreams
import StreamBrokerCore

let lane = try Lane("x")
let stream = try await Broker(CoreSchemes.all).open("sim://echo", on: lane)
stream.close()
