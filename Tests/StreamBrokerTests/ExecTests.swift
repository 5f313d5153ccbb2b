// exec: programs from start to end.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A program", .timeLimit(.minutes(5)))
struct ExecTests {
  private let broker = Broker(Schemes.standard)

  /// The program's whole output.
  private func output(_ url: String) async throws -> String {
    try await onLane { lane in
      let stream = try await broker.open(url, on: lane)
      defer { stream.close() }
      return String(decoding: try await stream.readToEnd(on: lane), as: UTF8.self)
    }
  }

  // MARK: - Environment

  @Test("gets its arguments unchanged")
  func arguments() async throws {
    #expect(try await output("exec:/usr/bin/printf?arg=%25s|&arg=a%20b&arg=$HOME&arg=%22;%26") == "a b|$HOME|\";&|")
  }

  @Test("gets three descriptors and no others, even of those without close-on-exec")
  func descriptors() async throws {
    let raw = open("/dev/null", O_RDONLY)
    defer { Glibc.close(raw) }
    let names = try await output("exec:/bin/ls?arg=/proc/self/fd").split(separator: "\n")
    #expect(names == ["0", "1", "2", "3"])  // the last is the folder that it reads
  }

  @Test("has no signal blocked or ignored, and leads a process group of its own")
  func signals() async throws {
    let status = try await output("exec:/bin/grep?arg=-E&arg=^Sig(Blk|Ign)&arg=/proc/self/status")
    // Signals 32 and 33 are glibc's own; it resets them itself.
    #expect(status == "SigBlk:\t0000000000000000\nSigIgn:\t0000000180000000\n")
    let numbers = try await output("exec:/bin/cat?arg=/proc/self/stat").split(separator: " ")
    #expect(numbers[0] == numbers[4] && numbers[4] != "\(getpgrp())")
  }

  @Test("gets only the listed part of our environment, and a PATH")
  func environment() async throws {
    let ours = FileSystem.beginning(of: "/proc/self/environ")?.split(separator: 0).map { $0.prefix { $0 != 61 } } ?? []
    #expect(ours.contains { !ExecEnvironment.names.contains(String(decoding: $0, as: UTF8.self)) })
    let names = try await output("exec:/usr/bin/env").split(separator: "\n").map { $0.prefix { $0 != "=" } }
    #expect(names.contains("PATH") && names.allSatisfy { ExecEnvironment.names.contains(String($0)) }, "\(names)")
    // Before you add a name, make sure that it cannot hold a secret.
    #expect(
      ExecEnvironment.names.filter { !$0.hasPrefix("LC_") }
        == ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE"])
  }

  @Test("has a terminal if requested: all three descriptors, 80 by 24, and interrupt keys")
  func terminal() async throws {
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM"
    #expect(try await output(shell(script, "&pty=yes")) == "24 80\r\nvt100\r\n")
    try await onLane { lane in
      let stream = try await broker.open(shell("echo on; exec cat", "&pty=yes"), on: lane)
      defer { stream.close() }
      #expect(try await stream.read(exactly: 4, on: lane) == Array("on\r\n".utf8))
      try await stream.writeAll([3], on: lane)  // ^C
      let end = await #expect(throws: ProgramEnd.self) { _ = try await stream.readToEnd(on: lane) }
      #expect(end?.how == .killed(signal: SIGINT))
    }
  }

  // MARK: - Endings

  @Test(
    "delivers its last output, and then how it ended",
    arguments: [
      ("echo bye; exit 3", "/bin/sh exited with status 3"),
      ("echo bye; kill -SEGV $$", "/bin/sh was killed by SIGSEGV"),
    ])
  func failure(script: String, text: String) async throws {
    try await onLane { lane in
      let stream = try await broker.open(shell(script), on: lane)
      defer { stream.close() }
      #expect(try await stream.read(exactly: 4, on: lane) == Array("bye\n".utf8))
      let end = await #expect(throws: ProgramEnd.self) { _ = try await stream.readToEnd(on: lane) }
      #expect(end?.description == text)
      #expect(LinkStatus.Reason(losingBy: end).description == text)
      let again = #expect(throws: ProgramEnd.self) { try stream.write([1]) }
      #expect(again == end)
    }
  }

