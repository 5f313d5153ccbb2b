// swift-tools-version: 6.2
// The floors, bottom up: a target names only what lies below it; the build holds it to that
// (swift build --explicit-target-dependency-import-check error). Outside packages stay on floors 4 and 5; a program that
// uses the libraries says `traits: []`, and SwiftPM does not even fetch them (decision D10).

import PackageDescription

let strict: [SwiftSetting] = [
  .swiftLanguageMode(.v6),
  .enableUpcomingFeature("ExistentialAny"),
  .enableUpcomingFeature("MemberImportVisibility"),
  .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
  .treatAllWarnings(as: .error),
]

// Tests/Fuzz/run sets this, for a build of its own: what is under test counts where an input leads. With the value
// "address" it runs under AddressSanitizer, too. (One flag for both: of two -sanitize, only the last counts.)
let fuzzing = Context.environment["BAUDWAY_FUZZ"]
let isFuzzing = fuzzing != nil
let sanitizers = fuzzing == "address" ? "-sanitize=fuzzer,address" : "-sanitize=fuzzer"
let tested = strict + (isFuzzing ? [.unsafeFlags([sanitizers, "-parse-as-library"])] : [])

/// What each target is for stands in its folder; SwiftPM would warn of a file that it has no rule for.
let readme = ["README.md"]

/// The same properties, driven by libFuzzer or by tests that replay files.
let fuzz: Target =
  isFuzzing
  ? .executableTarget(
    name: "Fuzz",
    dependencies: [
      "ByteStreams", "CLinux", "GatewayKit", "StreamBroker", "StreamBrokerBluetooth", "StreamBrokerCore",
      "StreamTelnet", "StreamWebSocket",
    ],
    path: "Tests/Fuzz",
    exclude: ["Replay", "README.md", "run", "corpus", "found", "dictionaries"], sources: ["Properties", "Driver"],
    swiftSettings: strict, linkerSettings: [.unsafeFlags([sanitizers, "-use-ld=lld"])])
  : .testTarget(
    name: "FuzzReplayTests",
    dependencies: [
      "ByteStreams", "CLinux", "GatewayKit", "StreamBroker", "StreamBrokerBluetooth", "StreamBrokerCore",
      "StreamTelnet", "StreamTestKit", "StreamWebSocket",
    ],
    path: "Tests/Fuzz",
    exclude: ["Driver", "README.md", "run", "corpus", "found", "dictionaries"], sources: ["Properties", "Replay"],
    swiftSettings: strict)

/// Outside packages are for the gateway: without its trait SwiftPM does not resolve them.
func gateway(_ product: String, of package: String) -> Target.Dependency {
  .product(name: product, package: package, condition: .when(traits: ["Gateway"]))
}

