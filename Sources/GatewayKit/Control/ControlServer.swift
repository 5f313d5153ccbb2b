// The control socket: commands ask the running gateway. Who may: at a path, whoever its mode lets (owner and group); at an
// abstract address, the same user and root. One request and one answer per connection; what they are is others' matter.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamBroker

final class ControlServer {
  let address: ControlAddress
  private let poller: Poller
  private let answerLimit: Duration
  private let answer: (ControlRequest) -> any ControlAnswer
  // Files may lie on a network; a lane must not wait for one.
  private let queue = DispatchQueue(label: "baudway.control-socket")
  private var socket: ControlSocket?
  /// Where a link is put that leads to the socket.
  private let signpostPath: String?
  private var signpost: ControlSignpost?
  private var loop: AcceptLoop?
  private var conversations: [ObjectIdentifier: Conversation] = [:]
  private var retryTimer: Timers.Token?
  private var lastError: OpenFailure?
  private var rebindPause = RebindPause()
  private var isBinding = false
  private var isStopped = false
  private var whenFree: () -> Void = {}

  private static let most = 16
  private static let retry = Duration.seconds(1)

  init(
    _ address: ControlAddress, signpost: String? = nil, on poller: Poller,
    answerLimit: Duration = Conversation.answerLimit,
    answer: @escaping (ControlRequest) -> any ControlAnswer
  ) {
    self.address = address
    signpostPath = signpost
    self.answerLimit = answerLimit
    self.poller = poller
    self.answer = answer
  }

  /// Binds, and keeps trying; `failed` is told of each reason once, `bound` when it is there.
  func start(bound: @escaping () -> Void = {}, failed: @escaping (OpenFailure) -> Void = { _ in }) {
    let (address, signpostPath) = (address, signpostPath)
    isBinding = true
    poller.offload(to: queue) { () -> (Result<ControlSocket, OpenFailure>, ControlSignpost?) in
      let socket = ControlSocket.open(address)
      guard case .success = socket, let signpostPath else { return (socket, nil) }
      return (socket, ControlSignpost.raise(at: signpostPath, to: address.description))
    } then: { [self] result, signpost in
      isBinding = false
      self.signpost = signpost
      do throws(OpenFailure) {
        let socket = try result.get()
        self.socket = socket
        if isStopped { return giveUp() }
        do throws(SystemError) {
          try accept(socket.parcel) { [unowned self] error in
            loop = nil
            giveUp()
            failed(.lost(error))
            startAgain(after: rebindPause.next(at: poller.timers.now), bound, failed)
          }
        } catch {
          throw OpenFailure(error.call, error)
        }
        bound()
      } catch {
        giveUp()
        if isStopped { return }
        if error != lastError { failed(error) }
        lastError = error
        startAgain(after: Self.retry, bound, failed)
      }
    }
  }

  private func startAgain(
    after pause: Duration, _ bound: @escaping () -> Void, _ failed: @escaping (OpenFailure) -> Void
  ) {
    retryTimer = poller.timers.after(pause) { [weak self] in self?.start(bound: bound, failed: failed) }
  }

  private func accept(_ parcel: DescriptorParcel, lost: @escaping (SystemError) -> Void) throws(SystemError) {
    guard let socket = parcel.take() else { throw SystemError("bind", EBADF) }
    // Unowned: the loop is its own, and ends before it goes.
    loop = try AcceptLoop(socket, on: poller, farewell: nil, outOfDescriptors: { _ in }, lost: lost) {
      [unowned self] client, _ in
      greet(client)
    }
  }

  /// Takes no more who ask, and gives up the address. With `cuttingOff`, also those who wait for an answer. `done` is called
  /// when the address is free.
  func stop(cuttingOff: Bool, then done: @escaping () -> Void = {}) {
    isStopped = true
    whenFree = done
    poller.timers.cancel(retryTimer)
    loop?.stop()
    loop = nil
    if cuttingOff { for conversation in conversations.values { conversation.close() } }
    if !isBinding { giveUp() }
  }

  /// The file of a socket that we don't have is another gateway's, and stays.
  private func giveUp() {
    let done = whenFree
    whenFree = {}
    guard let socket else { return done() }
    self.socket = nil
    _ = socket.parcel.take()
    let signpost = signpost
    self.signpost = nil
    poller.offload(to: queue) {
      signpost?.remove()
      socket.removeFile()
    } then: { _ in
      done()
    }
  }

  private func greet(_ client: consuming Descriptor) {
    guard conversations.count < Self.most, ControlSocket.admits(client.raw, at: address) else { return }
    // Strong: an answer under way must come to its end even when the socket has moved elsewhere.
    let conversation = Conversation(client, on: poller, answerLimit: answerLimit, answer: answer) { [self] over in
      conversations[ObjectIdentifier(over)] = nil
    }
    conversations[ObjectIdentifier(conversation)] = conversation
  }
}

/// A listening control socket, and the calls on its address. They block.
struct ControlSocket: Sendable {
  let parcel: DescriptorParcel
  /// Nil for an abstract address.
  private let door: UnixDoor?

  static func open(_ address: ControlAddress) -> Result<ControlSocket, OpenFailure> {
    do throws(OpenFailure) {
      switch address {
      case .path(let path):
        let door = try UnixDoor.open(path, NodeOwnership(mode: 0o660), queue: queue)
        return .success(ControlSocket(parcel: door.socket, door: door))
      case .abstract:
        do throws(SystemError) {
          return .success(ControlSocket(parcel: try bind(address), door: nil))
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

  func removeFile() { door?.removeFile() }

  /// Whoever could open a path may ask. An abstract address has no mode: there the kernel says who it is.
  static func admits(_ client: Int32, at address: ControlAddress) -> Bool {
    guard case .abstract = address else { return true }
    var user = uid_t()
    return linux_peer_user(client, &user) == 0 && (user == 0 || user == geteuid())
  }
}
