// The recording of a group's shared link: begins with the group, begins anew when a reload changes `capture` or the
// endpoint, ends with the group. Clients notice nothing of it.

import ByteStreams
import StreamBroker

/// Owns the tap of a group's link: that of a file, and of commands that record live. Lives on the lane.
final class GroupRecording {
  private let environment: CaptureEnvironment
  private let poller: Poller
  private let status: StatusSink
  /// Of files, since the group began.
  private let counts = CaptureCounts()
  /// While there is a recording.
  private var tap: CaptureTap?
  private var file: (outlet: CaptureOutlet, writer: CaptureWriter)?
  /// What is to be recorded in files now, and how.
  private var plan: Plan?
  /// Set while there is no memory for a recording.
  private var failure: SystemError?
  private var hasEnded = false
  /// A file system that hangs, or a command that does not read, does not keep the gateway from ending.
  private static let longestEnd = Duration.seconds(2)
  /// For a command, somebody watches.
  private static let liveDelay = Duration.milliseconds(20)

  private struct Plan: Equatable {
    let subject: CaptureSubject
    let capture: Config.Capture
  }

  init(_ environment: CaptureEnvironment, on poller: Poller, _ status: StatusSink) {
    self.environment = environment
    self.poller = poller
    self.status = status
  }

  deinit { if let tap { for outlet in tap.outlets { tap.end(outlet) } } }

  // MARK: - Files

  /// Records the link from now on as `settings` say, with a new file if they say something else than before.
  func follow(_ settings: RouteSettings, of link: Link?) {
    guard let link else { return }
    let wanted = settings.capture.map {
      Plan(subject: CaptureSubject(route: settings.name, endpoint: settings.endpoint), capture: $0)
    }
    guard wanted != plan else { return }
    plan = wanted
    begin(link)
  }

  private func begin(_ link: Link) {
    if let file { remove(file.outlet, of: link) }
    file = nil
    failure = nil
    guard let plan else { return }
    do throws(SystemError) {
      let buffer = try CaptureBuffer(counts: counts)
      let writer = CaptureWriter(plan.subject, plan.capture, from: buffer, environment, status)
      let outlet = CaptureOutlet(buffer, to: writer, on: poller, retryEvery: plan.capture.rotateEvery)
      file = (outlet, writer)
      writer.begin()
      add(outlet, of: link)
    } catch {
      failure = error
      status.publish(.captureStopped(route: plan.subject.route, path: plan.capture.file, error))
    }
  }

  func retry(_ link: Link?) {
    if let link, failure != nil { return begin(link) }
    file?.outlet.retry()
  }

  // MARK: - Live

  /// Records the link for a command, too, until `endLive`.
  func beginLive(_ buffer: CaptureBuffer, to drain: any CaptureDrain, of link: Link) {
    guard !hasEnded else { return drain.end(at: environment.wallTime(), [], losing: CaptureLoss()) {} }
    add(CaptureOutlet(buffer, to: drain, on: poller, delay: Self.liveDelay), of: link)
  }

  func endLive(_ drain: any CaptureDrain, of link: Link?) {
    if let outlet = tap?.outlets.first(where: { $0.drain === drain }) { remove(outlet, of: link) }
  }

  // MARK: - The tap

  private func add(_ outlet: CaptureOutlet, of link: Link) {
    if let tap { return tap.add(outlet) }
    let new = CaptureTap(environment.wallTime)
    tap = new
    new.add(outlet)
    link.hub.record(to: new)
  }

  private func remove(_ outlet: CaptureOutlet, of link: Link?) {
    tap?.end(outlet)
    guard let tap, tap.outlets.isEmpty else { return }
    self.tap = nil
    link?.hub.record(to: nil)
  }

  /// Calls `done` on the lane once everything is written, or after 2 s.
  func end(of link: Link?, then done: @escaping () -> Void) {
    hasEnded = true
    link?.hub.record(to: nil)
    guard let tap else { return done() }
    self.tap = nil
    file = nil
    var left = tap.outlets.count
    var done: (() -> Void)? = done
    let once = {
      done?()
      done = nil
    }
    let timer = poller.timers.after(Self.longestEnd, once)
    for outlet in tap.outlets {
      let answer: @Sendable (Bool) -> Void = poller.expect { [poller] _ in
        left -= 1
        guard left == 0 else { return }
        poller.timers.cancel(timer)
        once()
      }
      tap.end(outlet) { answer(true) }
    }
  }

  /// Nil without a recording.
  var facts: Snapshot.Capture? {
    guard file != nil || failure != nil else { return nil }
    let state = file?.writer.state
    return Snapshot.Capture(
      file: state?.path, error: state?.error ?? failure?.description, written: counts.bytesWritten,
      dropped: counts.bytesDropped)
  }
}
