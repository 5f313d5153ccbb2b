// The control socket: commands of the same user, or root, ask the running gateway. One line in, one line of JSON out.

import ByteStreams
import CLinux
import Glibc
import StreamBroker

final class ControlServer {
  private let address: ControlAddress
  private let poller: Poller
  /// Answers a request line; nil for one it does not know.
  private let answer: (String) -> String?
  private var door: UnixDoor?
  private var loop: AcceptLoop?
  private var conversations: [ObjectIdentifier: Conversation] = [:]
  private static let most = 16

  init(_ address: ControlAddress, on poller: Poller, answer: @escaping (String) -> String?) {
    self.address = address
    self.poller = poller
    self.answer = answer
  }

  func start() throws(SystemError) {
    // Unowned: loop and conversations are its own, and `stop` ends them before it goes.
    loop = try AcceptLoop(bind(), on: poller, farewell: nil, outOfDescriptors: { _ in }) { [unowned self] client, _ in
      greet(client)
    }
  }

  func stop() {
    loop?.stop()
    loop = nil
    for conversation in conversations.values { conversation.close() }
    conversations = [:]
    door?.removeFile()
    door = nil
  }

  private func bind() throws(SystemError) -> Descriptor {
    guard case .path(let path) = address else { return try bindAbstract() }
    do throws(OpenFailure) {
      let door = try UnixDoor.open(path, NodeOwnership(mode: 0o660), queue: 16)
      self.door = door
      return door.socket.take()!  // nobody else has seen the parcel
    } catch {
      throw error.cause ?? SystemError("bind", EINVAL)
    }
  }

  private func bindAbstract() throws(SystemError) -> Descriptor {
    let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    guard raw >= 0 else { throw SystemError("socket") }
    let socket = Descriptor(owning: raw)
    guard try address.withSockaddr({ Glibc.bind(raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    guard listen(raw, 16) == 0 else { throw SystemError("listen") }
    return socket
  }

  private func greet(_ client: consuming Descriptor) {
    var user = uid_t()
    guard linux_peer_user(client.raw, &user) == 0, user == 0 || user == geteuid(), conversations.count < Self.most
    else { return }
    let conversation = Conversation(client, on: poller, answer: answer) { [unowned self] conversation in
      conversations[ObjectIdentifier(conversation)] = nil
    }
    conversations[ObjectIdentifier(conversation)] = conversation
  }
}

/// One who asks: a request of at most 1 KiB within two seconds, an answer, the end.
private final class Conversation: ByteStreamDelegate {
  private let stream: DescriptorStream
  private let poller: Poller
  private let answer: (String) -> String?
  private let ended: (Conversation) -> Void
  private var request: [UInt8] = []
  private var deadline: Timers.Token?

  init(
    _ client: consuming Descriptor, on poller: Poller, answer: @escaping (String) -> String?,
    ended: @escaping (Conversation) -> Void
  ) {
    stream = DescriptorStream(client, kind: .socket, on: poller)
    self.poller = poller
    self.answer = answer
    self.ended = ended
    stream.delegate = self
    stream.readerWaits = .readable
    deadline = poller.timers.after(.seconds(2)) { [weak self] in self?.close() }
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    var buffer = [UInt8](repeating: 0, count: 1024)
    let transfer = try? buffer.withUnsafeMutableBytes { try self.stream.read(into: $0) }
    switch transfer {
    case .moved(let count)?: request += buffer.prefix(count)
    case .blocked?: return
    case .ended?, nil: return close()
    }
    guard let end = request.firstIndex(of: UInt8(ascii: "\n")) else {
      if request.count > 1024 { close() }
      return
    }
    let line = String(decoding: request[..<end], as: UTF8.self)
    let reply = (answer(line) ?? #"{"error":"unknown request"}"#) + "\n"
    // Fits any socket buffer; if not, the one who asks sees a broken line.
    _ = Array(reply.utf8).withUnsafeBytes { try? self.stream.write($0) }
    close()
  }

  func close() {
    poller.timers.cancel(deadline)
    stream.close()
    ended(self)
  }
}
