// What is at the path of a serial port in its place, in words: who makes such, and what to do. Reads the file system:
// for a queue, never for a lane.

import Glibc

enum TTYPath {
  /// For a node that is no character device.
  static func description(of type: mode_t) -> String {
    switch type {
    case S_IFDIR:
      "this is a folder, not a serial port: container runtimes make one where a mounted device is missing; plug the device in, remove the "
        + "folder, and pass the port with --device, or mount /dev"
    case S_IFREG:
      "this is a plain file, not a serial port: a program that wrote to the path while the device was away made it; remove it and plug the "
        + "device in again"
    case S_IFBLK: "this is a block device, such as a disk, not a serial port; is it the right path?"
    case S_IFIFO: "this is a named pipe, not a serial port; exec:/bin/cat?arg=PATH reads one"
    case S_IFSOCK: "this is a socket, not a serial port; use unix:PATH"
    default: "this is not a serial port"
    }
  }

  /// For a path where nothing is, or a link to nothing.
  static func absence(at path: String) -> String {
    guard let target = FileSystem.target(of: path) else { return "not plugged in?" }
    return "this is a link to \(Suggestion.quote(target)), which is not there; not plugged in?"
  }
}
