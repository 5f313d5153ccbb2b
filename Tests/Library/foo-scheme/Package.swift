// swift-tools-version: 6.2
// A package with a scheme of its own. Yours has the URL of Baudway's repository instead of a path. Without traits
// SwiftPM leaves out the packages that only the gateway needs.

import PackageDescription

let package = Package(
  name: "foo-scheme",
  products: [.library(name: "FooScheme", targets: ["FooScheme"])],
  dependencies: [.package(name: "baudway", path: "../../..", traits: [])],
  targets: [
    .target(
      name: "FooScheme",
      dependencies: [
        .product(name: "ByteStreams", package: "baudway"), .product(name: "StreamBrokerCore", package: "baudway"),
      ]),
    .testTarget(
      name: "FooSchemeTests",
      dependencies: [
        "FooScheme", .product(name: "StreamBrokerCore", package: "baudway"),
        .product(name: "StreamConformanceKit", package: "baudway"),
      ]),
  ],
  swiftLanguageModes: [.v6]
)
