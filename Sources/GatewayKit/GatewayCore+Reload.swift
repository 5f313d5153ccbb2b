// Reloading, the same way whoever asked for it: a signal, the control socket, a changed file, a program. One at a time; those
// that come meanwhile are carried out together, by the latest configuration.

import ByteStreams
import StreamBroker

extension GatewayCore {
  /// How long listeners may take for their first answer before a reload counts as carried out all the same.
  private static let listenersLimit = Duration.seconds(2)
  private static let look = Duration.milliseconds(10)

  // MARK: - From the file

  func reloadFromSource(then done: @escaping (ReloadOutcome) -> Void) {
    guard let source else { return done(.noSource) }
    guard !isStopping else { return done(.stopping) }
    status.tell(.reloading)
    poller.offload(to: reloadQueue) { () -> Result<Config, ConfigProblems> in
      do throws(ConfigProblems) { return .success(try source.load()) } catch { return .failure(error) }
    } then: { [self] result in
      switch result {
      case .success(let config): reload(config, then: done)
      case .failure(let problems):
        status.tell(.reloadFailed(problems: problems.description.split(separator: "\n").map(String.init)))
        done(.refused(problems))
      }
    }
  }

  func watchSource() {
    guard let source, watch == nil, !isStopping else { return }
    watch = ConfigWatch(source.path, on: poller) { [weak self] in
      self?.reloadFromSource { _ in }
    } failed: { [status] error in
      status.tell(.watchFailed(error, path: source.path))
    }
  }

  // MARK: - To a configuration

  func reload(_ new: Config, then done: @escaping (ReloadOutcome) -> Void) {
    guard !isStopping, config != nil else { return done(.stopping) }
    reloadsToCome.append((new, done))
    if reloading == nil && reloadWaiters.isEmpty { beginReload() }
  }

  private func beginReload() {
    guard let new = reloadsToCome.last?.config, let old = config else { return }
    reloadWaiters = reloadsToCome.map(\.done)
    reloadsToCome = []
    config = new
    tellReception(new)
    let plan = ReloadPlan(from: old, to: new)
    reloadReport = plan.report
    if let source, new.control != old.control { moveControl(to: source.control(new)) }
    poller.offload(to: reloadQueue) {
      // Names may have come to lead elsewhere since they were read, so the old ones are looked up as well.
      plan.movesDevices ? (Self.devices(of: old), Self.devices(of: new)) : ([:], [:])
    } then: { [self] had, wanted in
      guard !isStopping else { return }
      reloading = Reloading(plan, from: old.routes, had: had, wanted: wanted)
      goOn()
    }
  }

  private static func devices(of config: Config) -> Reloading.Devices {
    var devices: Reloading.Devices = [:]
    for route in config.routes {
      guard let written = route.endpoint.device else { continue }
      let real = (try? Gateway.broker.connector(route.endpoint))?.realDevice
      devices[route.name] = real.map { [written, $0] } ?? [written]
    }
    return devices
  }

  private func goOn() {
    // In place: a copy of thousands of routes for each that is done would be too much.
    guard !isStopping, let steps = reloading?.steps() else { return }
    for step in steps { carryOut(step) }
    if let reloading, reloading.isOver { awaitListeners(Self.listenersLimit) }
  }

  private func carryOut(_ step: Reloading.Step) {
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

  /// Every listener answers once, soon: bound, or waiting for its address.
  private func awaitListeners(_ left: Duration) {
    reloading = nil
    guard !isStopping else { return }
    if !board.isSettled && left > .zero {
      poller.timers.after(Self.look) { [self] in awaitListeners(left - Self.look) }
      return
    }
    guard let reception = surroundings.reception else { return isCarriedOut() }
    let back = Resident(self, on: home)
    reception.post { _, reception in
      let (faults, areRead) = reception.certificates
      back.post { _, core in core.awaitCertificates(faults, areRead, left) }
    }
  }

  /// They are being read beside the lanes; whoever asked for the reload is to know what came of that.
  private func awaitCertificates(_ faults: [String], _ areRead: Bool, _ left: Duration) {
    guard !isStopping else { return }
    if !areRead && left > .zero {
      poller.timers.after(Self.look) { [self] in awaitListeners(left - Self.look) }
      return
    }
    reloadReport.certificateFaults = faults + (areRead ? [] : ["files of certificates are being read still"])
    isCarriedOut()
  }

  private func isCarriedOut() {
    status.tell(.reloaded(reloadReport))
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
