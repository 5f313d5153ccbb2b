// Openings of every scheme that are cancelled while they hang, or at any moment: the task ends soon, and nothing is
// left.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

import StreamBroker
@testable import StreamBrokerCore

/// An endpoint whose opening hangs until `release()`.
private final class HangingEndpoint: Sendable {
  enum Kind: String, CaseIterable, CustomTestStringConvertible {
    case tcp, name, tls, ws, wss, rfc2217, rfc2217s, telnet, unix, unixPath, pty, exec, tty, ttyDriver

    var testDescription: String { rawValue }
  }

  let url: String
  let release: @Sendable () -> Void
  private let kept: [any Sendable]
  /// Whether this is the step that hangs.
  let isLast: @Sendable (OpeningStep) -> Bool

  private static let count = Atomic<Int>(0)

  init(_ kind: Kind) throws {
    let folder = try TemporaryFolder()
    switch kind {
    case .tcp:
      // The queue is full, so the kernel drops further attempts.
      let listener = try LoopbackListener(backlog: 0)
      let fillers = try Fillers(listener.address)
      (url, kept, release) = ("tcp://\(listener.address)", [listener, fillers], {})
      isLast = { if case .connect = $0 { true } else { false } }
    case .name:
      let name = "hangs\(Self.count.add(1, ordering: .relaxed).newValue).test"
      let (hasBegun, mayEnd) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
      let lane = try Lane("name")
      lane.post { lane in
        NameLookup.start(
          name, on: lane.poller,
          resolve: { _ in
            mayEnd.wait()
            return .success([])
          }, then: { _ in })
        hasBegun.signal()
      }
      hasBegun.wait()  // otherwise the opening's own look-up may come first, and does not hang
      (url, kept, release) = (
        "tcp://\(name):1", [],
        {
          mayEnd.signal()
          lane.stop()
        }
      )
      isLast = { if case .lookUp = $0 { true } else { false } }
    case .tls, .wss, .rfc2217s:
      let listener = try LoopbackListener()
      let authority = try TestAuthority()
      try folder.write("ca.pem", authority.pem)
      (url, kept, release) = ("\(kind)://\(listener.address)?ca=\(folder / "ca.pem")", [listener, folder], {})
      isLast = { if case .secure = $0 { true } else { false } }
    case .ws:
      let listener = try LoopbackListener()
      (url, kept, release) = ("ws://\(listener.address)/x", [listener], {})
      isLast = { if case .open = $0 { true } else { false } }
    case .rfc2217, .telnet:
      let listener = try LoopbackListener()
      (url, kept, release) = ("\(kind)://\(listener.address)", [listener], {})
      isLast = { if case .open = $0 { true } else { false } }
    case .unix:
      let server = try UnixServer(folder / "full", backlog: 0)
      let fillers = try Fillers(server.path)
      (url, kept, release) = ("unix://\(server.path)", [server, fillers, folder], {})
      isLast = { if case .connect = $0 { true } else { false } }
    case .unixPath:
      (url, kept, release) = Self.blocked("unix ", folder / "x", folder)
      isLast = { if case .connect = $0 { true } else { false } }
    case .pty, .exec:
      (url, kept, release) = Self.blocked("\(kind) ", folder / "x", folder)
      isLast = { if case .open = $0 { true } else { false } }
    case .tty:
      (url, kept, release) = Self.blocked("tty://", folder / "x", folder)
      isLast = { if case .open = $0 { true } else { false } }
    case .ttyDriver:
      let gate = RecordedTTY.Gate()
      let endpoint = TestEndpoint(TTYConnector(try RecordedTTY(gate: gate)))
      (url, kept, release) = (endpoint.url, [endpoint], { gate.open() })
      isLast = { if case .open = $0 { true } else { false } }
    }
  }

  /// An endpoint whose queue hangs in a call before the opening's.
  private static func blocked(
    _ prefix: String, _ path: String, _ folder: TemporaryFolder
  ) -> (String, [any Sendable], @Sendable () -> Void) {
    let url = prefix.hasSuffix("://") ? prefix + path : "\(prefix.dropLast())://\(path)"
    let real = url.hasPrefix("exec") ? "exec:\(path)" : url
    let name = prefix.hasPrefix("tty") ? (try? EndpointURL(url))?.target ?? "" : prefix + path
    let device = DeviceQueue.of(name)
    let mayEnd = DispatchSemaphore(value: 0)
    device.queue.async { mayEnd.wait() }
    return (real, [device, folder], { mayEnd.signal() })
  }

