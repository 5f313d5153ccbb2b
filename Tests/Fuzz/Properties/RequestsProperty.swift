// A request to the admin listener, with what follows its head: from bytes to an action, or to a refusal that the
// description of the API has.

@testable import GatewayKit
@testable import StreamWebSocket

struct RequestsProperty {
  private let pages = [
    WebPageRule(hosts: HostNames(["gate"])), WebPageRule(hosts: HostNames(["gate"]), isSecure: true), WebPageRule(),
  ]
  /// By path and method, the statuses of answers.
  private let described: [(path: [Substring], methods: [String: Set<Int>])]

  init() throws(Broken) {
    guard let paths = OpenAPI.description["paths"]?.members else { throw Broken("no paths") }
    described = paths.map { path in
      let methods = (path.value.members ?? []).map { method in
        (method.key, Set((method.value["responses"]?.members ?? []).compactMap { Int($0.key) }))
      }
      return (Self.words(path.key), Dictionary(uniqueKeysWithValues: methods))
    }
  }

  private static func words(_ path: String) -> [Substring] {
    path.split(separator: "/", omittingEmptySubsequences: false)
  }

  func check(_ input: [UInt8]) throws(Broken) {
    guard case .success((let head, let early)?) = AdminRig.head(input) else { return }
    let matching = described.filter { Self.matches($0.path, Self.words(head.path)) }
    try hold(matching.count <= 1, "described twice: \(head.path)")
    guard let resource = AdminResource(path: head.path) else {
      return try hold(matching.isEmpty, "described, but not there: \(head.path)")
    }
    try hold(AdminResource.isReserved(head.path), "a route may have \(head.path)")
    let methods = matching.first?.methods
    if case .file = resource {} else { try hold(methods != nil, "not described: \(head.path)") }
    for pages in pages {
      switch AdminRig.request(head, early: early, for: resource, pages) {
      case .failure(let refusal):
        try AdminRig.check(refusal)
        try hold(refusal.isHead == (head.method == "HEAD"), "content for HEAD")
        try checkDescribed(refusal, head, methods)
      case .success(let request):
        try checkRequest(request, head, methods, pages)
        try checkRoles(request)
      }
    }
  }

  private static func matches(_ template: [Substring], _ path: [Substring]) -> Bool {
    template.count == path.count && zip(template, path).allSatisfy { $0 == "{name}" ? !$1.isEmpty : $0 == $1 }
  }

  private func checkDescribed(
    _ refusal: AdminRefusal, _ head: HTTPRequestHead, _ methods: [String: Set<Int>]?
  ) throws(Broken) {
    guard let methods else { return }
    let own = methods[Self.method(head)].map { [$0] } ?? Array(methods.values)
    for statuses in own {
      try hold(statuses.contains(refusal.status.rawValue), "\(refusal.status.rawValue) is not described: \(head.path)")
    }
  }

  private static func method(_ head: HTTPRequestHead) -> String {
    head.method == "HEAD" ? "get" : lowercased(head.method)
  }

  private func checkRequest(
    _ request: AdminRequest, _ head: HTTPRequestHead, _ methods: [String: Set<Int>]?, _ pages: WebPageRule
  ) throws(Broken) {
    try hold(methods?[Self.method(head)] != nil || methods == nil, "\(head.method) is not described: \(head.path)")
    try hold((0...AdminRequest.longest).contains(request.length), "\(request.length) bytes")
    try hold(request.early.count <= request.length, "bytes after the content are taken for content")
    try hold(head.method == "POST" || request.length == 0, "content of a request that looks")
    try hold(Set(request.query.keys).isSubset(of: request.resource.parameters), "a parameter that is not known")
    if head.method == "POST", let origin = head["origin"] {
      let origin = lowercased(origin)
      try hold(origin.hasPrefix("http://") || origin.hasPrefix("https://"), "a page of \(origin) changes something")
      try hold(!pages.isSecure || origin.hasPrefix("https://"), "a page without TLS changes something")
    }
    if pages.hosts != nil, !request.resource.isProbe, head.fields.count(of: "authorization") == 0 {
      let host = lowercased(head["host"] ?? "localhost")
      let isAddress = host.first.map { $0 == "[" || $0.isNumber } ?? false
      try hold(isAddress || ["gate", "localhost"].contains(where: host.hasPrefix), "a page under the name \(host)")
    }
    guard request.early.count == request.length else { return }
    switch AdminRig.action(request, request.early) {
    case .failure(let refusal):
      try AdminRig.check(refusal)
      try checkDescribed(refusal, head, methods)
    case .success(let action):
      try hold((action != nil) == request.resource.isChange, "a change that does nothing, or the reverse")
      if let route = action?.route { try hold(head.path.contains("/\(route)/"), "another route: \(route)") }
    }
  }

  /// Without a role on a route, it does not exist; only `admin` changes anything.
  private func checkRoles(_ request: AdminRequest) throws(Broken) {
    func status(_ role: Config.User.Role, on pattern: String) -> Int? {
      var user = Config.User(name: "ada")
      user.roles = [Config.User.Rule(pattern: RoutePattern(pattern), role: role)]
      return request.objection(to: AdminCaller(name: "ada", client: nil, [user]))?.status.rawValue
    }
    try hold(request.objection(to: AdminCaller(name: nil, client: nil, [])) == nil, "refused without users")
    try hold(status(.admin, on: "*") == nil, "refused to an admin")
    try hold(status(.writer, on: "*") == (request.resource.isChange ? 403 : nil), "a writer changes something")
    let elsewhere = status(.admin, on: "/")
    if request.resource.isChange { try hold(elsewhere == 403 || elsewhere == 404, "a route of others is changed") }
  }
}