  @Test("may end without any output")
  func wordless() async throws {
    let end = await #expect(throws: ProgramEnd.self) { _ = try await output("exec:/bin/false") }
    #expect(end?.description == "/bin/false exited with status 1")
  }

  @Test("reports its true status or an unknown one where SIGCHLD is ignored, never a guessed success")
  func ignoredSignal() async {
    await #expect(processExitsWith: .success) {
      signal(SIGCHLD, SIG_IGN)
      _exit(try await firstGuess())
    }
  }

  @Test("reports its true status or an unknown one where other code waits for all children, never a guessed success")
  func reapedByOthers() async {
    await #expect(processExitsWith: .success) {
      DispatchQueue(label: "others").async {
        while true { if waitpid(-1, nil, 0) < 0 { usleep(100) } }
      }
      _exit(try await firstGuess())
    }
  }

  // MARK: - The guard

  @Test("is known to the guard by its group until the group is empty, and not by its number afterwards")
  func guarded() async throws {
    try await onLane { lane in
      let stream = try await broker.open(shell("echo $$; read line"), on: lane)
      let pid = try #require(try await stream.readNumber(on: lane))
      #expect(ProgramGuard.shared.knows(pid))
      try await stream.writeAll([10], on: lane)
      #expect(try await stream.readToEnd(on: lane).isEmpty)
      #expect(await eventually { !ProgramGuard.shared.knows(pid) })
      stream.close()
    }
    // Its child outlives it for a while; no process waits for that child.
    try await onLane { lane in
      let stream = try await broker.open(shell("echo $$; trap '' TERM; sleep 1 & exit"), on: lane)
      let pid = try #require(try await stream.readNumber(on: lane))
      _ = try? await stream.readToEnd(on: lane)
      stream.close()
      #expect(ProgramGuard.shared.knows(pid))
      #expect(await eventually { !ProgramGuard.shared.knows(pid) })
    }
  }

  @Test("has one guard, which a program that waits for all its children does not wait for")
  func oneGuard() async {
    await #expect(processExitsWith: .success) {
      let broker = Broker(Schemes.standard)
      for _ in 0..<30 {
        try await onLane { lane in
          let stream = try await broker.open("exec:/bin/true", on: lane)
          _ = try await stream.readToEnd(on: lane)
          stream.close()
        }
      }
      usleep(100_000)  // guards that are closing may still be reaped
      if waitpid(-1, nil, WNOHANG) != -1 || errno != ECHILD { _exit(1) }
      if waitpid(-1, nil, WNOHANG | Int32(bitPattern: 0x4000_0000)) != -1 { _exit(2) }  // __WALL
      if guards(of: getpid()).count != 1 { _exit(3) }
      _exit(0)
    }
  }

  @Test("that ends in order takes no more input, which is reported after its last output and wakes nothing before")
  func endsInOrder() async throws {
    try await onLane { lane in
      let stream = try await broker.open(shell("echo $$; read line"), on: lane)
      defer { stream.close() }
      let pid = try #require(try await stream.readNumber(on: lane))
      try await stream.writeAll([10], on: lane)
      #expect(await gone(pid, on: lane))
      let recorder = EventRecorder()
      stream.delegate = recorder
      stream.writerWaits = .writable
      let answer = try stream.write([1])
      #expect(answer == .blocked(until: .writable))
      await pause(.milliseconds(100), on: lane)
      #expect(recorder.events.isEmpty)
      let end = try stream.read()
      #expect(end == .ended)
      stream.writerWaits = []
      for _ in 0..<Patience.milliseconds / 10 where recorder.events.isEmpty { await pause(.milliseconds(10), on: lane) }
      #expect(recorder.events == [.endEncountered])
      #expect(throws: SystemError("write", EPIPE)) { try stream.write([1]) }
    }
  }

  @Test("that has not read its input ends like any other")
  func unreadInput() async throws {
    try await onLane { lane in
      let stream = try await broker.open(shell("read line; echo $line"), on: lane)
      defer { stream.close() }
      try await stream.writeAll(Array("first\nand more that nobody reads\n".utf8), on: lane)
      #expect(try await stream.readToEnd(on: lane) == Array("first\n".utf8))
    }
  }

  @Test("is over when it ends, also when other processes keep its streams open", .timed)
  func daemon() async throws {
    let folder = try TemporaryFolder()
    let pid = folder / "pid"
    // A program in a session of its own, which a kill of the group does not reach.
    let said = try await output(shell("setsid sh -c 'echo $$ >\(pid); exec sleep 1000' & echo bye; sleep 0.3"))
    #expect(said == "bye\n")
    let left = try #require(pid_t(FileSystem.line(of: pid) ?? ""))
    #expect(isAlive(left))
    kill(left, SIGKILL)
  }

  @Test("is read to its last byte also when other processes keep its streams open and nothing reads at its end")
  func lateReader() async throws {
    try await onLane { lane in
      let stream = try await broker.open(shell("echo $$; setsid sleep 20 & exec echo bye"), on: lane)
      defer { stream.close() }
      let pid = try #require(try await stream.readNumber(on: lane))
      #expect(await gone(pid, on: lane))
      #expect(try await stream.readToEnd(on: lane) == Array("bye\n".utf8))
    }
  }

  @Test("that closes its output and keeps running ends the stream, and is ended with it")
  func closesOutput() async throws {
    let folder = try TemporaryFolder()
    let pid = folder / "pid"
    #expect(try await output(shell("echo $$ >\(pid); exec <&- >&-; exec sleep 1000")) == "")
    try await disappears(pid)
  }

  @Test("that closes its output is also reported as not reading once it has ended")
  func closesOutputThenEnds() async throws {
    let folder = try TemporaryFolder()
    let fifo = folder / "fifo"
    try #require(mkfifo(fifo, 0o600) == 0)
    try await onLane { lane in
      let stream = try await broker.open(shell("exec <&- >&-; read line <\(fifo); exit 0"), on: lane)
      defer { stream.close() }
      #expect(try await stream.readToEnd(on: lane).isEmpty)
      let ended = Gate()
      let recorder = EventRecorder { _ in ended.open() }
      stream.delegate = recorder
      _ = try await onOwnThread { Glibc.close(open(fifo, O_WRONLY | O_CLOEXEC)) }
      await ended.wait(on: lane)
      #expect(recorder.events == [.endEncountered])
    }
  }

  @Test("is reaped, and takes with it what it has started")
  func group() async throws {
    try await onLane { lane in
      let stream = try await broker.open(shell("sleep 1000 & echo $$ $!; read line"), on: lane)
      defer { stream.close() }
      let numbers = try await stream.readLine(on: lane).split(separator: " ").compactMap { pid_t($0) }
      try await stream.writeAll([10], on: lane)
      #expect(try await stream.readToEnd(on: lane).isEmpty)
      #expect(kill(numbers[0], 0) == -1 && errno == ESRCH)  // not even a zombie
      #expect(await eventually { !isAlive(numbers[1]) })
    }
  }

  @Test("that ends by itself leaves no process of its group, even those that ignore SIGTERM")
  func deafChild() async throws {
    try await onLane(isFast: true) { lane in
      let script = "trap '' TERM; (while :; do sleep 0.1; done) & echo $!"
      let stream = try await broker.open(shell(script), on: lane)
      let pid = try #require(try await stream.readNumber(on: lane))
      #expect(try await stream.readToEnd(on: lane).isEmpty)
      stream.close()
      #expect(await eventually { !isAlive(pid) })
    }
  }

  @Test("is reaped and takes its group with it also when its lane stops before it has ended")
  func laneStops() async throws {
    let script = "trap '' TERM; (while :; do sleep 0.1; done) & echo $$; echo $!; while :; do sleep 0.1; done"
    let numbers = try await onLane { lane in
      let stream = try await broker.open(shell(script), on: lane)
      defer { stream.close() }
      return [try await stream.readNumber(on: lane), try await stream.readNumber(on: lane)].compactMap { $0 }
    }
    #expect(numbers.count == 2)
    #expect(await eventually { kill(numbers[0], 0) != 0 && !isAlive(numbers[1]) })
  }

  @Test("gets SIGTERM also when it is stopped, or has left its group", arguments: [true, false])
  func outOfReach(isStopped: Bool) async throws {
    let folder = try TemporaryFolder()
    let asked = folder / "asked"
    let leave = isStopped ? "kill 'STOP', $$;" : "setpgrp(0, getpgrp(getppid()));"
    let script =
      "$SIG{TERM} = sub { open(F, '>', '\(asked)'); exit }; $| = 1; print qq($$\\n); \(leave) print qq(on\\n); sleep 1 while 1"
    try await onLane { lane in
      let stream = try await broker.open("exec:/usr/bin/perl?arg=-e&arg=\(escaped(script))", on: lane)
      let pid = try #require(try await stream.readNumber(on: lane))
      if isStopped {
        #expect(await eventually { FileSystem.line(of: "/proc/\(pid)/stat")?.contains(") T ") == true })
      } else {
        let line = try await stream.readLine(on: lane)
        #expect(line == "on" && getpgid(pid) != pid)
      }
      stream.close()
      #expect(await gone(pid, on: lane))
    }
    #expect(access(asked, F_OK) == 0)
  }

  @Test("gets SIGTERM at the close of its stream, and SIGKILL five seconds later")
  func stubborn() async throws {
    let folder = try TemporaryFolder()
    let file = folder / "pid"
    let asked = folder / "asked"
    let clock = ManualClock()
    let lane = try clock.lane("stubborn")
    defer { lane.stop() }
    try await onLane(lane) { lane in
      let stream = try await broker.open(
        shell("trap 'echo asked >\(asked)' TERM; echo $$ >\(file); echo on; while :; do sleep 0.1; done"), on: lane)
      #expect(try await stream.read(exactly: 3, on: lane) == Array("on\n".utf8))
      let pid = try #require(pid_t(FileSystem.line(of: file) ?? ""))
      stream.close()
      // The lane's time stands still until the program has obeyed in its own.
      #expect(await eventually { access(asked, F_OK) == 0 })
      let began = lane.poller.timers.now
      let passing = clock.passes()
      defer { passing.cancel() }
      #expect(await gone(pid, on: lane))
      #expect(lane.poller.timers.now - began >= 5_000_000_000)
    }
  }

  @Test("does not survive an opening that was given up, at any step")
  func cancelled() async throws {
    let mark = "1000.\(UInt32.random(in: 0 ... .max))"
    let connector = try broker.connector("exec:/bin/sleep?arg=\(mark)")
    try await onLane { lane in
      for delay in 0..<20 {
        let opening = connector.open(OpenRequest(discardsInput: false), on: lane.poller) {
          if case .success(let stream) = $0 { stream.close() }
        }
        for _ in 0..<delay { await pause(.microseconds(200), on: lane) }
        opening.cancel()
      }
      // Before its exec a new process has our own name, so `processes(naming:)` misses it. So require a hundred looks
      // without it.
      let looksWithout = Atomic(0)
      #expect(
        await eventually {
          guard processes(naming: mark).isEmpty else {
            looksWithout.store(0, ordering: .relaxed)
            return false
          }
          return looksWithout.add(1, ordering: .relaxed).newValue == 100
        })
    }
  }

  @Test("is killed at the process's end also before its lane knows of it, and none is started afterwards")
  func givenUpAtItsStart() async throws {
    let mark = "1000.\(UInt32.random(in: 0 ... .max))"
    let connector = try broker.connector("exec:/bin/sleep?arg=\(mark)")
    try await onLane { lane in
      let came = Gate()
      let opening = connector.open(OpenRequest(discardsInput: false), on: lane.poller) {
        if case .success(let stream) = $0 { stream.close() }
        came.open()
      }
      // The lane is blocked here, so it does not see the start.
      #expect(comesToHold { !processes(naming: mark).isEmpty })
      lane.programs.giveUp()
      #expect(comesToHold { processes(naming: mark).isEmpty })
      await came.wait(on: lane)
      opening.cancel()
      let failure = await #expect(throws: OpenFailure.self) { _ = try await broker.open(shell("exit"), on: lane) }
      #expect(failure?.cause == SystemError("posix_spawn", ECANCELED))
    }
  }

  @Test("is killed at the process's end also in the middle of its start")
  func givenUpInItsStart() async throws {
    let programs = PendingCleanups()
    let isStarting = DispatchSemaphore(value: 0)
    let started = Mutex<pid_t>(0)
    async let parcel = onOwnThread {
      try ChildParcel(among: programs) { () throws(SystemError) in
        isStarting.signal()
        usleep(50_000)  // like a slow disk: `giveUp` must also kill a program whose start is not finished
        let pid = try sleeper()
        started.withLock { $0 = pid }
        return pid
      }
    }
    _ = try await onOwnThread {
      isStarting.wait()
      programs.giveUp()
    }
    let pid = started.withLock { $0 }
    #expect(pid != 0 && comesToHold { !isAlive(pid) })
    _ = try await parcel
  }

  /// A program that leads a group and does nothing.
  private func sleeper() throws(SystemError) -> pid_t {
    let null = open("/dev/null", O_RDWR | O_CLOEXEC)
    defer { Glibc.close(null) }
    var arguments = [strdup("/bin/sleep"), strdup("1000"), nil]
    defer { for text in arguments { free(text) } }
    var environment: [UnsafeMutablePointer<CChar>?] = [nil]
    var pid: pid_t = 0
    guard linux_spawn(&pid, "/bin/sleep", &arguments, &environment, null, null, nil) == 0 else {
      throw SystemError("posix_spawn")
    }
    return pid
  }

  // MARK: - Standard error

  @Test("has its standard error reported line by line, to the last")
  func standardError() async throws {
    let lines = Mutex<[String]>([])
    let script = "echo one >&2; echo out; printf 'two\\r\\n\\nthree' >&2; exit 1"
    try await onLane { lane in
      let open = try await remarking(shell(script), on: lane) { line in lines.withLock { $0.append(line) } }
      #expect(try await open.read(exactly: 4, on: lane) == Array("out\n".utf8))
      await #expect(throws: ProgramEnd.self) { _ = try await open.readToEnd(on: lane) }
      open.close()
    }
    #expect(lines.withLock { $0 } == ["one", "two", "three"])
  }

  @Test("that floods standard error still has its output read, and 20 lines a second reported")
  func floodOfErrors() async throws {
    let lines = Mutex<[String]>([])
    let began = monotonicNanoseconds()
    try await onLane { lane in
      let stream = try await remarking(shell("yes >&2 & cat; kill $!"), on: lane) { line in
        lines.withLock { $0.append(line) }
      }
      for round in 0..<50 {
        let bytes = Array("round \(round)\n".utf8)
        try await stream.writeAll(bytes, on: lane)
        #expect(try await stream.read(exactly: bytes.count, on: lane) == bytes)
      }
      // All of the above may end before the other program has started.
      for _ in 0..<Patience.milliseconds / 10 where lines.withLock({ $0.isEmpty }) {
        try await Task.sleep(for: .milliseconds(10))
      }
      stream.finishWriting()
      #expect(try await stream.readToEnd(on: lane).isEmpty)
      stream.close()
    }
    let seconds = Int((monotonicNanoseconds() - began) / 1_000_000_000) + 2
    let reported = lines.withLock { $0 }
    #expect(reported.contains("y") && reported.count <= seconds * 21 + 1, "\(reported.count) in \(seconds) s")
    #expect(reported.last?.hasSuffix("more lines") == true)
  }

  @Test("has every line on standard error counted, to the last of a full pipe")
  func lastErrors() async throws {
    let lines = Mutex<[String]>([])
    try await onLane { lane in
      var ends: [Int32] = [-1, -1]
      try #require(linux_pipe(&ends) == 0)
      let writing = Descriptor(owning: ends[1])
      let errors = try ExecErrors(Descriptor(owning: ends[0]), on: lane.poller) { remark in
        lines.withLock { $0.append(remark.line) }
      }
      let all =
        [UInt8](repeating: UInt8(ascii: "\n"), count: 1) + Array(String(repeating: "1234567\n", count: 8000).utf8)
      #expect(Glibc.write(writing.raw, all, all.count) == all.count)
      errors.close()
    }
    // Twenty lines a second are reported, and a new second may begin in between.
    let reported = lines.withLock { $0 }
    let counts = reported.compactMap { $0.hasPrefix("… and ") ? Int($0.split(separator: " ")[2]) : nil }
    #expect(reported.count - counts.count + counts.reduce(0, +) == 8000, "\(reported)")
    #expect(reported.last?.hasSuffix("more lines") == true)
  }

  // MARK: - Failures

  @Test(
    "that can't be started reports why",
    arguments: [
      ("nowhere", "no such program"), ("file", "may not execute"), ("sub", "may not execute"),
      ("text", "a script needs a first line"),
      ("script", "no such interpreter as its first line (#!) names"),
    ])
  func refusal(name: String, reason: String) async throws {
    let folder = try TemporaryFolder()
    try folder.write("file", "")
    try folder.write("text", "echo hello\n")
    try folder.write("script", "#!/nowhere/sh\n")
    try #require(mkdir(folder / "sub", 0o700) == 0)
    for name in ["text", "script"] { chmod(folder / name, 0o700) }
    let failure = await #expect(throws: OpenFailure.self) { _ = try await output("exec:\(folder / name)") }
    #expect(failure?.description.hasPrefix("start \(folder / name): ") == true)
    #expect(failure?.description.contains(reason) == true, "\(failure?.description ?? "")")
  }

  // MARK: - Helpers

  private func remarking(
    _ url: String, on lane: isolated Lane, _ handle: @escaping @Sendable (String) -> Void
  ) async throws -> any ByteStream {
    let connector = try broker.connector(url)
    var request = OpenRequest()
    request.remark = { handle($0.line) }
    let opened = Gate()
    var stream: (any ByteStream)?
    let opening = connector.open(request, on: lane.poller) {
      stream = try? $0.get()
      opened.open()
    }
    await opened.wait(on: lane)
    opening.cancel()
    return try #require(stream)
  }

  private func pause(_ time: Duration, on lane: isolated Lane) async {
    let gate = Gate()
    lane.poller.timers.after(time) { gate.open() }
    await gate.wait(on: lane)
  }

  /// Waits until a child process has ended and is reaped, which happens on its lane.
  private func gone(_ pid: pid_t, on lane: isolated Lane) async -> Bool {
    let began = monotonicNanoseconds()
    while kill(pid, 0) == 0, monotonicNanoseconds() - began < Patience.nanoseconds, !Task.isCancelled {
      await pause(.milliseconds(5), on: lane)
    }
    return kill(pid, 0) != 0
  }

  private func disappears(_ file: String) async throws {
    let pid = try #require(pid_t(FileSystem.line(of: file) ?? ""))
    #expect(await eventually { !isAlive(pid) })
  }
}

