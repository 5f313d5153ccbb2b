// A pair of streams from a URL: where the completion runs, what a failure says, what is known, and notifications.

import ByteStreams
import Foundation
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerFoundation

@Suite("A pair of streams", .timeLimit(.minutes(5)))
struct PairTests {
  @Test("is handed over on the run loop that asked for it", arguments: ["sim://echo", "exec:/bin/cat"])
  func completion(url: String) async throws {
    try await onThread {
      let own = pthread_self()
      nonisolated(unsafe) var pair: (InputStream, OutputStream)?
      Stream.pair(for: url, timeout: .seconds(5)) { result in
        #expect(pthread_equal(own, pthread_self()) != 0)
        pair = try? result.get()
      }
      #expect(pair == nil, "the completion runs later")
      #expect(runLoop { pair != nil })
      #expect(pair?.0.streamStatus == .notOpen && pair?.1.streamStatus == .notOpen)
      #expect(pair?.0.meta?.url == url && pair?.1.meta?.url == url)
    }
  }

  @Test("exchanges bytes without a run loop, from an async function and from a URL")
  func asynchronous() async throws {
    for isURL in [false, true] {
      let pair =
        isURL
        ? try await Stream.pair(for: URL(string: "sim://echo")!) : try await Stream.pair(for: "sim://echo")
      nonisolated(unsafe) let (input, output) = pair
      try await onThread {
        input.open()
        output.open()
        #expect(output.hasSpaceAvailable)
        #expect(output.write([1, 2, 3], maxLength: 3) == 3)
        var bytes = [UInt8](repeating: 0, count: 10)
        var count = 0
        while count < 3 { count += input.read(&bytes[count], maxLength: 10 - count) }
        #expect(bytes.prefix(3) == [1, 2, 3] && !input.hasBytesAvailable)
        #expect(input.property(forKey: .fileCurrentOffsetKey) as? Int == 3)
        #expect(output.property(forKey: .fileCurrentOffsetKey) as? Int == 3)
        #expect(input.property(forKey: .socketSecurityLevelKey) == nil)
        #expect(!output.setProperty(nil, forKey: .fileCurrentOffsetKey))
        input.close()
        output.close()
        #expect(input.streamStatus == .closed && output.streamStatus == .closed)
      }
    }
  }

  @Test(
    "that cannot be made says why, with the errno, the URL and what to do",
    arguments: [
      ("tcp://127.0.0.1:1/ignored", NSPOSIXErrorDomain, Int(ECONNREFUSED), nil),
      ("unix:///nowhere/none", NSPOSIXErrorDomain, Int(ENOENT), "no program listens there yet"),
      ("tyy:///dev/ttyUSB0", "StreamBroker", 0, "Did you mean 'tty'?"),
      ("tty:///dev/none-here", NSPOSIXErrorDomain, Int(ENOENT), "not plugged in?"),
    ] as [(String, String, Int, String?)])
  func failure(url: String, domain: String, code: Int, advice: String?) async throws {
    do {
      _ = try await Stream.pair(for: url)
      Issue.record("\(url) opened")
    } catch let error as NSError {
      #expect(error.domain == domain && error.code == code)
      #expect(error.userInfo[Stream.notificationURLKey] as? String == url.replacing("/ignored", with: ""))
      let cause = try #require(error.userInfo[NSUnderlyingErrorKey] as? any Error)
      #expect(error.localizedDescription == "\(cause)")
      #expect(error.localizedRecoverySuggestion == advice)
    }
  }

  @Test("has what the device reports about itself, and posts that it has changed")
  func facts() async throws {
    let echoless = try Echoless()
    try await echoless.run(failing: 1000) { input, output, far in
      let changes = Kept(0)
      let observer = NotificationCenter.default.addObserver(
        forName: Stream.metaDidChangeNotification, object: input, queue: nil
      ) { _ in changes.change { $0 += 1 } }
      let meta = try #require(input.meta)
      #expect(meta == output.meta && meta.url.hasPrefix("fail://\(echoless.server.path)"))
      #expect(meta.name == "N" && meta.manufacturer == "Ma" && meta.model == "Mo" && meta.serialNumber == "S")
      #expect(meta.version == "F" && meta.signal == -70)
      output.open()
      #expect(output.write([1], maxLength: 1) == 1)
      #expect(runLoop { changes.value >= 1 && input.meta?.signal == -50 })
      #expect(InputStream(data: Data()).meta == nil)
      NotificationCenter.default.removeObserver(observer)
    }
  }

