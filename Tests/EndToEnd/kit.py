"""What the end-to-end tests share: the built gateway as a process, devices at the far end of ptys, ordinary clients.

Every wait has a deadline and every process is stopped by its pid. Tests observe the gateway through its log: `Gateway`
reads it as JSON (or text), waits for lines, and checks at the end that every session ended exactly once.
"""
import contextlib
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import tty

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Seconds that a test waits for what must happen before it gives up. This finds what hangs, and is no promise of a speed: a
# machine may be slow and busy. A test that means a time says so itself, and carries the mark `timed`.
GUARD = 60


# The seed of every random choice: each run makes the same ones unless BAUDWAY_SEED says otherwise.
SEED = int(os.environ.get("BAUDWAY_SEED") or 1)


def noise(count: int) -> bytes:
    """Bytes without a pattern, the same in each run with this seed."""
    return random.Random(SEED).randbytes(count)


def binary() -> str:
    """The gateway under test: $BAUDWAY, otherwise the newest build in this tree."""
    if path := os.environ.get("BAUDWAY"):
        return path
    built = [p for p in ROOT.glob(".build/*/*/baudway") if p.is_file()]
    if not built:
        raise FileNotFoundError("no baudway built: run Tests/run, or name one in BAUDWAY")
    return str(max(built, key=lambda p: p.stat().st_mtime))


# --- waiting
#   ---------------------------------------------------------------------------------------------------------


class Deadline:
    """A point in time that a wait must not pass."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.end


def until(condition, seconds: float = GUARD, what: str = "", every: float = 0.005):
    """Calls `condition` repeatedly until its result is true, and returns the result."""
    deadline = Deadline(seconds)
    while True:
        if answer := condition():
            return answer
        if deadline.passed:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        time.sleep(every)


def run_all(*bodies, seconds: float = GUARD):
    """Runs the bodies in parallel, each on its own thread; raises the first error. Returns their results."""
    results, errors = [None] * len(bodies), []

    def call(index, body):
        try:
            results[index] = body()
        except BaseException as error:  # noqa: B902 - handed to the caller below
            errors.append(error)

    threads = [threading.Thread(target=call, args=pair, daemon=True) for pair in enumerate(bodies)]
    for thread in threads:
        thread.start()
    deadline = Deadline(seconds)
    for thread in threads:
        while thread.is_alive() and not errors and not deadline.passed:
            thread.join(0.05)
    if errors:
        raise errors[0]
    assert not any(t.is_alive() for t in threads), f"not finished within {seconds} s"
    return results


def open_files(pid: int) -> dict[int, str]:
    """The descriptors of a process, with what they lead to. What is closed meanwhile is left out; a process that has
    ended, or belongs to another user, has none."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def watches(pid: int, path: str | os.PathLike) -> bool:
    """Whether a process watches `path` by inotify(7)."""
    inode = f" ino:{os.stat(path).st_ino:x} "
    for number, target in open_files(pid).items():
        if target == "anon_inode:inotify":
            with contextlib.suppress(OSError):  # closed meanwhile
                if inode in pathlib.Path(f"/proc/{pid}/fdinfo/{number}").read_text():
                    return True
    return False


# --- the gateway -----------------------------------------------------------------------------------------------------

TEXT_LINE = re.compile(r"^(\S+Z) (\w+) (.*)$")
FIELD = re.compile(r' ([a-z-]+)=("(?:[^"\\]|\\.)*"|\S*)')


def parse_text(line: str) -> dict | None:
    """`TIME LEVEL EVENT key=value key="value"` as a dictionary; `session 17 opened` becomes the event `session
    opened`."""
    if not (match := TEXT_LINE.match(line)):
        return None
    stamp, level, rest = match.groups()
    first = FIELD.search(rest)
    words = rest[: first.start()] if first else rest
    entry = {"time": stamp, "level": level}
    if session := re.match(r"session (\d+) (.*)", words):
        entry["session"], words = int(session[1]), f"session {session[2]}"
    entry["event"] = words
    for key, value in FIELD.findall(rest[first.start():] if first else ""):
        entry[key] = json.loads(value) if value.startswith('"') else value
    return entry


def parse_json(line: str) -> dict | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def listeners(config: dict) -> int:
    """How many addresses a configuration listens on."""
    count = 0
    for route in config["routes"].values():
        count += len(route["listen"]) if isinstance(route["listen"], list) else 1
    return count


CRASHES = (signal.SIGILL, signal.SIGTRAP, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)