  /// Connections that fill the queue of a server.
  private final class Fillers: Sendable {
    private let sockets: [DescriptorParcel]

    init(_ address: SocketAddress) throws {
      sockets = try (0..<6).map { _ in
        let socket = try Descriptor.socket(address.family)
        _ = address.withSockaddr { connect(socket.raw, $0, $1) }
        return DescriptorParcel(socket)
      }
    }

    init(_ path: String) throws {
      sockets = try (0..<6).map { _ in
        let socket = Descriptor(owning: linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0))
        _ = try UnixAddress.path(path).withSockaddr { connect(socket.raw, $0, $1) }
        return DescriptorParcel(socket)
      }
    }
  }
}

private let broker = Broker(Schemes.standard + [TestConnector.self])

@Suite("An opening that hangs", .timeLimit(.minutes(5)))
struct OpeningCancellationTests {
  /// Begins to open, and returns when the step that hangs has begun.
  private func begin(
    _ hanging: HangingEndpoint, on lane: Lane?, timeout: Duration
  ) async -> Task<Void, any Error> {
    let (steps, feed) = AsyncStream.makeStream(of: OpeningStep.self)
    let observer = StreamObserver()
    let watching = Task {
      for await event in observer.events { if case .step(let step) = event { feed.yield(step) } }
    }
    let task = Task {
      defer { watching.cancel() }
      if let lane {
        try await onLane(lane) { lane in
          var request = OpenRequest()
          request.report = { feed.yield($0) }
          try await broker.open(hanging.url, request, on: lane, timeout: timeout).close()
        }
      } else {
        try await broker.connect(hanging.url, timeout: timeout, observer: observer).close()
      }
    }
    for await step in steps where hanging.isLast(step) { break }
    return task
  }

  @Test(
    "ends soon after its task is cancelled, and leaves nothing",
    arguments: HangingEndpoint.Kind.allCases, [false, true])
  fileprivate func cancelled(kind: HangingEndpoint.Kind, asHandle: Bool) async throws {
    try await expectNoDescriptorLeak {
      let hanging = try HangingEndpoint(kind)
      let lane = asHandle ? nil : try Lane("test")
      // Nothing is left even before the call that blocks has returned.
      try await expectNoDescriptorLeak {
        for _ in 0..<3 {
          let task = await begin(hanging, on: lane, timeout: .seconds(60))
          let took = await time {
            task.cancel()
            await #expect(throws: CancellationError.self) { try await task.value }
          }
          #expect(took < soon)
          if kind == .ttyDriver || kind == .tty || kind == .pty { break }  // two hanging attempts are all there may be
        }
      }
      hanging.release()
      lane?.stop()
    }
  }

  /// The promise is for a quiet machine. Half of the times must keep it on any; the longest is printed.
  @Test(
    "ends within 50 ms after its task is cancelled", .timed, arguments: HangingEndpoint.Kind.allCases, [false, true])
  fileprivate func promptly(kind: HangingEndpoint.Kind, asHandle: Bool) async throws {
    var times: [UInt64] = []
    for _ in 0..<21 {
      let hanging = try HangingEndpoint(kind)
      let lane = asHandle ? nil : try Lane("test")
      let task = await begin(hanging, on: lane, timeout: .seconds(60))
      times.append(
        await time {
          task.cancel()
          await #expect(throws: CancellationError.self) { try await task.value }
        })
      hanging.release()
      lane?.stop()
    }
    times.sort()
    print(
      "cancelled: \(kind), \(asHandle ? "connect" : "open"): median \(times[10] / 1000) us, most \(times[20] / 1000) us"
    )
    #expect(times[10] < 50_000_000)
  }

