// One opening: a look-up of the channel where none was given, then the connection itself. Each step is one of the calls below,
// and what is under way is in `underWay` alone, so that it can be given up at any time.

import ByteStreams
import Glibc
import StreamBroker

final class RFCOMMOpening: Opening {
  private let target: (BluetoothTarget.Service) -> BluetoothTarget
  private let poller: Poller
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var giveUp: () -> Void = {}

  // Where sockets are made. One for all: what can hang there is the loading of the kernel's module, and that hangs for all.
  private let queue = DeviceQueue.of("bluetooth")
  private static let mostAttempts = 1024

  init(
    _ target: @escaping (BluetoothTarget.Service) -> BluetoothTarget, on poller: Poller,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.target = target
    self.poller = poller
    self.done = done
  }

  func lookUp(_ uuid: BluetoothUUID) {
    let sdp = target(.sdp)
    reach(sdp) { [self] socket in
      let conversation = SDPConversation(socket, ChannelLookUp(uuid), on: poller) { [self] answer in
        switch answer {
        case .success(let channel): connect(to: channel)
        case .failure(let fault): finish(.failure(fault.failure(uuid, at: sdp.device)))
        }
      }
      giveUp = { conversation.cancel() }
      conversation.start()
    }
  }

  func connect(to channel: UInt8) {
    reach(target(.rfcomm(channel: channel))) { [self] socket in
      guard let descriptor = socket.take() else { return }
      finish(.success(BluetoothStream(descriptor, on: poller)))
    }
  }

  private func reach(_ target: BluetoothTarget, _ then: @escaping (DescriptorParcel) -> Void) {
    let making = queue.open(target.description, most: Self.mostAttempts, on: poller) {
      target.prepare()
    } undo: {
      _ = $0.take()
    } _: { [self] result in
      switch result {
      case .failure(let failure): finish(.failure(failure))
      case .success(let socket):
        let connecting = BluetoothConnect(socket, on: poller, dialling: target.connect)
        giveUp = { connecting.cancel() }
        connecting.start { [self] result in
          switch result {
          case .failure(let error): finish(.failure(target.failure(error)))
          case .success(let socket): then(socket)
          }
        }
      }
    }
    giveUp = { making.cancel() }
  }

  private func finish(_ result: Result<any ByteStream, OpenFailure>) {
    giveUp = {}
    guard let done else { return }
    self.done = nil
    done(result)
  }

  func cancel() {
    done = nil
    giveUp()
    giveUp = {}
  }
}
