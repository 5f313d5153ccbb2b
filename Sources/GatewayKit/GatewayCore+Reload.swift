// Reloads, the same way for a signal, the control socket, a changed file and an embedding program. One reload runs at a
// time. Those requested meanwhile are carried out together, with the latest configuration.

import ByteStreams
import StreamBroker

extension GatewayCore {
  /// How long to wait for the first result of all listeners. After that the reload counts as done all the same.
  private static let listenersLimit = Duration.seconds(2)
  private static let look = Duration.milliseconds(10)

  // MARK: - From the file

  func reloadFromSource(then done: @escaping (ReloadOutcome) -> Void) {
    guard let source else { return done(.noSource) }
    guard !isStopping else { return done(.stopping) }
    status.publish(.reloading)
    poller.offload(to: reloadQueue) { () -> Result<(config: Config, warnings: [ConfigProblem]), ConfigProblems> in
      do throws(ConfigProblems) { return .success(try source.load()) } catch { return .failure(error) }
    } then: { [self] result in
      switch result {
      case .success(let new):
        for warning in new.warnings { status.publish(.configurationDoubtful(warning)) }
        reload(new.config, then: done)
      case .failure(let problems):
        newestIsRefused = true
        status.publish(.reloadFailed(problems: problems.description.split(separator: "\n").map(String.init)))
        done(.refused(problems))
      }
    }
  }

  func watchSource() {
    guard source != nil, watch == nil, !isStopping else { return }
    beginWatch()
  }

  private func beginWatch() {
    guard let source else { return }
    watch?.cancel()
    watch = ConfigWatch([source.path] + (config?.includes ?? []), on: poller) { [weak self] in
      self?.reloadFromSource { _ in }
    } failed: { [status] error, path in
      status.publish(.watchFailed(error, path: path))
    }
  }

  // MARK: - To a configuration

  func reload(_ new: Config, then done: @escaping (ReloadOutcome) -> Void) {
    guard !isStopping, config != nil else { return done(.stopping) }
    newestIsRefused = false
    reloadsToCome.append((new, done))
    if reloading == nil && reloadWaiters.isEmpty { beginReload() }
  }

  private func beginReload() {
    guard let new = reloadsToCome.last?.config, let old = config else { return }
    reloadWaiters = reloadsToCome.map(\.done)
    reloadsToCome = []
    config = new
    if watch != nil, new.includes != old.includes { beginWatch() }
    updateHandshakeServer(new)
    // Before the first route changes: routes change one after the other, and what an old endpoint led to is no loop.
    for route in new.routes { environment.ownConnections.route(route.name, leadsTo: route.endpoint) }
    let plan = ReloadPlan(from: old, to: new)
    reloadReport = plan.report
    if let source, new.control != old.control { moveControl(to: source.control(new)) }
    for route in running.values where route.config.capture != nil {
      route.route.post { _, route in route.retryRecording() }
    }
    poller.offload(to: reloadQueue) {
      // The old names are resolved again as well, since they may lead to other devices than when they were read.
      plan.movesDevices ? (Self.devices(of: old), Self.devices(of: new)) : ([:], [:])
    } then: { [self] had, wanted in
      guard !isStopping else { return }
      reloading = ReloadSequence(plan, from: old.routes, had: had, wanted: wanted)
      updateAdmin(new) { [self] in goOn() }
    }
  }

  private static func devices(of config: Config) -> ReloadSequence.Devices {
    var devices: ReloadSequence.Devices = [:]
    for route in config.routes {
      guard let written = route.endpoint.device else { continue }
      let real = (try? Gateway.broker.connector(route.endpoint))?.realDevice
      devices[route.name] = real.map { [written, $0] } ?? [written]
    }
    return devices
  }

  private func goOn() {
    // `steps()` mutates in place: copying thousands of routes after each finished one would take too long.
    guard !isStopping, let steps = reloading?.steps() else { return }
    for step in steps { carryOut(step) }
    if let reloading, reloading.isOver { awaitListeners(Self.listenersLimit) }
  }

  private func carryOut(_ step: ReloadSequence.Step) {
    switch step {
    case .stop(let name):
      stopRoute(name, .routeRemoved) { [self] in
        reloading?.letGo(name)
        goOn()
      } then: { [self] in
        reloading?.over(name)
        goOn()
      }
    case .narrow(let route):
      updateRoute(route) { [self] in
        reloading?.letGo(route.name)
        goOn()
      }
    case .update(let route):
      updateRoute(route) { [self] in
        reloading?.over(route.name)
        goOn()
      }
    case .start(let route): startRoute(route)
    }
  }

  /// Waits until every listener has reported its first result: bound, or waiting for its address.
  private func awaitListeners(_ left: Duration) {
    reloading = nil
    guard !isStopping else { return }
    if !board.isSettled && left > .zero {
      poller.timers.after(Self.look) { [self] in awaitListeners(left - Self.look) }
      return
    }
    guard let handshakeServer = environment.handshakeServer else { return isCarriedOut() }
    let back = LaneRef(self, on: home)
    handshakeServer.post { _, handshakeServer in
      let (faults, areRead) = handshakeServer.certificates
      back.post { _, core in core.awaitCertificates(faults, areRead, left) }
    }
  }

  /// Certificates are read off the lanes. The answer to the reload includes what is wrong with them.
  private func awaitCertificates(_ faults: [String], _ areRead: Bool, _ left: Duration) {
    guard !isStopping else { return }
    if !areRead && left > .zero {
      poller.timers.after(Self.look) { [self] in awaitListeners(left - Self.look) }
      return
    }
    reloadReport.certificateFaults = faults + (areRead ? [] : ["certificate files are still being read"])
    isCarriedOut()
  }

  private func isCarriedOut() {
    reloadReport.newerWasRefused = newestIsRefused
    status.publish(.reloaded(reloadReport))
    let waiters = reloadWaiters
    reloadWaiters = []
    for done in waiters { done(.carriedOut(reloadReport)) }
    if !reloadsToCome.isEmpty && reloadWaiters.isEmpty { beginReload() }
  }

  func giveUpReloads() {
    let waiters = reloadWaiters + reloadsToCome.map(\.done)
    reloading = nil
    reloadWaiters = []
    reloadsToCome = []
    for done in waiters { done(.stopping) }
  }
}
