// From when until when a server's certificate is valid, and what is said of it: this changes while it is in use.

import COpenSSL
import Glibc

struct CertificateValidity: Sendable {
  let file: String
  // In seconds since 1970; `last` belongs to it.
  private let first: Int
  private let last: Int

  private static let twoWeeks = 14 * 86_400
  /// Later than any time that a certificate can have: 253,402,300,799 is the end of the year 9999.
  private static let never = 1 << 40

  init(_ certificate: X509Certificate, in file: String) {
    self.file = file
    first = Self.seconds(X509_get0_notBefore(certificate.raw)) ?? 0
    last = Self.seconds(X509_get0_notAfter(certificate.raw)) ?? Self.never
  }

  /// Nil for a time that can't be read: OpenSSL loads such a certificate, and verifies none.
  static func seconds(_ time: UnsafePointer<ASN1_TIME>?) -> Int? {
    var parts = tm()
    return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : nil
  }

  /// When a renewal is late: a tenth of the certificate's time is left, and no more than two weeks. What renews
  /// certificates by itself does so after two thirds.
  private var late: Int { last - min(max(0, last - first) / 10, Self.twoWeeks) }

  /// A problem that is no reason to stop, or nil.
  func warning(at now: Int) -> String? {
    if now > last { return "\(file): the certificate has expired: clients will refuse it" }
    if now < first { return "\(file): the certificate is not valid yet: clients will refuse it" }
    return now < late ? nil : "\(file): the certificate expires at \(Self.text(last)): renew it"
  }

  /// When there is something else to say; nil if never.
  func change(after now: Int) -> Int? { [first, late, last + 1].filter { $0 > now }.min() }

  private static func text(_ seconds: Int) -> String {
    var (seconds, parts) = (seconds, tm())
    gmtime_r(&seconds, &parts)
    return withUnsafeTemporaryAllocation(of: CChar.self, capacity: 64) { buffer in
      strftime(buffer.baseAddress!, buffer.count, "%Y-%m-%d %H:%M:%S UTC", &parts) > 0
        ? String(cString: buffer.baseAddress!) : "\(seconds)"
    }
  }
}
