// swift-tools-version: 6.2
// The floors, bottom up: a target names only what lies below it; the build holds it to that
// (swift build --explicit-target-dependency-import-check error). Outside packages stay on floors 4 and 5.

import PackageDescription

let strict: [SwiftSetting] = [
  .swiftLanguageMode(.v6),
  .enableUpcomingFeature("ExistentialAny"),
  .enableUpcomingFeature("MemberImportVisibility"),
  .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
  .treatAllWarnings(as: .error),
]

// Tests/Fuzz/run sets this, for a build of its own: what is under test counts where an input leads (-sanitize=fuzzer).
let isFuzzing = Context.environment["BAUDWAY_FUZZ"] != nil
let tested = strict + (isFuzzing ? [.unsafeFlags(["-sanitize=fuzzer", "-parse-as-library"])] : [])

/// The same properties, driven by libFuzzer or by tests that replay files.
let fuzz: Target =
  isFuzzing
  ? .executableTarget(
    name: "Fuzz",
    dependencies: ["ByteStreams", "CLinux", "GatewayKit", "StreamBroker", "StreamBrokerBluetooth", "StreamWebSocket"],
    path: "Tests/Fuzz",
    exclude: ["Replay", "README.md", "run", "corpus", "found", "dictionaries"], sources: ["Properties", "Driver"],
    swiftSettings: strict, linkerSettings: [.unsafeFlags(["-sanitize=fuzzer", "-use-ld=lld"])])
  : .testTarget(
    name: "FuzzReplayTests",
    dependencies: ["ByteStreams", "CLinux", "GatewayKit", "StreamBroker", "StreamBrokerBluetooth", "StreamWebSocket"],
    path: "Tests/Fuzz",
    exclude: ["Driver", "README.md", "run", "corpus", "found", "dictionaries"], sources: ["Properties", "Replay"],
    swiftSettings: strict)

let package = Package(
  name: "baudway",
  products: [
    .executable(name: "baudway", targets: ["baudway"]),
    .executable(name: "websocket-echo", targets: ["websocket-echo"]),
    .library(name: "ByteStreams", targets: ["ByteStreams"]),
    .library(name: "StreamBroker", targets: ["StreamBroker"]),
    .library(name: "StreamBrokerBluetooth", targets: ["StreamBrokerBluetooth"]),
    .library(name: "StreamTLS", targets: ["StreamTLS"]),
    .library(name: "StreamWebSocket", targets: ["StreamWebSocket"]),
  ],
  dependencies: [
    .package(url: "https://github.com/apple/swift-argument-parser", from: "1.8.0"),
    .package(url: "https://github.com/apple/swift-log", from: "1.16.0"),
  ],
  targets: [
    // Floor 0: doors to C.
    .target(name: "CBluetooth", cSettings: [.define("_GNU_SOURCE")]),  // BlueZ's headers, nothing linked
    .target(name: "CLinux", cSettings: [.define("_GNU_SOURCE")]),
    .systemLibrary(name: "CYAML", pkgConfig: "yaml-0.1", providers: [.apt(["libyaml-dev"])]),
    .systemLibrary(name: "COpenSSL", pkgConfig: "openssl", providers: [.apt(["libssl-dev"])]),
    .systemLibrary(name: "CCrypt", providers: [.apt(["libcrypt-dev"])]),
    .systemLibrary(name: "CZlib", pkgConfig: "zlib", providers: [.apt(["zlib1g-dev"])]),

    // Floor 1: bytes, rings, lanes.
    .target(name: "ByteStreams", dependencies: ["CLinux"], swiftSettings: tested),

    // Floor 2: streams around streams.
    .target(name: "StreamTLS", dependencies: ["ByteStreams", "COpenSSL"], swiftSettings: tested),
    .target(name: "StreamWebSocket", dependencies: ["ByteStreams", "CZlib"], swiftSettings: tested),

    // Floor 3: a URL becomes an open stream.
    .target(
      name: "StreamBroker", dependencies: ["ByteStreams", "CLinux", "StreamTLS", "StreamWebSocket"],
      swiftSettings: tested),
    .target(
      name: "StreamBrokerBluetooth", dependencies: ["ByteStreams", "CBluetooth", "StreamBroker"], swiftSettings: tested),

    // Floor 4: the gateway.
    .target(
      name: "GatewayKit",
      dependencies: [
        "ByteStreams", "CCrypt", "CLinux", "CYAML", "StreamBroker", "StreamBrokerBluetooth", "StreamTLS",
        "StreamWebSocket",
        .product(name: "Logging", package: "swift-log"),
      ],
      swiftSettings: tested),

    // Floor 5: the command line.
    .executableTarget(
      name: "baudway",
      dependencies: [
        "ByteStreams", "CLinux", "GatewayKit", .product(name: "ArgumentParser", package: "swift-argument-parser"),
      ],
      swiftSettings: strict),

    .executableTarget(
      name: "websocket-echo",
      dependencies: [
        "ByteStreams", "CLinux", "StreamTLS", "StreamWebSocket",
        .product(name: "ArgumentParser", package: "swift-argument-parser"),
      ],
      swiftSettings: strict),

    // The library without the gateway: an example.
    .executableTarget(
      name: "stream-example", dependencies: ["ByteStreams", "StreamBroker", "StreamBrokerBluetooth"],
      swiftSettings: strict),

    // Tests.
    .target(
      name: "StreamTestKit", dependencies: ["ByteStreams", "CLinux", "COpenSSL", "StreamBroker"],
      path: "Tests/StreamTestKit", swiftSettings: strict),
    .testTarget(
      name: "ByteStreamsTests", dependencies: ["ByteStreams", "CLinux", "StreamTestKit"], swiftSettings: strict),
    .testTarget(
      name: "StreamTLSTests", dependencies: ["ByteStreams", "COpenSSL", "StreamTLS", "StreamTestKit"],
      swiftSettings: strict),
    .testTarget(
      name: "StreamWebSocketTests", dependencies: ["ByteStreams", "StreamTestKit", "StreamWebSocket"],
      swiftSettings: strict),
    .testTarget(
      name: "StreamBrokerTests",
      dependencies: ["ByteStreams", "CLinux", "StreamBroker", "StreamTLS", "StreamTestKit", "StreamWebSocket"],
      swiftSettings: strict),
    .testTarget(
      name: "StreamBrokerBluetoothTests",
      dependencies: ["ByteStreams", "CLinux", "StreamBroker", "StreamBrokerBluetooth", "StreamTestKit"],
      swiftSettings: strict),
    .testTarget(
      name: "GatewayKitTests",
      dependencies: [
        "ByteStreams", "CLinux", "GatewayKit", "StreamBroker", "StreamBrokerBluetooth", "StreamTestKit", "StreamTLS",
        "StreamWebSocket",
        .product(name: "Logging", package: "swift-log"),
      ],
      exclude: ["Golden"], swiftSettings: strict),
    fuzz,
  ]
)
