// The conformance kit is part of this kit. It is a target of its own because programs with schemes of their own use it,
// without OpenSSL.

@_exported import StreamConformanceKit
import StreamBroker

extension StreamConformance {
  /// For the schemes of this package.
  public init(_ rig: any StreamRig) { self.init(rig, .standard) }
}
