// A file of the status page. Sources/CAdminPage has the files in the binary; they have no secrets, so a browser gets
// them without a log-in.

import CAdminPage
import CZlib
import StreamWebSocket

struct AdminFile: Hashable, Sendable {
  private let index: Int

  /// Nil if no file has this path. Paths are compared as they are, so none leads elsewhere.
  init?(path: String) {
    guard let index = Self.all.firstIndex(where: { $0.path == path }) else { return nil }
    self.index = index
  }

  /// What a file may load and do where it is shown: only what is of this listener, and no script within the page.
  static let policy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    + "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

  func response(to request: AdminRequest) -> AdminResponse {
    let file = Self.all[index]
    let compressed = request.takesGzip ? Self.compressed[index] : nil
    // Two forms of one file are different bytes, so each has its own tag (RFC 9110 section 8.8.3.3).
    let digest = Self.digests[index]
    let tag = compressed == nil ? "\"\(digest)\"" : "\"\(digest)-gzip\""
    var response = AdminResponse(status: .ok, contentType: file.type, content: compressed ?? file.content())
    if request.knows(tag: tag) {
      response.status = .notModified
      response.contentType = nil
      response.content = []
    } else if compressed != nil {
      response.fields.append(.init(name: "Content-Encoding", value: "gzip"))
    }
    response.fields += [
      .init(name: "ETag", value: tag), .init(name: "Vary", value: "Accept-Encoding"),
      .init(name: "Referrer-Policy", value: "no-referrer"),
      .init(name: "Cross-Origin-Opener-Policy", value: "same-origin"),
      .init(name: "Cross-Origin-Resource-Policy", value: "same-origin"),
    ]
    response.policy = Self.policy
    // Kept, but asked for each time: after an update of the gateway, no old script meets a new API.
    response.caching = "no-cache"
    return response
  }

  // MARK: - The files

  private struct Embedded {
    let path: String
    let type: String
    let content: () -> [UInt8]

    init(path: String, type: String, _ content: @escaping () -> [UInt8]) {
      self.path = path
      self.type = type
      self.content = content
    }

    init(_ file: UnsafePointer<admin_page_file>) {
      self.init(path: String(cString: file.pointee.path), type: String(cString: file.pointee.type)) {
        Array(file.pointee.content)
      }
    }
  }

  // The closures read constants.
  nonisolated(unsafe) private static let all: [Embedded] =
    files(admin_page_file).map(Embedded.init) + (admin_page_terminal_style().map { [Embedded($0), terminal] } ?? [])

  private static func files(
    _ file: (Int) -> UnsafePointer<admin_page_file>?
  ) -> [UnsafePointer<admin_page_file>] {
    var files: [UnsafePointer<admin_page_file>] = []
    while let next = file(files.count) { files.append(next) }
    return files
  }

  /// xterm.js: its modules as one script, which browsers can load.
  nonisolated(unsafe) private static let terminal = Embedded(
    path: "/page/xterm.js", type: "text/javascript; charset=utf-8"
  ) {
    var script = Array("import { load } from \"/page/modules.js\";\nexport const { Terminal } = load({\n".utf8)
    for module in files(admin_page_terminal_module) {
      let name = String(cString: module.pointee.path)
      script += Array("\"\(name)\": function (exports, require, module) {\n".utf8)
      script += module.pointee.content
      script += Array("\n},\n".utf8)
    }
    return script + Array("}, \"public/Terminal\");\n".utf8)
  }

  /// Made when a browser first asks for a file: reading all of them takes longer than a lane of handshakes has.
  private static let digests = all.map { digest($0.content()) }

  /// Made when a browser first asks for a file. Nil where it would not be shorter.
  private static let compressed: [[UInt8]?] = all.map { $0.content().withUnsafeBufferPointer(gzip) }

  /// FNV-1a. A tag only has to tell versions of one file apart.
  private static func digest(_ bytes: [UInt8]) -> String {
    String(bytes.reduce(0xcbf2_9ce4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01b3 }, radix: 36)
  }

  /// Nil if there is no memory, or if it would not be shorter.
  static func gzip(_ bytes: UnsafeBufferPointer<UInt8>) -> [UInt8]? {
    var stream = z_stream()
    guard zlib_gzip_init(&stream, 9) == Z_OK else { return nil }
    defer { deflateEnd(&stream) }
    // zlib does not write to its input.
    stream.next_in = UnsafeMutablePointer(mutating: bytes.baseAddress)
    stream.avail_in = UInt32(bytes.count)
    var isWhole = false
    let compressed = [UInt8](unsafeUninitializedCapacity: bytes.count) { buffer, count in
      stream.next_out = buffer.baseAddress
      stream.avail_out = UInt32(buffer.count)
      isWhole = deflate(&stream, Z_FINISH) == Z_STREAM_END
      count = buffer.count - Int(stream.avail_out)
    }
    return isWhole ? compressed : nil
  }
}

extension admin_page_file {
  /// In the binary's constants.
  fileprivate var content: UnsafeBufferPointer<UInt8> { UnsafeBufferPointer(start: bytes, count: count) }
}
