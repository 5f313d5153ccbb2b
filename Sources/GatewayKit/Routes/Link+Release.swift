// `baudway release` and `reopen`: gives the port of a shared link up, so that another program can use it, and takes it
// back. In between, clients are treated as with a device that is absent.

import ByteStreams
import StreamBroker

/// Why a client of a released route ends, where `device.absent` is `close`.
struct PortReleased: Error, CustomStringConvertible {
  let description = "the port was released"
}

extension Link {
  /// How long the driver may take to close the port.
  private static let longestClose = Duration.seconds(10)

  /// Closes the endpoint in order, and opens it no more. Calls `done` once the port is closed, so that another program can
  /// open it.
  func release(then done: @escaping (Result<String, LinkRefusal>) -> Void) {
    if isStopping { return done(.failure(LinkRefusal("the route is ending"))) }
    releases.append(done)
    follow(machine.handle(.released))
    if status == .waiting(.released) { answerReleases() }
  }

  /// Opens it again, if it is needed.
  func reopen() {
    let isFree = machine.state == .released
    follow(machine.handle(.reopened))
    refuseReleases()
    if isFree { hub.upstream.setDropsInput(false) }
    if isNeeded { follow(machine.handle(.wanted)) } else if isFree { setStatus(.closed) }
  }

  func isReleased() {
    treatClients(leavingWith: Ending(.deviceLost, PortReleased()))
    answerReleases()
  }

  /// Calls them when the driver has closed the port.
  private func answerReleases() {
    guard !releases.isEmpty, !poller.closings.isOver(since: closeMark) else {
      return answerReleases(.success("released"))
    }
    let timer = poller.timers.after(Self.longestClose) { [weak self] in
      self?.answerReleases(.failure(LinkRefusal("the driver has not closed the port yet; it stays released")))
    }
    let isClosed = poller.expect { [weak self, poller] (_: Bool) in
      poller.timers.cancel(timer)
      self?.answerReleases(.success("released"))
    }
    poller.closings.whenTheseEnd(since: closeMark) { isClosed(true) }
  }

  private func answerReleases(_ result: Result<String, LinkRefusal>) {
    let answers = releases
    releases = []
    for answer in answers { answer(result) }
  }

  func refuseReleases() { answerReleases(.failure(LinkRefusal("the link was opened again, or ended, meanwhile"))) }
}
