// The control socket, through which commands ask the running gateway. At a path its mode decides who may connect (owner
// and group); at an abstract address, the same user and root may. One request and one answer per connection; their
// content is not handled here.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamBroker

final class ControlServer {
  let address: ControlAddress
  private let poller: Poller
  private let answerLimit: Duration
  private let answer: (ControlRequest, ControlPeer) -> any ControlAnswer
  // Files can be on a network, and a lane must not wait for that.
  private let queue = DispatchQueue(label: "baudway.control-socket")
  private var socket: ControlSocket?
  /// The path of the link to the socket, if there is one.
  private let socketLinkPath: String?
  private var socketLink: ControlSocketLink?
  private var loop: AcceptLoop?
  private var connections: [ObjectIdentifier: ControlConnection] = [:]
  private var retry: BindRetry
  private var isBinding = false
  private var isStopped = false
  private var whenFree: () -> Void = {}

  private static let most = 16

  init(
    _ address: ControlAddress, socketLink: String? = nil, on poller: Poller,
    answerLimit: Duration = ControlConnection.answerLimit,
    answer: @escaping (ControlRequest, ControlPeer) -> any ControlAnswer
  ) {
    self.address = address
    socketLinkPath = socketLink
    self.answerLimit = answerLimit
    self.poller = poller
    self.answer = answer
    retry = BindRetry(poller.timers)
  }

  /// Binds, and keeps trying. Calls `failed` once for each new reason, `bound` when the socket listens.
  func start(bound: @escaping () -> Void = {}, failed: @escaping (OpenFailure) -> Void = { _ in }) {
    let (address, socketLinkPath) = (address, socketLinkPath)
    isBinding = true
    poller.offload(to: queue) { () -> (Result<ControlSocket, OpenFailure>, ControlSocketLink?) in
      let socket = ControlSocket.open(address)
      guard case .success = socket, let socketLinkPath else { return (socket, nil) }
      return (socket, ControlSocketLink.create(at: socketLinkPath, to: address.description))
    } then: { [self] result, socketLink in
      isBinding = false
      self.socketLink = socketLink
      do throws(OpenFailure) {
        let socket = try result.get()
        self.socket = socket
        if isStopped { return giveUp() }
        do throws(SystemError) {
          try accept(socket.parcel) { [unowned self] error in
            loop = nil
            giveUp()
            failed(.lost(error))
            _ = retry.lost(.lost(error)) { [weak self] in self?.start(bound: bound, failed: failed) }
          }
        } catch {
          throw OpenFailure(error.call, error)
        }
        retry.succeeded()
        bound()
      } catch {
        giveUp()
        if isStopped { return }
        if retry.failed(error, again: { [weak self] in self?.start(bound: bound, failed: failed) }) { failed(error) }
      }
    }
  }

  private func accept(_ parcel: DescriptorParcel, lost: @escaping (SystemError) -> Void) throws(SystemError) {
    guard let socket = parcel.take() else { throw SystemError("bind", EBADF) }
    // Unowned: the server owns the loop, and stops it before it is freed.
    loop = try AcceptLoop(socket, on: poller, refusalLine: nil, outOfDescriptors: { _ in }, lost: lost) {
      [unowned self] client, _ in
      serve(client)
    }
  }

  /// Accepts no more clients, and releases the address. `cuttingOff` also closes connections that wait for an answer.
  /// Calls `done` when the address is free.
  func stop(cuttingOff: Bool, then done: @escaping () -> Void = {}) {
    isStopped = true
    whenFree = done
    retry.cancel()
    loop?.stop()
    loop = nil
    if cuttingOff { for connection in connections.values { connection.close() } }
    if !isBinding { giveUp() }
  }

  /// Closes the socket and removes its file and link. Without a socket of ours the file is another gateway's, and
  /// stays.
  private func giveUp() {
    let done = whenFree
    whenFree = {}
    guard let socket else { return done() }
    self.socket = nil
    _ = socket.parcel.take()
    let socketLink = socketLink
    self.socketLink = nil
    poller.offload(to: queue) {
      socketLink?.remove()
      socket.removeFile()
    } then: { _ in
      done()
    }
  }

  private func serve(_ client: consuming Descriptor) {
    guard connections.count < Self.most, ControlSocket.admits(client.raw, at: address) else { return }
    // A strong reference: an answer in progress must be completed even if the socket has moved to another address.
    let connection = ControlConnection(client, on: poller, answerLimit: answerLimit, answer: answer) { [self] over in
      connections[ObjectIdentifier(over)] = nil
    }
    connections[ObjectIdentifier(connection)] = connection
  }
}

/// A listening control socket. Methods that use the address can block.
struct ControlSocket: Sendable {
  let parcel: DescriptorParcel
  /// Nil for an abstract address.
  private let socketFile: UnixSocketFile?

  static func open(_ address: ControlAddress) -> Result<ControlSocket, OpenFailure> {
    do throws(OpenFailure) {
      switch address {
      case .path(let path):
        let socketFile = try UnixSocketFile.open(path, NodeOwnership(mode: 0o660), queue: queue)
        return .success(ControlSocket(parcel: socketFile.socket, socketFile: socketFile))
      case .abstract:
        do throws(SystemError) {
          return .success(ControlSocket(parcel: try bind(address), socketFile: nil))
        } catch {
          throw OpenFailure(error.call, error)
        }
      }
    } catch {
      return .failure(error)
    }
  }

  private static func bind(_ address: ControlAddress) throws(SystemError) -> DescriptorParcel {
    let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    guard raw >= 0 else { throw SystemError("socket") }
    let socket = Descriptor(owning: raw)
    guard try address.withSockaddr({ Glibc.bind(raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    guard listen(raw, queue) == 0 else { throw SystemError("listen") }
    return DescriptorParcel(socket)
  }

  private static let queue: Int32 = 16

  func removeFile() { socketFile?.removeFile() }

  /// Any client that can open a path may ask. An abstract address has no mode: the kernel reports the client's user,
  /// which must be ours or root.
  static func admits(_ client: Int32, at address: ControlAddress) -> Bool {
    guard case .abstract = address else { return true }
    var user = uid_t()
    return linux_peer_user(client, &user) == 0 && (user == 0 || user == geteuid())
  }
}