  @Test("is not made if the endpoint does not answer in time")
  func timeout() async throws {
    let folder = try TemporaryFolder()
    let server = try UnixServer(folder / "server", backlog: 0)
    let url = "unix://\(server.path)"
    nonisolated(unsafe) let waiting = try await Stream.pair(for: url)  // fills the backlog
    let error = await #expect(throws: NSError.self) {
      _ = try await Stream.pair(for: url, timeout: .milliseconds(50))
    }
    #expect(error?.code == Int(ETIMEDOUT))
    try await onThread {
      nonisolated(unsafe) var code: Int?
      Stream.pair(for: url, timeout: .milliseconds(50)) { result in
        if case .failure(let error as NSError) = result { code = error.code }
      }
      #expect(runLoop { code == Int(ETIMEDOUT) })
      waiting.0.close()
      waiting.1.close()
    }
    server.close()
  }

  @Test("ends its opening when the task is cancelled")
  func cancelled() async throws {
    let folder = try TemporaryFolder()
    let server = try UnixServer(folder / "server", backlog: 0)
    let url = "unix://\(server.path)"
    nonisolated(unsafe) let waiting = try await Stream.pair(for: url)  // fills the backlog, so the next opening waits
    let task = Task { _ = try await Stream.pair(for: url, timeout: .seconds(30)) }
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
    try await onThread {
      waiting.0.close()
      waiting.1.close()
    }
    server.close()
  }

  private final class Seen: Sendable {
    let names = Mutex<[String]>([])
    func add(_ notification: Notification) {
      let step = notification.userInfo?[Stream.notificationStepKey].map { " \($0)" } ?? ""
      names.withLock { $0.append(notification.name.rawValue.replacing("StreamBroker", with: "") + step) }
    }
    var all: [String] { names.withLock { $0 } }
  }

  @Test("posts its opening and its closing where it was asked to", arguments: ["background", "queue", "run loop"])
  func notifications(place: String) async throws {
    let echoless = try Echoless()
    try await onThread {
      let seen = Seen()
      let url = echoless.url()
      let own = pthread_self()
      let names = [
        Stream.openingStepNotification, Stream.didOpenNotification, Stream.wasLostNotification,
        Stream.didCloseNotification,
      ]
      let observers = names.map { name in
        NotificationCenter.default.addObserver(forName: name, object: nil, queue: nil) { notification in
          guard notification.userInfo?[Stream.notificationURLKey] as? String == url else { return }
          if place == "run loop" { #expect(pthread_equal(own, pthread_self()) != 0) }
          seen.add(notification)
        }
      }
      let where_: Stream.NotificationPlace =
        switch place {
        case "queue": .queue(OperationQueue())
        case "run loop": .runLoop(.current)
        default: .background
        }
      nonisolated(unsafe) var pair: (InputStream, OutputStream)?
      Stream.pair(for: url, notifying: where_) { pair = try? $0.get() }
      #expect(runLoop { pair != nil })
      let far = try echoless.server.accept()
      pair?.0.open()
      pair?.1.open()
      far.close()
      #expect(
        runLoop { seen.all.contains("WasLost") || seen.all.contains("DidClose") || pair!.0.streamStatus == .atEnd })
      pair?.0.close()
      pair?.1.close()
      #expect(runLoop { seen.all.contains("DidClose") }, "\(seen.all)")
      #expect(seen.all.contains("OpeningStep connecting to \(echoless.server.path)"), "\(seen.all)")
      #expect(seen.all.contains("DidOpen"))
      for observer in observers { NotificationCenter.default.removeObserver(observer) }
    }
  }

  @Test("posts in order, also where the queue runs several operations at once")
  func order() async {
    let poster = NotificationPoster(.queue(OperationQueue()), "order://")
    let name = Notification.Name("PairTests.order")
    let seen = Mutex<[String]>([])
    let observer = NotificationCenter.default.addObserver(forName: name, object: nil, queue: nil) { notification in
      let step = notification.userInfo?[Stream.notificationStepKey] as? String
      if step == "0" { usleep(20_000) }  // time for the next one to overtake it
      seen.withLock { $0.append(step ?? "") }
    }
    for number in 0..<500 { poster.post(name, [Stream.notificationStepKey: "\(number)"]) }
    #expect(await eventually { seen.withLock { $0.count } == 500 })
    #expect(seen.withLock { $0 } == (0..<500).map { "\($0)" })
    NotificationCenter.default.removeObserver(observer)
  }

  @Test("posts why its link was lost, once, and then that it is closed")
  func lost() async throws {
    let echoless = try Echoless()
    let seen = Kept<[String]>([])
    let observers = [Stream.wasLostNotification, Stream.didCloseNotification].map { name in
      NotificationCenter.default.addObserver(forName: name, object: nil, queue: nil) { [path = echoless.server.path] in
        guard ($0.userInfo?[Stream.notificationURLKey] as? String)?.contains(path) == true else { return }
        let reason = $0.userInfo?[Stream.notificationReasonKey] as? String
        seen.change { $0.append("\(name.rawValue): \(reason ?? "")") }
      }
    }
    try await echoless.run(failing: 1) { input, output, far in
      #expect(runLoop { seen.value.count == 2 })
      input.close()
      output.close()
      far.close()
      idle()
    }
    #expect(seen.value == ["StreamBrokerWasLost: \(SystemError("io", EIO))", "StreamBrokerDidClose: "])
    for observer in observers { NotificationCenter.default.removeObserver(observer) }
  }

  @Test("transfers whole amounts in the background, with at most ten reports of progress a second")
  func transfers() async throws {
    let echoless = try Echoless()
    let count = 2 << 20
    try await echoless.run { input, output, far in
      let (sending, receiving) = (TransferWatch(output), TransferWatch(input))
      let began = Date()
      Stream.receive(100_000, from: input)
      Stream.send(Data(repeating: 7, count: count), to: output)
      Stream.send(Data(repeating: 8, count: 10), to: output)
      try far.send([UInt8](repeating: 9, count: 100_000))
      // Slowly, so that there is progress to report.
      var left = count
      while left > 0 {
        left -= try far.receive(exactly: min(left, 64 * 1024)).count
        usleep(20_000)
      }
      let last = try far.receive(exactly: 10)
      #expect(last == [UInt8](repeating: 8, count: 10))
      #expect(runLoop { sending.ends.value.count == 2 && receiving.ends.value.count == 1 })
      #expect(sending.ends.value == [count, 10] && receiving.ends.value == [100_000])
      #expect(receiving.data.value == Data(repeating: 9, count: 100_000))
      #expect(sending.errors.value == 0 && receiving.errors.value == 0)
      #expect(sending.progress.value >= 1)
      #expect(Double(sending.progress.value) <= Date().timeIntervalSince(began) * 10 + 2)
    }
  }

  @Test("ends a transfer with an error when its stream is closed")
  func brokenTransfer() async throws {
    let echoless = try Echoless()
    try await echoless.run { input, output, far in
      let watch = TransferWatch(output)
      Stream.send(Data(repeating: 7, count: 8 << 20), to: output)
      #expect(runLoop { output.isFull })
      output.close()
      #expect(runLoop { watch.ends.value.count == 1 })
      #expect(watch.errors.value == 1)
      input.close()
      far.close()
    }
  }
}

/// Counts the notifications about transfers of one stream.
private final class TransferWatch {
  let ends = Kept<[Int]>([])
  let data = Kept<Data?>(nil)
  let errors = Kept(0)
  let progress = Kept(0)
  private var observers: [any NSObjectProtocol] = []

  init(_ stream: Stream) {
    let center = NotificationCenter.default
    let (ends, data, errors, progress) = (ends, data, errors, progress)
    observers = [
      center.addObserver(forName: Stream.transferProgressNotification, object: stream, queue: nil) { _ in
        progress.change { $0 += 1 }
      },
      center.addObserver(forName: Stream.transferDidEndNotification, object: stream, queue: nil) { notification in
        let facts = notification.userInfo ?? [:]
        if let bytes = facts[Stream.notificationDataKey] as? Data { data.set(bytes) }
        if facts[Stream.notificationErrorKey] is NSError { errors.change { $0 += 1 } }
        if let count = facts[Stream.notificationCompletedKey] as? Int { ends.change { $0.append(count) } }
      },
    ]
  }

  deinit { for observer in observers { NotificationCenter.default.removeObserver(observer) } }
}