extension ByteStream {
  /// The bytes up to the next line feed, without it.
  fileprivate func readLine(on lane: isolated Lane) async throws -> String {
    var line: [UInt8] = []
    while true {
      let next = try await read(exactly: 1, on: lane)
      if next.isEmpty || next == [10] { return String(decoding: line, as: UTF8.self) }
      line += next
    }
  }

  fileprivate func readNumber(on lane: isolated Lane) async throws -> pid_t? { pid_t(try await readLine(on: lane)) }
}

/// Whether the process runs; a zombie does not.
private func isAlive(_ pid: pid_t) -> Bool {
  guard let stat = FileSystem.line(of: "/proc/\(pid)/stat"), let parenthesis = stat.lastIndex(of: ")") else {
    return false
  }
  return !stat[parenthesis...].hasPrefix(") Z") && !stat[parenthesis...].hasPrefix(") X")
}

/// Checks the condition again and again, up to 30 s. Blocks.
private func comesToHold(_ condition: () -> Bool) -> Bool {
  let began = monotonicNanoseconds()
  while !condition() {
    guard monotonicNanoseconds() - began < 30_000_000_000 else { return false }
    usleep(1000)
  }
  return true
}

private func processes(naming argument: String) -> [pid_t] {
  FileSystem.names(in: "/proc").compactMap { pid_t($0) }.filter { pid in
    let words = FileSystem.beginning(of: "/proc/\(pid)/cmdline")?.split(separator: 0) ?? []
    return words.contains { $0.elementsEqual(argument.utf8) }
  }
}