class Gateway:
    """The built gateway, serving `config` (a dictionary; JSON is YAML) from its own directory.

    As a context manager it starts, waits until it listens, and at the end stops with SIGTERM, asserting exit code 0 and
    one ending for each session. `stopping=False` leaves all of that to the test.
    """

    descriptors_passed = ()

    def __init__(self, config, *, prefix=(), stopping=True, ready=None, text=False, stderr=subprocess.PIPE):
        self._folder = tempfile.TemporaryDirectory(prefix="bw-", ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self._folder.name)
        self.path = self.folder / "config.yaml"
        self.prefix, self.stopping, self.stderr = list(prefix), stopping, stderr
        self.entries, self.lines, self._news = [], [], threading.Condition()
        self._parse = parse_text if text else parse_json
        self.process = None
        self.signals_sent = set()
        self.ready = ready
        if isinstance(config, dict):
            self.configure(config, text=text)
        else:
            shutil.copyfile(config, self.path)

    def configure(self, config: dict, text=False):
        """Writes the configuration; a running gateway reads it at SIGHUP."""
        # Tests read the log, so they need each line; tests of what it omits set `"repeats": "summary"`.
        log = {"format": "text" if text else "json", "repeats": "all", **config.get("log", {})}
        config = {"version": 1, **config, "log": log}
        self.path.write_text(json.dumps(config, indent=1))
        self.path.chmod(0o644)  # whatever the umask: as root a gateway refuses one that others may write
        self.expected = listeners(config)

    # Start and stop.

    @property
    def environment(self) -> dict:
        # The control socket is in the gateway's own directory, so that many gateways can run in parallel.
        return {**os.environ, "RUNTIME_DIRECTORY": str(self.folder)}

    def start(self, command="serve"):
        self.process = subprocess.Popen(
            [*self.prefix, binary(), command, str(self.path)], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=self.stderr, env=self.environment, pass_fds=self.descriptors_passed)
        if self.stderr == subprocess.PIPE:
            self.follow(self.process.stderr)
        return self

    def follow(self, pipe):
        """Reads the log from `pipe` from now on."""
        self._reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._reader.start()

    def _read(self, pipe):
        for raw in pipe:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            with self._news:
                self.lines.append(line)
                if (entry := self._parse(line)) is not None:
                    self.entries.append(entry)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def __enter__(self):
        self.start()
        try:
            count = self.expected if self.ready is None else self.ready
            until(lambda: len(self.events("listening")) >= count or self.process.poll() is not None, what="listening")
            assert self.process.poll() is None, f"ended at start: {self.lines}"
        except BaseException:
            self.__exit__(AssertionError, None, None)
            raise
        return self

    def __exit__(self, kind, error, trace):
        try:
            if self.stopping and kind is None:
                if self.process.poll() is None:
                    self.stop()
                self.check_sessions()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if kind is not None:
                print("the gateway's log:", *self.lines[-60:], sep="\n  ")
            self._note_crash()
            self._folder.cleanup()

    def _note_crash(self):
        """A crash that no test asked for, or a session that ended by our own mistake, is never chance: Tests/run reads the file
        and runs nothing once more."""
        code = self.process.returncode
        mistakes = [f"the gateway ended by {number.name}" for number in CRASHES
                    if number not in self.signals_sent and code in (-number, 128 + number)]
        mistakes += [f"a session ended as internal: {line}" for line in self.lines if re.search(r'reason"?[=:] ?"?internal\b', line)]
        if mistakes and (path := os.environ.get("BAUDWAY_CRASHES")):
            with open(path, "a") as file:
                file.writelines(f"{os.environ.get('PYTEST_CURRENT_TEST', '')}: {mistake}\n" for mistake in mistakes)

    @property
    def pid(self) -> int:
        """The gateway's own pid, even if a prefix command did not exec."""
        pid = self.process.pid
        with contextlib.suppress(FileNotFoundError):
            while children := pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                pid = int(children[0])
        return pid

    def signal(self, number):
        self.signals_sent.add(number)
        os.kill(self.pid, number)

    def stop(self, seconds: float = GUARD) -> float:
        """SIGTERM, exit code 0 within `seconds`; returns how long it took."""
        start = time.monotonic()
        self.signal(signal.SIGTERM)
        assert self.wait(seconds) == 0, f"exit code {self.process.returncode}"
        return time.monotonic() - start

    def wait(self, seconds: float = GUARD) -> int:
        code = self.process.wait(seconds)
        if self.stderr == subprocess.PIPE:
            self._reader.join(GUARD)
        return code

    def check_sessions(self):
        """Every session has exactly one `ended`, and one `opened` before it unless it was refused."""
        opened = [e["session"] for e in self.events("session opened")]
        ended = [e["session"] for e in self.events("session ended")]
        words = ("full", "queue-left", "denied", "login-failed", "shutdown", "route-removed")
        words += ("protocol-error", "client-left", "client-lost")  # of clients that did not finish their handshake
        refused = [e["session"] for e in self.events("session ended") if e["reason"] in words]
        assert len(set(opened)) == len(opened), "a session opened twice"
        assert len(set(ended)) == len(ended), "a session ended twice"
        assert not set(opened) - set(ended), f"never ended: {sorted(set(opened) - set(ended))}"
        assert set(ended) - set(opened) <= set(refused), f"never opened: {sorted(set(ended) - set(opened) - set(refused))}"

    def descriptors(self) -> int:
        """How many are open, without listening sockets and the spare one of each: these may come a moment after the log says that
        it listens, since the control socket is made beside the routes."""
        place, listening, count = pathlib.Path(f"/proc/{self.pid}"), set(), 0
        for file, state, value, inode in [("unix", 3, "00010000", 6), ("tcp", 3, "0A", 9), ("tcp6", 3, "0A", 9)]:
            with contextlib.suppress(FileNotFoundError):  # without IPv6
                for line in (place / "net" / file).read_text().splitlines()[1:]:
                    words = line.split()
                    if words[state] == value:
                        listening.add(f"socket:[{words[inode]}]")
        for name in os.listdir(place / "fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                count += os.readlink(place / "fd" / name) not in {"/dev/null", *listening}
        return count

    def falls_asleep(self, seconds: int):
        """Asserts that soon no thread wakes up for `seconds`: its context switches do not increase."""
        # Dispatch's workers end after some seconds without work: that is not a wake-up of ours.
        deadline, quiet, last = Deadline(GUARD), 0, self._switches()
        while quiet < seconds:
            assert not deadline.passed, "never quiet"
            time.sleep(1)
            now = self._switches()
            quiet, last = (quiet + 1, now) if now == last else (0, now)

    def _switches(self) -> int:
        total = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            for line in open(f"/proc/{self.pid}/task/{task}/status"):
                if "ctxt_switches" in line:
                    total += int(line.split()[1])
        return total

    def command(self, *words, seconds: float = GUARD) -> subprocess.CompletedProcess:
        """Runs another command of the binary, such as `health` or `check`."""
        return subprocess.run(
            [*self.prefix, binary(), *words], env=self.environment, capture_output=True, text=True, timeout=seconds,
            stdin=subprocess.DEVNULL)

    # Log.

    def events(self, event: str, **fields) -> list[dict]:
        with self._news:
            return [
                e for e in self.entries
                if e.get("event") == event and all(str(e.get(k)) == str(v) for k, v in fields.items())
            ]

    def event(self, event: str, seconds: float = GUARD, count: int = 1, **fields) -> dict:
        """Waits for the `count`th such line of the log."""
        deadline = Deadline(seconds)
        with self._news:
            while True:
                found = [
                    e for e in self.entries
                    if e.get("event") == event and all(str(e.get(k)) == str(v) for k, v in fields.items())
                ]
                if len(found) >= count:
                    return found[count - 1]
                assert not deadline.passed, f"no {event} {fields} ({len(found)} of {count}) in {self.lines[-20:]}"
                self._news.wait(min(0.5, deadline.left + 0.01))

    # Clients.

    def address(self, route: str, index: int = 0) -> tuple[str, int]:
        """Where the route's listener number `index` really listens."""
        url = self.event("listening", route=route, count=index + 1)["listen"]
        host, port = re.fullmatch(r"(?:tcp|tls|telnets?|wss?)://(.*):(\d+)(?:/.*)?", url).groups()
        return host.strip("[]"), int(port)

    def connect(self, route: str, index: int = 0, receive_buffer: int | None = None) -> socket.socket:
        return connect(self.address(route, index), receive_buffer)


def connect(address: tuple[str, int], receive_buffer: int | None = None) -> socket.socket:
    """An ordinary client. A small `receive_buffer` keeps the kernel from buffering what a slow reader does not read."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    client = socket.socket(family, socket.SOCK_STREAM)
    if receive_buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(GUARD)
    client.connect(address)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def reset(client: socket.socket):
    """Closes with a reset, by a linger of 0 s. A client that closes with a FIN looks like one that only stopped
    sending: on a quiet shared link the gateway keeps it for another 5 s."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def receive(client: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes."""
    data = bytearray()
    while len(data) < count:
        piece = client.recv(min(count - len(data), 1 << 18))
        assert piece, f"ended after {len(data)} of {count} bytes"
        data += piece
    return bytes(data)


def receive_all(client: socket.socket) -> bytes:
    """Everything until the other side ends."""
    data = bytearray()
    while piece := client.recv(1 << 18):
        data += piece
    return bytes(data)


def receive_until(client: socket.socket, mark: bytes, seconds: float = GUARD) -> bytes:
    data, deadline = bytearray(), Deadline(seconds)
    while mark not in data:
        assert not deadline.passed, f"no {mark!r} within {seconds} s, but {bytes(data[-200:])!r}"
        client.settimeout(deadline.left + 0.01)
        with contextlib.suppress(TimeoutError):
            piece = client.recv(1 << 16)
            assert piece, f"ended before {mark!r}"
            data += piece
    return bytes(data)


def round_trip(client: socket.socket, data: bytes = b"?") -> float:
    """Sends `data` to an echo and receives it back; returns the seconds."""
    start = time.monotonic()
    client.sendall(data)
    assert receive(client, len(data)) == data
    return time.monotonic() - start


# --- devices ---------------------------------------------------------------------------------------------------------


def lock_file(port: str) -> pathlib.Path:
    """The lock file of this port, by which programs see that another has it open."""
    return pathlib.Path("/var/lock/LCK.." + port.removeprefix("/dev/").replace("/", "_"))


def unlocked_pty() -> tuple[int, int]:
    """Master and slave of a new pty without a lock file. A closed pty's number is free at once, while its lock file may
    still exist: a gateway removes it a little later, a killed gateway never. A test may not write another user's file."""
    spare = []
    try:
        for _ in range(64):
            pair = os.openpty()
            if not lock_file(os.ttyname(pair[1])).exists():
                return pair
            spare += pair
        raise AssertionError("lock files of 64 ptys in /var/lock: remove those of processes that have ended")
    finally:
        for descriptor in spare:
            os.close(descriptor)


class Pty:
    """A device: `path` is for the gateway; at `master` the test sends and receives as the hardware."""

    def __init__(self):
        self.master, self.slave = unlocked_pty()
        tty.setraw(self.slave)
        self.path = os.ttyname(self.slave)

    @property
    def url(self) -> str:
        return f"tty://{self.path}"

    def write(self, data: bytes):
        view = memoryview(data)
        while view:
            view = view[os.write(self.master, view[:4096]):]

    def read(self, count: int, seconds: float = GUARD) -> bytes:
        data, deadline = bytearray(), Deadline(seconds)
        while len(data) < count:
            ready, _, _ = select.select([self.master], [], [], deadline.left)
            assert ready, f"{len(data)} of {count} bytes within {seconds} s"
            data += os.read(self.master, min(count - len(data), 1 << 16))
        return bytes(data)

    def close(self):
        for descriptor in (self.master, self.slave):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Socat:
    """socat with these two addresses, running until the block ends or `kill()`; waits for `links`."""

    def __init__(self, *words: str, links=()):
        self.process = subprocess.Popen(["socat", *words], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.links = links
        for link in links:
            until(lambda link=link: os.path.islink(link) or self.process.poll() is not None, what=f"{link} of socat")
            assert self.process.poll() is None, self.process.stderr.read()

    def kill(self):
        """Like unplugging: the pty is gone, and its link with it."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(GUARD)
        self.process.stderr.close()
        for link in self.links:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class Server:
    """A TCP endpoint: `serve(connection)` runs on a thread for each connection."""

    def __init__(self, serve, family=socket.AF_INET):
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        self.listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self.listener.listen(128)
        self.errors = []
        self._serve = serve
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection):
        connection.settimeout(GUARD)
        try:
            with connection:
                self._serve(connection)
        except Exception as error:  # noqa: B902 - the test checks it
            self.errors.append(error)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        # shutdown wakes the accept; close alone does not.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        assert kind or not self.errors, self.errors


def compiled(source: str, *flags: str) -> str:
    """A small C helper from this directory, built once per run; with `-shared` and `-fPIC` a library to preload."""
    target = pathlib.Path(tempfile.gettempdir()) / f"baudway-{os.getpid()}-{pathlib.Path(source).stem}"
    if not target.exists():
        here = pathlib.Path(__file__).parent
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", *flags, "-o", target, here / source], check=True)
    return str(target)


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on at this moment."""
    with contextlib.ExitStack() as probes:
        taken = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in taken:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in taken]


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    return free_ports(1)[0]
