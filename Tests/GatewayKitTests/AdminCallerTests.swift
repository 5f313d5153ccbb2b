import StreamBroker
import Testing

@testable import GatewayKit

@Suite("A client of the admin listener")
struct AdminCallerTests {
  private func user(_ name: String, _ roles: [(String, Config.User.Role)]?) -> Config.User {
    var user = Config.User(name: name, tokens: [Secret("0123456789abcdef")])
    user.roles = roles?.map { Config.User.Rule(pattern: RoutePattern($0.0), role: $0.1) }
    return user
  }

  @Test("may do everything where there are no users")
  func open() {
    let caller = AdminCaller(name: nil, client: nil, [])
    #expect(caller.role(on: "gps") == .admin && caller.generalRole == .admin)
  }

  @Test("has the roles of its user, on a route and in general")
  func roles() {
    let users = [
      user("ada", [("lab-*", .admin), ("*", .monitor)]), user("bob", [("gps", .admin)]), user("cyd", nil),
      user("dan", []),
    ]
    func roles(_ name: String?) -> [Config.User.Role?] {
      let caller = AdminCaller(name: name, client: nil, users)
      return [caller.role(on: "lab-1"), caller.role(on: "gps"), caller.generalRole]
    }
    #expect(roles("ada") == [.admin, .monitor, .monitor])
    #expect(roles("bob") == [nil, .admin, nil])
    #expect(roles("cyd") == [.writer, .writer, .writer])
    #expect(roles("dan") == [nil, nil, nil])
    // A certificate that belongs to no user.
    #expect(roles("CN=eve") == [nil, nil, nil] && roles(nil) == [nil, nil, nil])
  }

  @Test("with the role admin is a writer in sessions")
  func sessions() { #expect(user("ada", [("*", .admin)]).role(on: "gps") == .writer) }

  @Test("logs in when its user has a role on any route")
  func access() {
    let access = Access(admin: [user("ada", [("gps", .monitor)]), user("dan", [])])
    #expect(access.asks)
    #expect(access.members.map { $0.role != nil } == [true, false])
    #expect(!Access(admin: [user("dan", [])]).asks && !Access(admin: []).asks)
  }
}
