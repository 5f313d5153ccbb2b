// The status codes that this package sends, with the reason phrases of RFC 9110 section 15.

package enum HTTPStatus: Int, CaseIterable, Sendable {
  case ok = 200
  case notModified = 304
  case badRequest = 400
  case unauthorized = 401
  case forbidden = 403
  case notFound = 404
  case methodNotAllowed = 405
  case requestTimeout = 408
  case conflict = 409
  case lengthRequired = 411
  case contentTooLarge = 413
  case unsupportedMediaType = 415
  case unprocessableContent = 422
  case upgradeRequired = 426
  case tooManyRequests = 429
  case headTooLarge = 431
  case unavailable = 503
  case gatewayTimeout = 504
  case versionNotSupported = 505

  package var phrase: String {
    switch self {
    case .ok: "OK"
    case .notModified: "Not Modified"
    case .badRequest: "Bad Request"
    case .unauthorized: "Unauthorized"
    case .forbidden: "Forbidden"
    case .notFound: "Not Found"
    case .methodNotAllowed: "Method Not Allowed"
    case .requestTimeout: "Request Timeout"
    case .conflict: "Conflict"
    case .lengthRequired: "Length Required"
    case .contentTooLarge: "Content Too Large"
    case .unsupportedMediaType: "Unsupported Media Type"
    case .unprocessableContent: "Unprocessable Content"
    case .upgradeRequired: "Upgrade Required"
    case .tooManyRequests: "Too Many Requests"
    case .headTooLarge: "Request Header Fields Too Large"
    case .unavailable: "Service Unavailable"
    case .gatewayTimeout: "Gateway Timeout"
    case .versionNotSupported: "HTTP Version Not Supported"
    }
  }
}
