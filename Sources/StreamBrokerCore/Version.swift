// The version, for --version, the log, and messages about missing features.

package enum Version {
  package static let text = "0.1.0"
  package static let product = "Baudway"
  /// "Baudway 0.1.0"
  package static let name = "\(product) \(text)"
}