  @Test("ends at its timeout, which covers all steps", .waits, arguments: HangingEndpoint.Kind.allCases, [false, true])
  fileprivate func timeout(kind: HangingEndpoint.Kind, asHandle: Bool) async throws {
    try await expectNoDescriptorLeak {
      let hanging = try HangingEndpoint(kind)
      let lane = asHandle ? nil : try Lane("test")
      let took = await time {
        let task = await begin(hanging, on: lane, timeout: .milliseconds(100))
        let failure = await #expect(throws: OpenFailure.self) { try await task.value }
        #expect(failure?.cause?.errno == ETIMEDOUT)
      }
      #expect(took >= 100_000_000 && took < 100_000_000 + 5_000_000_000)
      hanging.release()
      lane?.stop()
    }
  }

  @Test("and opens after all, in a driver, is closed when the driver returns")
  func driver() async throws {
    let gate = RecordedTTY.Gate()
    let tty = try RecordedTTY(gate: gate)
    let endpoint = TestEndpoint(TTYConnector(tty))
    let task = Task { try await broker.connect(endpoint.url) }
    await withCheckedContinuation { continuation in
      DispatchQueue(label: "test helper").async {
        gate.waitForFirst()
        continuation.resume()
      }
    }
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
    #expect(!tty.isClosed)
    gate.open()
    #expect(try await onOwnThread { tty.closes() })
  }

  @Test(
    "is not begun by a task that is cancelled already",
    arguments: [
      "tcp://127.0.0.1:1", "tty:///dev/null", "exec:/bin/cat", "sim://echo", "unix:///x", "ws://localhost:1/",
      "rfc2217://127.0.0.1:1", "telnet://127.0.0.1:1",
    ])
  func early(url: String) async throws {
    for asHandle in [false, true] {
      let task = Task {
        withUnsafeCurrentTask { $0?.cancel() }
        if asHandle {
          try await broker.connect(url).close()
        } else {
          try await onLane { lane in try await broker.open(url, on: lane).close() }
        }
      }
      await #expect(throws: CancellationError.self) { try await task.value }
    }
  }

  @Test("leaves no open stream, at whichever moment its task is cancelled")
  func everyMoment() async throws {
    let (opened, closed) = (Counter(), Counter())
    let endpoint = TestEndpoint { _ in
      opened.add()
      return CountedStream(closed)
    }
    for round in 0..<3000 {
      let task = Task { try await broker.connect(endpoint.url) }
      if round % 2 == 0 { for _ in 0..<round % 7 { await Task.yield() } } else { usleep(UInt32(round % 40)) }
      task.cancel()
      try? await task.value.close()
    }
    #expect(await eventually { opened.value == closed.value }, "\(opened.value) opened, \(closed.value) closed")
  }

  @Test("of a program that does not exist fails, and says so")
  func missing() async throws {
    let failure = await #expect(throws: OpenFailure.self) { try await broker.connect("exec:/no/such/program") }
    #expect(failure?.cause == SystemError("posix_spawn", ENOENT))
  }
}

private final class Counter: Sendable {
  private let count = Atomic<Int>(0)
  var value: Int { count.load(ordering: .relaxed) }
  func add() { count.add(1, ordering: .relaxed) }
}

/// Never has bytes, and counts when it is closed.
private final class CountedStream: TransportStream {
  var delegate: (any ByteStreamDelegate)?
  var readerWaits: Readiness = []
  var writerWaits: Readiness = []
  private let closed: Counter
  private var isClosed = false

  init(_ closed: Counter) { self.closed = closed }

  func read(into run: UnsafeMutableRawBufferPointer) -> Transfer { .blocked(until: .readable) }
  func write(_ run: UnsafeRawBufferPointer) -> Transfer { .blocked(until: .writable) }

  func close() {
    if !isClosed { closed.add() }
    isClosed = true
    dismissDelegate()
  }
}

/// Servers for many openings.
private final class Servers: Sendable {
  let folder: TemporaryFolder
  let tcp: LoopbackListener
  let unix: UnixServer
  let tls: LoopbackListener
  let remotePort: LoopbackListener
  let pty: Pty
  let rig: TLSRig
  private let isOver = Atomic<Bool>(false)
  private let running = DispatchGroup()