let package = Package(
  name: "baudway",
  products: [
    .executable(name: "baudway", targets: ["baudway"]),
    .executable(name: "websocket-echo", targets: ["websocket-echo"]),
    .library(name: "ByteStreams", targets: ["ByteStreams"]),
    .library(name: "StreamBroker", targets: ["StreamBroker"]),
    .library(name: "StreamBrokerCore", targets: ["StreamBrokerCore"]),
    .library(name: "StreamBrokerBluetooth", targets: ["StreamBrokerBluetooth"]),
    .library(name: "StreamBrokerFoundation", targets: ["StreamBrokerFoundation"]),
    .library(name: "StreamConformanceKit", targets: ["StreamConformanceKit"]),  // for tests of schemes elsewhere
  ],
  traits: [
    .trait(name: "Gateway", description: "The gateway and its command line, with the packages that they need"),
    .default(enabledTraits: ["Gateway"]),
  ],
  dependencies: [
    // Exact: two builds of one commit are the same program.
    .package(url: "https://github.com/apple/swift-log", exact: "1.16.2")
  ],
  targets: [
    // Floor 0: C libraries.
    .target(name: "CBluetooth", cSettings: [.define("_GNU_SOURCE")]),  // BlueZ's headers, nothing linked
    .target(name: "CLinux", cSettings: [.define("_GNU_SOURCE")]),
    .target(name: "CAdminPage", exclude: ["page"]),  // the admin listener's page, and node-xterm's files
    .systemLibrary(name: "CYAML", pkgConfig: "yaml-0.1", providers: [.apt(["libyaml-dev"])]),
    .systemLibrary(name: "COpenSSL", pkgConfig: "openssl", providers: [.apt(["libssl-dev"])]),
    .systemLibrary(name: "CCrypt", providers: [.apt(["libcrypt-dev"])]),
    .systemLibrary(name: "CZlib", pkgConfig: "zlib", providers: [.apt(["zlib1g-dev"])]),

    // Floor 1: bytes, rings, lanes.
    .target(name: "ByteStreams", dependencies: ["CLinux"], exclude: readme, swiftSettings: tested),

    // Floor 2: streams around streams.
    .target(name: "StreamTLS", dependencies: ["ByteStreams", "COpenSSL"], exclude: readme, swiftSettings: tested),
    .target(name: "StreamTelnet", dependencies: ["ByteStreams"], exclude: readme, swiftSettings: tested),
    .target(name: "StreamWebSocket", dependencies: ["ByteStreams", "CZlib"], exclude: readme, swiftSettings: tested),

    // Floor 3: a URL becomes an open stream.
    .target(
      name: "StreamBrokerCore", dependencies: ["ByteStreams", "CLinux"], exclude: readme, swiftSettings: tested),
    .target(
      name: "StreamBroker",
      dependencies: ["ByteStreams", "StreamBrokerCore", "StreamTLS", "StreamTelnet", "StreamWebSocket"],
      exclude: readme,
      swiftSettings: tested),
    .target(
      name: "StreamBrokerBluetooth", dependencies: ["ByteStreams", "CBluetooth", "StreamBrokerCore"], exclude: readme,
      swiftSettings: tested),

    // Floor 4: Foundation's streams, for programs that have Foundation. The gateway does without.
    .target(
      name: "StreamBrokerFoundation", dependencies: ["StreamBroker", "StreamBrokerBluetooth"], exclude: readme,
      swiftSettings: strict),

    // Floor 4: the gateway.
    .target(
      name: "GatewayKit",
      dependencies: [
        "ByteStreams", "CAdminPage", "CCrypt", "CLinux", "CYAML", "CZlib", "StreamBroker", "StreamBrokerBluetooth",
        "StreamBrokerCore",
        "StreamTLS",
        "StreamTelnet",
        "StreamWebSocket",
        gateway("Logging", of: "swift-log"),
      ],
      exclude: readme, swiftSettings: tested),

    // Floor 4: command lines.
    .target(
      name: "CommandArguments", dependencies: ["StreamBrokerCore"], exclude: readme, swiftSettings: strict),

    // Floor 5: programs.
    .executableTarget(
      name: "baudway", dependencies: ["ByteStreams", "CLinux", "CommandArguments", "GatewayKit"], exclude: readme,
      swiftSettings: strict),

    .executableTarget(
      name: "websocket-echo",
      dependencies: ["ByteStreams", "CLinux", "CommandArguments", "StreamTLS", "StreamWebSocket"],
      path: "Tests/WebSocketEcho", swiftSettings: strict),

    // The library without the gateway: examples.
    .executableTarget(
      name: "serial-logger",
      dependencies: ["ByteStreams", "StreamBroker", "StreamBrokerBluetooth", "StreamBrokerCore"],
      path: "Sources/Examples/SerialLogger", swiftSettings: strict),
    .executableTarget(
      name: "obd2-reader", dependencies: ["ByteStreams", "StreamBroker", "StreamBrokerBluetooth", "StreamBrokerCore"],
      path: "Sources/Examples/OBDReader", swiftSettings: strict),
    .executableTarget(
      name: "join", dependencies: ["ByteStreams", "StreamBroker", "StreamBrokerBluetooth", "StreamBrokerCore"],
      path: "Sources/Examples/Join", swiftSettings: strict),

    .executableTarget(
      name: "foundation-streams", dependencies: ["StreamBrokerFoundation"],
      path: "Sources/Examples/FoundationStreams", swiftSettings: strict),

    // The library as a client, measured (Tests/Bench/library/run).
    .executableTarget(
      name: "library-bench", dependencies: ["StreamBroker"], path: "Tests/Bench/library", exclude: ["far.c", "run"],
      swiftSettings: strict),

    .executableTarget(
      name: "foundation-bench", dependencies: ["StreamBrokerFoundation"], path: "Tests/Bench/foundation",
      swiftSettings: strict),

    // The library's user in tests on real devices.
    .executableTarget(
      name: "library-probe", dependencies: ["StreamBroker", "StreamBrokerBluetooth"], path: "Tests/Library/probe",
      swiftSettings: strict),

    // Tests.
    .target(
      name: "StreamConformanceKit", dependencies: ["ByteStreams", "CLinux", "StreamBrokerCore"],
      path: "Tests/StreamConformanceKit", swiftSettings: strict),
    .target(
      name: "StreamTestKit", dependencies: ["ByteStreams", "COpenSSL", "StreamBroker", "StreamConformanceKit"],
      path: "Tests/StreamTestKit", swiftSettings: strict),
    .testTarget(
      name: "ByteStreamsTests", dependencies: ["ByteStreams", "CLinux", "StreamTestKit"], swiftSettings: strict),
    .testTarget(
      name: "StreamTLSTests", dependencies: ["ByteStreams", "COpenSSL", "StreamTLS", "StreamTestKit"],
      swiftSettings: strict),
    .testTarget(
      name: "StreamTelnetTests", dependencies: ["ByteStreams", "StreamTelnet", "StreamTestKit"], swiftSettings: strict),
    .testTarget(
      name: "StreamWebSocketTests", dependencies: ["ByteStreams", "StreamTestKit", "StreamWebSocket"],
      swiftSettings: strict),
    .testTarget(
      name: "StreamBrokerTests",
      dependencies: [
        "ByteStreams", "CLinux", "StreamBroker", "StreamBrokerCore", "StreamTLS", "StreamTelnet", "StreamTestKit",
        "StreamWebSocket",
      ],
      swiftSettings: strict),
    .testTarget(
      name: "StreamBrokerBluetoothTests",
      dependencies: [
        "ByteStreams", "CLinux", "StreamBroker", "StreamBrokerBluetooth", "StreamBrokerCore", "StreamTestKit",
      ],
      swiftSettings: strict),
    .testTarget(
      name: "StreamBrokerFoundationTests",
      dependencies: ["ByteStreams", "StreamBroker", "StreamBrokerCore", "StreamBrokerFoundation", "StreamTestKit"],
      swiftSettings: strict),
    .testTarget(name: "CommandArgumentsTests", dependencies: ["CommandArguments"], swiftSettings: strict),
    .testTarget(
      name: "GatewayKitTests",
      dependencies: [
        "ByteStreams", "CLinux", "GatewayKit", "StreamBroker", "StreamBrokerBluetooth", "StreamBrokerCore",
        "StreamTestKit",
        "StreamTLS",
        "StreamTelnet",
        "StreamWebSocket",
        gateway("Logging", of: "swift-log"),
      ],
      exclude: ["Golden", "ImportGolden"], swiftSettings: strict),
    fuzz,
  ]
)
