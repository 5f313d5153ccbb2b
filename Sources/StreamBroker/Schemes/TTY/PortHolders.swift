// Which programs have a port open, as far as /proc shows it to us: descriptors of our own user's processes, to root of all; and who
// holds a lock of flock(2), which everybody may see. Reads files: for a queue, never for a lane.

import ByteStreams
import CLinux
import Glibc

enum PortHolders {
  /// By node.
  static func all(of nodes: Set<String>, in procfs: String) -> [String: [SerialPort.Holder]] {
    var holders: [String: [SerialPort.Holder]] = [:]
    for process in FileSystem.names(in: procfs).compactMap({ Int($0) }).sorted() {
      let files = "\(procfs)/\(process)/fd"
      let targets = Set(FileSystem.names(in: files).compactMap { FileSystem.target(of: "\(files)/\($0)") })
      for node in targets.intersection(nodes) { holders[node, default: []].append(holder(process, in: procfs)) }
    }
    return holders
  }

  /// What to tell about a port that is in use: by whom, or how to find that out.
  static func advice(for path: String, in procfs: String = "/proc") -> String {
    let node = FileSystem.realPath(path) ?? path
    // Our own descriptor is that of the try that has just failed.
    var holders = (all(of: [node], in: procfs)[node] ?? []).filter { $0.process != getpid() }
    if holders.isEmpty { holders = locker(of: path, in: procfs).map { [holder($0, in: procfs)] } ?? [] }
    guard !holders.isEmpty else { return "in use by another program or route; 'fuser \(path)' names it" }
    return "in use by " + holders.map { text(of: $0) }.joined(separator: ", ")
  }

  /// As messages name it: "picocom (pid 4711)".
  static func text(of holder: SerialPort.Holder) -> String {
    if holder.process == getpid() { return "this program, on another route" }
    return "\(holder.program.map { Suggestion.plain($0) } ?? "a program") (pid \(holder.process))"
  }

  static func holder(_ process: Int, in procfs: String = "/proc") -> SerialPort.Holder {
    SerialPort.Holder(process: process, program: FileSystem.line(of: "\(procfs)/\(process)/comm"))
  }

  /// Of proc_locks(5): "1: FLOCK  ADVISORY  WRITE 708 00:05:1234 0 EOF", with the device's numbers in hexadecimal. The process has
  /// made the lock; another may hold it by now.
  private static func locker(of path: String, in procfs: String) -> Int? {
    var node = stat()
    guard stat(path, &node) == 0, let text = FileSystem.text(of: "\(procfs)/locks") else { return nil }
    let (major, minor) = (gnu_dev_major(node.st_dev), gnu_dev_minor(node.st_dev))
    for line in text.split(separator: "\n") {
      let fields = line.split(separator: " ")
      guard fields.count > 5, fields[1] == "FLOCK", let process = Int(fields[4]), process > 0 else { continue }
      let file = fields[5].split(separator: ":")
      guard file.count == 3, UInt32(file[0], radix: 16) == major, UInt32(file[1], radix: 16) == minor,
        ino_t(file[2]) == node.st_ino
      else { continue }
      return process
    }
    return nil
  }
}
