// Refusals that `status` counts by their reason, besides the ending that they have: those that a key of the configuration switches.

/// Why a client was refused; the cause of its ending.
protocol CountedRefusal: Error {
  /// What `status` calls it: "http-request". Nil for one that its ending says enough of.
  var counter: String? { get }
}
