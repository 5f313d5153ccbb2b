// The recording of a group's shared link: begins with the group, begins anew when a reload changes `capture` or the
// endpoint, ends with the group. Clients notice nothing of it.

import ByteStreams
import StreamBroker

/// Owns the tap of a group's link. Lives on the lane.
final class GroupRecording {
  private let environment: CaptureEnvironment
  private let poller: Poller
  private let status: StatusSink
  /// Since the group began, over all its recordings.
  private let counts = CaptureCounts()
  private var tap: CaptureTap?
  /// What is to be recorded now, and how.
  private var plan: Plan?
  /// Set while there is no memory for a recording.
  private var failure: SystemError?
  /// A file system that hangs does not keep the gateway from ending.
  private static let longestEnd = Duration.seconds(2)

  private struct Plan: Equatable {
    let subject: CaptureSubject
    let capture: Config.Capture
  }

  init(_ environment: CaptureEnvironment, on poller: Poller, _ status: StatusSink) {
    self.environment = environment
    self.poller = poller
    self.status = status
  }

  deinit { tap?.end() }

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
    tap?.end()
    tap = nil
    failure = nil
    if let plan {
      do throws(SystemError) {
        tap = try CaptureTap(plan.subject, plan.capture, counts: counts, on: poller, environment, status)
      } catch {
        failure = error
        status.publish(.captureStopped(route: plan.subject.route, path: plan.capture.file, error))
      }
    }
    link.hub.record(to: tap)
  }

  func retry(_ link: Link?) {
    if let link, failure != nil { return begin(link) }
    tap?.retry()
  }

  /// Calls `done` on the lane once everything is written, or after 2 s.
  func end(of link: Link?, then done: @escaping () -> Void) {
    link?.hub.record(to: nil)
    guard let tap else { return done() }
    self.tap = nil
    var done: (() -> Void)? = done
    let once = {
      done?()
      done = nil
    }
    let timer = poller.timers.after(Self.longestEnd, once)
    let answer: @Sendable (Bool) -> Void = poller.expect { [poller] _ in
      poller.timers.cancel(timer)
      once()
    }
    tap.end { answer(true) }
  }

  /// Nil without a recording.
  var facts: Snapshot.Capture? {
    guard tap != nil || failure != nil else { return nil }
    let state = tap?.state
    return Snapshot.Capture(
      file: state?.path, error: state?.error ?? failure?.description, written: counts.bytesWritten,
      dropped: counts.bytesDropped)
  }
}
