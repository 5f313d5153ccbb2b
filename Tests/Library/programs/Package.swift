// swift-tools-version: 6.2
// Programs that use the libraries as their users do.

import PackageDescription

func baudway(_ product: String) -> Target.Dependency { .product(name: product, package: "baudway") }

let package = Package(
  name: "programs",
  dependencies: [.package(name: "baudway", path: "../../..", traits: [])],
  targets: [
    .executableTarget(name: "talk", dependencies: [baudway("StreamBroker")]),
    .executableTarget(name: "off-lane", dependencies: [baudway("ByteStreams"), baudway("StreamBrokerCore")]),
    .executableTarget(name: "core-only", dependencies: [baudway("StreamBrokerCore")]),
    .executableTarget(name: "idle", dependencies: [baudway("StreamBrokerCore")]),
  ],
  swiftLanguageModes: [.v6]
)
