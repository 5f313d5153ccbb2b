// Which programs have a port open, as far as /proc shows it: descriptors of our own user's processes (of all processes
// for root), and the process with a flock(2) lock, which everybody may see. Reads files: for a queue, never for a lane.

import ByteStreams
import CLinux
import Dispatch
import Glibc

enum PortHolders {
  /// For looks that no opening waits for: they hold up no device.
  static let queue = DispatchQueue(label: "port holders")

  /// The processes that have each node open.
  static func all(of nodes: Set<String>, in procfs: String) -> [String: [SerialPort.Holder]] {
    var holders: [String: [SerialPort.Holder]] = [:]
    for process in FileSystem.names(in: procfs).compactMap({ Int($0) }).sorted() {
      let files = "\(procfs)/\(process)/fd"
      var found: Set<String> = []
      var makesPtys = false
      let names = FileSystem.names(in: files)
      for file in names {
        guard let node = FileSystem.target(of: "\(files)/\(file)") else { continue }
        if node == "/dev/ptmx" || node == "/dev/pts/ptmx" { makesPtys = true }
        if nodes.contains(node), isOpen(node, as: "\(files)/\(file)") { found.insert(node) }
      }
      // A program that made a pty, such as socat, is the device behind it, and may keep its slave open.
      if makesPtys { found = found.filter { !$0.hasPrefix("/dev/pts/") } }
      if names.isEmpty, let node = terminal(of: process, among: nodes, in: procfs) { found.insert(node) }
      for node in found { holders[node, default: []].append(holder(process, in: procfs)) }
    }
    return holders
  }

  /// For a process whose descriptors we may not see: its controlling terminal, which a getty makes its port, is open to
  /// all (proc_pid_stat(5)). Not for ptys, whose numbers mean something else in another container.
  private static func terminal(of process: Int, among nodes: Set<String>, in procfs: String) -> String? {
    guard let text = FileSystem.line(of: "\(procfs)/\(process)/stat"), let end = text.lastIndex(of: ")") else {
      return nil
    }
    let fields = text[end...].split(separator: " ")
    guard fields.count > 5, let number = UInt32(fields[5]), number != 0 else { return nil }
    let (major, minor) = (number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00)
    guard !(136...143).contains(major) else { return nil }
    return nodes.first { node in
      var status = stat()
      return stat(node, &status) == 0 && status.st_mode & S_IFMT == S_IFCHR
        && gnu_dev_major(status.st_rdev) == major && gnu_dev_minor(status.st_rdev) == minor
    }
  }

  /// The other processes that have the port open, for people; nil if none is seen. Names a service's unit, and how to
  /// stop it.
  static func others(of path: String, in procfs: String = "/proc") -> String? {
    guard let node = FileSystem.realPath(path) else { return nil }
    let holders = (all(of: [node], in: procfs)[node] ?? []).filter { $0.process != getpid() }
    guard !holders.isEmpty else { return nil }
    let shown = holders.prefix(mostShown).map { text(of: $0) + (unit(of: $0, at: node, in: procfs) ?? "") }
    return shown.joined(separator: ", ") + (holders.count > mostShown ? ", …" : "")
  }

  private static let mostShown = 4

  /// " of a service: systemctl disable --now … stops it"; nil for a program that is no service.
  private static func unit(of holder: SerialPort.Holder, at node: String, in procfs: String) -> String? {
    let group = FileSystem.line(of: "\(procfs)/\(holder.process)/cgroup") ?? ""
    var unit = group.split(separator: "/").last.map(String.init).flatMap { $0.hasSuffix(".service") ? $0 : nil }
    // A getty that an administrator's shell sees outside of its unit, as in a container with the host's processes.
    if unit == nil, holder.program?.hasSuffix("getty") == true {
      unit = "serial-getty@\(FileSystem.lastName(of: node)).service"
    }
    guard let unit, !unit.hasPrefix("user@") else { return nil }
    return " of a service: systemctl disable --now \(Suggestion.plain(unit)) stops it"
  }

  /// Whether the descriptor is of the node that has this path here: in another mount namespace, such as a container,
  /// the same path may be another device. Ptys of two instances of devpts have the same numbers; other devices do not.
  private static func isOpen(_ node: String, as descriptor: String) -> Bool {
    var (one, other) = (stat(), stat())
    guard stat(node, &one) == 0, stat(descriptor, &other) == 0 else { return false }
    guard one.st_mode & S_IFMT == S_IFCHR else { return one.st_dev == other.st_dev && one.st_ino == other.st_ino }
    let isPty = (136...143).contains(gnu_dev_major(one.st_rdev))
    return one.st_rdev == other.st_rdev && (!isPty || one.st_dev == other.st_dev)
  }

  /// Advice for a port that is in use: which program has it, or how to find out.
  static func advice(for path: String, in procfs: String = "/proc") -> String {
    let node = FileSystem.realPath(path) ?? path
    // Our own descriptor belongs to the attempt that has just failed.
    var holders = (all(of: [node], in: procfs)[node] ?? []).filter { $0.process != getpid() }
    if holders.isEmpty { holders = locker(of: path, in: procfs).map { [holder($0, in: procfs)] } ?? [] }
    guard !holders.isEmpty else { return "in use by another program or route; 'fuser \(path)' names it" }
    return "in use by "
      + holders.map { text(of: $0) + (unit(of: $0, at: node, in: procfs) ?? "") }.joined(separator: ", ")
  }

  /// The text for messages: "picocom (pid 4711)".
  static func text(of holder: SerialPort.Holder) -> String {
    if holder.process == getpid() { return "this program itself" }
    return "\(holder.program.map { Suggestion.plain($0) } ?? "a program") (pid \(holder.process))"
  }

  static func holder(_ process: Int, in procfs: String = "/proc") -> SerialPort.Holder {
    SerialPort.Holder(process: process, program: FileSystem.line(of: "\(procfs)/\(process)/comm"))
  }

  /// From proc_locks(5): "1: FLOCK  ADVISORY  WRITE 708 00:05:1234 0 EOF", with the device's numbers in hexadecimal.
  /// The process with this number made the lock; another process may hold it by now.
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
