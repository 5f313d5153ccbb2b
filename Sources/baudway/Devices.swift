// `baudway devices`: what this machine has that a route can lead to.

import ArgumentParser
import GatewayKit

struct Devices: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Lists serial ports and Bluetooth adapters, as URLs to paste.",
    discussion: "Who holds a port is told of one's own programs; of everybody's to root.")

  @Flag(help: "One object of JSON, in one line.")
  var json = false

  func run() throws {
    let list = DeviceList.survey()
    let text = json ? list.json : list.lines(hasColours: hasColours()).joined(separator: "\n")
    try put((text + "\n").utf8)
  }
}