  init() throws {
    folder = try TemporaryFolder()
    tcp = try LoopbackListener()
    unix = try UnixServer(folder / "server")
    tls = try LoopbackListener()
    remotePort = try LoopbackListener()
    pty = try makePty()
    rig = try TLSRig()
    serve { [tcp] in try tcp.accept().close() }
    serve { [unix] in try unix.accept().close() }
    serve { [remotePort] in
      let end = try remotePort.accept()
      _ = try? RFC2217FarEnd(opened: end)
      end.close()
    }
    serve { [tls, rig] in
      let end = try TLSFarEnd(try tls.accept().take(), rig.manner)
      try? end.handshake()
      end.drop()
    }
  }

  private func serve(_ one: @escaping @Sendable () throws -> Void) {
    DispatchQueue(label: "server").async(group: running) { [self] in
      while !isOver.load(ordering: .relaxed) {
        do { try one() } catch { Issue.record(error) }
      }
    }
  }

  func stop() async throws {
    isOver.store(true, ordering: .relaxed)
    for url in ["tcp://\(tcp.address)", "unix://\(unix.path)", "tcp://\(tls.address)", "tcp://\(remotePort.address)"] {
      try await broker.connect(url).abort()
    }
    _ = try await onOwnThread { [running] in running.wait(timeout: .now() + 30) }
    tcp.close()
    unix.close()
    tls.close()
    remotePort.close()
    unlink(unix.path)
    pty.unplug()
  }
}

@Suite("Ten thousand openings", .timeLimit(.minutes(5)), .serialized)
struct ManyOpeningsTests {
  @Test("that are cancelled at any moment leave no descriptor, thread, program, lock file or socket")
  func cancelled() async throws {
    try ProgramGuard.shared.start()  // keeps one descriptor open for good
    let marker = "cancelled-\(UInt64.random(in: 0 ... .max))"
    var random = SeededRandom()
    let seed = random.seed
    // Those that are made once: lanes, and some of Dispatch's threads.
    for _ in 0..<8 { try await broker.connect("sim://echo").close() }
    let threadsBefore = threads()
    let openings = isFullRun ? 10_000 : 2_000
    let outcomes = Outcomes()
    let began = monotonicNanoseconds()
    try await expectNoDescriptorLeak {
      let servers = try Servers()
      let full = try HangingEndpoint(.tcp)
      let fullUnix = try HangingEndpoint(.unix)
      let silentKinds: [HangingEndpoint.Kind] = [.tls, .ws, .wss, .rfc2217, .rfc2217s, .telnet]
      let silent = try silentKinds.map { try HangingEndpoint($0) }
      let folder = servers.folder
      let urls =
        [
          "tcp://\(servers.tcp.address)", "tcp://\(servers.tcp.address)", "tcp://localhost:\(servers.tcp.address.port)",
          full.url, "unix://\(servers.unix.path)", "unix://\(servers.unix.path)", fullUnix.url,
          "tls://\(servers.tls.address)\(servers.rig.query)", "tty://\(servers.pty.path)", "pty://\(folder / "pty0")",
          "pty://\(folder / "pty1")", "exec:/bin/sh?arg=-c&arg=cat&arg=\(marker)", "sim://echo", "sim://echo",
          "rfc2217://\(servers.remotePort.address)", "rfc2217://\(servers.remotePort.address)",
        ] + silent.map(\.url)
      let lanes = try (0..<2).map { try Lane("openings \($0)") }
      let mayGo = AsyncSemaphore(64)
      await withTaskGroup(of: Void.self) { group in
        for number in 0..<openings {
          let url = urls.randomElement(using: &random)!
          let (asHandle, delay) = (Bool.random(using: &random), UInt32.random(in: 0...3000, using: &random))
          let lane = lanes[number % 2]
          await mayGo.take()
          group.addTask {
            let task = Task {
              if asHandle {
                let stream = try await broker.connect(url, timeout: .seconds(20))
                // The others end with their last reference.
                if number % 3 == 0 { stream.close() } else if number % 3 == 1 { stream.abort() }
              } else {
                try await onLane(lane) { lane in
                  try await broker.open(url, on: lane, timeout: .seconds(20)).close()
                }
              }
            }
            if delay < 2000 {
              try? await Task.sleep(for: .microseconds(delay))
            } else {
              for _ in 0..<delay % 10 { await Task.yield() }
            }
            let cancelled = monotonicNanoseconds()
            task.cancel()
            do {
              try await task.value
              outcomes.opened.add(1, ordering: .relaxed)
            } catch is CancellationError {
              outcomes.cancelled.add(1, ordering: .relaxed)
            } catch is OpenFailure {
              outcomes.failed.add(1, ordering: .relaxed)
            } catch { Issue.record(error, "\(url), seed \(seed)") }
            let took = monotonicNanoseconds() - cancelled
            outcomes.took.withLock { $0.append(took) }
            // One of 64 on a busy machine may wait long for a processor; without the cancellation it would be 20 s.
            expectQuick(took, 10_000_000_000)
            mayGo.pass()
          }
        }
      }
      let lock = "/var/lock/LCK..\(servers.pty.node.dropFirst(5).replacing("/", with: "_"))"
      #expect(await eventually { access(lock, F_OK) != 0 }, "a lock file is left")
      #expect(await eventually { names(in: folder.path) == ["server"] }, "a pty's link is left")
      #expect(await eventually { programs(with: marker) == 0 }, "a program is left")
      try await servers.stop()
      for lane in lanes { lane.stop() }
    }
    let seconds = Double(monotonicNanoseconds() - began) / 1e9
    let threadsAtTheEnd = threads()
    var waited = 0.0
    if isFullRun {
      // Dispatch ends a thread after five seconds without work; tasks, also those that sleep, would be work.
      while threads() > threadsBefore, waited < 30 {
        usleep(100_000)
        waited += 0.1
      }
      #expect(threads() <= threadsBefore, "\(threads()) threads are left of \(threadsBefore)")
    }
    let (opened, cancelled, failed) = (
      outcomes.opened.load(ordering: .relaxed), outcomes.cancelled.load(ordering: .relaxed),
      outcomes.failed.load(ordering: .relaxed)
    )
    print(
      "\(openings) openings in \(seconds) s: \(opened) opened, \(cancelled) cancelled, \(failed) failed;",
      "threads: \(threadsBefore) before, \(threadsAtTheEnd) at the end, \(threads()) after \(waited) s")
    #expect(opened > openings / 100 && cancelled > openings / 10, "seed \(seed)")
    let median = outcomes.took.withLock { $0.sorted()[openings / 2] }
    #expect(median < soon, "seed \(seed)")
  }
}

