// `baudway devices`: lists what a route can lead to on this machine.

import CommandArguments
import GatewayKit

struct Devices: Command {
  static let help = CommandHelp(
    "devices", "Lists serial ports and Bluetooth adapters, as URLs to paste.",
    discussion: "Also shows which programs have a port open: your own, or all of them if you are root.")

  @Flag(help: "One object of JSON, in one line.")
  var json

  func run() throws {
    let list = DeviceList.survey()
    let text = json ? list.json : list.lines(hasColours: hasColours()).joined(separator: "\n")
    try put((text + "\n").utf8)
  }
}
