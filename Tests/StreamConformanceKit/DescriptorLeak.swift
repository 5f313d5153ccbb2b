// Checks that code leaves the process's descriptors as they were. Works while other tests run in parallel.

import ByteStreams
import Glibc
import Testing

/// Runs `body` and expects that every descriptor it opened is closed soon afterwards. Parallel tests open and close
/// descriptors too, so only one that stays open for `Patience` counts.
public func expectNoDescriptorLeak(
  sourceLocation: SourceLocation = #_sourceLocation, _ body: () async throws -> Void
) async throws {
  try await onLane("warm-up") { _ in }  // Dispatch opens descriptors that it keeps for good
  let before = openDescriptors()
  try await body()
  var suspects = openDescriptors().subtracting(before)
  // The kernel does not report a close, so check repeatedly.
  for round in 0..<Patience.milliseconds / 10 where !suspects.isEmpty {
    if round == 500 { print("still open after five seconds:", suspects.sorted()) }
    try await Task.sleep(for: .milliseconds(10))
    suspects.formIntersection(openDescriptors())
  }
  #expect(suspects.isEmpty, "still open", sourceLocation: sourceLocation)
}

/// Each as "7 socket:[12345]".
private func openDescriptors() -> Set<String> {
  var found: Set<String> = []
  guard let directory = opendir("/proc/self/fd") else { return found }
  defer { closedir(directory) }
  while let entry = readdir(directory) {
    let name = withUnsafePointer(to: &entry.pointee.d_name) {
      $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
    }
    guard let number = Int32(name), number != dirfd(directory) else { continue }
    var target = [CChar](repeating: 0, count: 256)
    let count = readlink("/proc/self/fd/\(name)", &target, target.count)
    guard count > 0 else { continue }
    let text = String(decoding: target[..<count].map { UInt8(bitPattern: $0) }, as: UTF8.self)
    // Dispatch opens one timerfd per clock at the first sleep on it, and keeps it. A lane closes its timerfd and epoll
    // set together with its eventfd, whose id outlives its number.
    if text == "anon_inode:[timerfd]" || text == "anon_inode:[eventpoll]" { continue }
    // These have no identity at all; the tests of NodeWatch count them.
    if text == "anon_inode:inotify" { continue }
    found.insert("\(name) \(text) \(identity(of: name))")
  }
  return found
}

/// "eventfd-id: 12" of proc(5) for an eventfd, otherwise empty: other kinds have an inode in their name, or a path.
private func identity(of name: String) -> String {
  guard let file = fopen("/proc/self/fdinfo/\(name)", "r") else { return "" }
  defer { fclose(file) }
  var line = [CChar](repeating: 0, count: 256)
  while fgets(&line, Int32(line.count), file) != nil {
    let text = String(decoding: line.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    if text.hasPrefix("eventfd-id:") { return String(text.dropLast()) }
  }
  return ""
}