@Suite("Lines of standard error")
struct LineCutterTests {
  private func take(_ cutter: inout LineCutter, _ text: String, second: UInt64 = 0) -> [String] {
    Array(text.utf8).withUnsafeBytes { cutter.take($0, now: second * 1_000_000_000) }
  }

  @Test("are cut at line feeds, wherever the pipe has cut them")
  func lines() {
    var cutter = LineCutter()
    #expect(take(&cutter, "one\ntw") == ["one"])
    #expect(take(&cutter, "o\r\n\n\nthr") == ["two"])
    #expect(take(&cutter, "ee") == [])
    #expect(cutter.finish(now: 0) == ["three"])
    #expect(cutter.finish(now: 0) == [])
  }

  @Test("are 500 bytes at most")
  func length() {
    var cutter = LineCutter()
    let long = String(repeating: "x", count: 10_000)
    #expect(take(&cutter, long + "\nshort\n") == [String(repeating: "x", count: 500) + "…", "short"])
  }

  @Test("are 20 a second at most; the others are counted")
  func flood() {
    var cutter = LineCutter()
    let flood = String(repeating: "x\n", count: 1000)
    #expect(take(&cutter, flood, second: 1).count == 20)
    #expect(take(&cutter, flood, second: 1).isEmpty)
    let next = take(&cutter, flood, second: 2)
    #expect(next.count == 21 && next[0] == "… and 1980 more lines")
    #expect(cutter.finish(now: 0) == ["… and 980 more lines"])
  }
}

