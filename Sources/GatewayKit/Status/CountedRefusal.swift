// Refusals that `status` counts by reason in addition to their ending: those that a configuration key switches on or
// off.

/// Why a client was refused; the cause of its ending.
protocol CountedRefusal: Error {
  /// The name of its counter in `status`: "http-request". Nil where the ending is enough.
  var counter: String? { get }
}
