// The fuzzer must know every key of a route's policies; otherwise a key is never tested together with the others.

import Testing

@testable import GatewayKit

@Suite("The fuzzer of policies")
struct PolicyKeysTests {
  @Test("varies every key of clients, device and packets, except those listed with a reason")
  func keys() {
    var keys: Set<String> = []
    for section in ConfigKeys.policies where ["clients", "device", "packets"].contains(section.name) {
      switch section.shape {
      case .mapping(let inner), .switched(let inner): keys.formUnion(inner.map { "\(section.name).\($0.name)" })
      default: Issue.record("\(section.name) has no keys")
      }
    }
    let varied = Set(PolicyKey.varied.map(\.name))
    let exceptions = Set(PolicyKey.exceptions.keys)
    #expect(keys.count > 25)
    #expect(keys.subtracting(varied).subtracting(exceptions) == [], "neither varied nor an exception")
    #expect(varied.union(exceptions).subtracting(keys) == [], "no such key any more")
    #expect(varied.intersection(exceptions) == [])
    #expect(varied.count <= PolicyKey.places && varied.count == PolicyKey.varied.count)
    #expect(PolicyKey.exceptions.values.allSatisfy { $0.count > 15 }, "each exception has its reason")
  }

  @Test("gives each key that it varies at least two values")
  func values() throws {
    let world = try PolicyWorld()
    for key in PolicyKey.varied {
      var routes: Set<Config.Route> = []
      for number in 0..<8 {
        var route = world.route
        key.vary(&route, number)
        routes.insert(route)
      }
      #expect(routes.count > 1, "\(key.name)")
    }
  }
}