private final class Outcomes: Sendable {
  let opened = Atomic<Int>(0)
  let cancelled = Atomic<Int>(0)
  let failed = Atomic<Int>(0)
  /// Nanoseconds from a cancellation to the end of its task.
  let took = Mutex<[UInt64]>([])
}

/// Lets some tasks go on at a time.
private final class AsyncSemaphore: Sendable {
  private struct State {
    var left: Int
    var waiting: [CheckedContinuation<Void, Never>] = []
  }
  private let state: Mutex<State>

  init(_ count: Int) { state = Mutex(State(left: count)) }

  func take() async {
    await withCheckedContinuation { continuation in
      let isFree = state.withLock { state in
        if state.left > 0 {
          state.left -= 1
          return true
        }
        state.waiting.append(continuation)
        return false
      }
      if isFree { continuation.resume() }
    }
  }

  func pass() {
    let next = state.withLock { state -> CheckedContinuation<Void, Never>? in
      guard state.waiting.isEmpty else { return state.waiting.removeFirst() }
      state.left += 1
      return nil
    }
    next?.resume()
  }
}

private func threads() -> Int { names(in: "/proc/self/task").count }

/// The number of processes with `word` among their arguments.
private func programs(with word: String) -> Int {
  names(in: "/proc").filter { name in
    guard Int(name) != nil, let line = FileSystem.beginning(of: "/proc/\(name)/cmdline") else { return false }
    return String(decoding: line, as: UTF8.self).contains(word)
  }.count
}

private func names(in folder: String) -> [String] {
  guard let opened = opendir(folder) else { return [] }
  defer { closedir(opened) }
  var found: [String] = []
  while let entry = readdir(opened) {
    let name = withUnsafePointer(to: &entry.pointee.d_name) {
      $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
    }
    if name != ".", name != ".." { found.append(name) }
  }
  return found
}