/// The guards of a process, found by name and by the shared pipe, of which the process has the writing end.
private func guards(of process: pid_t) -> [pid_t] {
  func pipes(_ pid: pid_t) -> Set<String> {
    let folder = "/proc/\(pid)/fd"
    return Set(
      FileSystem.names(in: folder).compactMap { FileSystem.target(of: "\(folder)/\($0)") }.filter {
        $0.hasPrefix("pipe:")
      })
  }
  let ours = pipes(process)
  return FileSystem.names(in: "/proc").compactMap { pid_t($0) }.filter {
    FileSystem.line(of: "/proc/\($0)/comm") == "exec-guard" && !pipes($0).isDisjoint(with: ours)
  }
}

/// Runs programs with a known exit status. Returns the number of the first wrong report; 0 if there was none.
private func firstGuess() async throws -> Int32 {
  let broker = Broker(Schemes.standard)
  for round in 0..<60 {
    let status: Int32 = round % 3 == 2 ? 0 : 3
    let script = round % 3 == 1 ? "sleep 0.02; exit 3" : "exit \(status)"
    let end = try await onLane { lane in
      let stream = try await broker.open(shell(script), on: lane)
      defer { stream.close() }
      do {
        _ = try await stream.readToEnd(on: lane)
        return ProgramEnd.How.exited(status: 0)
      } catch let end as ProgramEnd {
        return end.how
      }
    }
    if end != .unknown && end != .exited(status: status) { return 1 }
  }
  return 0
}
