"""Who takes part: the gateway as a process with its log, devices that misbehave on order, and clients.

One event loop runs all of them; every wait has an end. Used by the rooms.
"""

import asyncio
import collections
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import threading
import tty

PIECE = 1 << 16


async def until(condition, within, what, every=0.005):
    """Asks `condition` again and again until it says something true, which is returned."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not (answer := condition()):
        if loop.time() > end:
            raise AssertionError(f"not within {within} s: {what}")
        await asyncio.sleep(every)
    return answer


async def cancelled(task):
    """Ends a task, whatever it is waiting for, and lets its errors be: it was in the middle of a fault."""
    for _ in range(100):
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)
        if task.done():
            break
    assert task.done(), "a task that does not end"
    if not task.cancelled():
        task.exception()


# --- the gateway -----------------------------------------------------------------------------------------------------


class Gateway:
    """The built gateway on a configuration (a dictionary; JSON is YAML) that may change, and what its log has said."""

    def __init__(self, binary, routes, keep_log=None):
        self.binary = binary
        self._folder = tempfile.TemporaryDirectory(prefix="bw-faults-", ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self._folder.name)
        self.path = self.folder / "config.yaml"
        self.routes = routes
        self.listening = {}  # route → the addresses it has, as the log says them
        self.ended = {}  # (route, client) → the entry that ended the session; popped by whoever waits for it
        self.endings = collections.Counter()
        self.opened = set()
        self.over = set()
        self.links = collections.Counter()  # (route, event) → how often
        self.reloads = 0
        self.problems = []
        self.tail = collections.deque(maxlen=200)
        self._log = open(keep_log, "w") if keep_log else None
        self.write()

    def write(self):
        """The configuration, replaced in one step."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"version": 1, "log": {"format": "json"}, "routes": self.routes}))
        new.rename(self.path)

    async def start(self):
        loop = asyncio.get_running_loop()
        self.process = subprocess.Popen(
            [self.binary, "serve", str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "RUNTIME_DIRECTORY": str(self.folder)},
        )
        threading.Thread(target=self._follow, args=(loop,), daemon=True).start()
        await until(lambda: all(route in self.listening for route in self.routes), 20, "listening on every route")

    def _follow(self, loop):
        for raw in self.process.stderr:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._take, raw)

    def _take(self, raw):
        self.tail.append(raw.decode("utf-8", "replace").rstrip("\n"))
        if self._log:
            self._log.write(self.tail[-1] + "\n")
            self._log.flush()
        try:
            entry = json.loads(raw)
        except ValueError:
            self.problems.append(f"no JSON in the log: {self.tail[-1][:200]}")
            return
        event = entry.get("event", "")
        if event == "listening":
            # One listener each on 127.0.0.1; a second one of a route is told by its other address.
            second = "@2" if "127.0.0.2" in entry["listen"] else ""
            self.listening[entry["route"] + second] = entry["listen"]
        elif event == "route stopped":
            for name in (entry["route"], entry["route"] + "@2"):
                self.listening.pop(name, None)
        elif event == "session opened":
            if entry["session"] in self.opened:
                self.problems.append(f"session {entry['session']} opened twice")
            self.opened.add(entry["session"])
        elif event == "session ended":
            if entry["session"] in self.over:
                self.problems.append(f"session {entry['session']} ended twice")
            self.over.add(entry["session"])
            self.endings[entry["reason"]] += 1
            self.ended[entry["route"], entry.get("client", "")] = entry
        elif event.startswith("link "):
            self.links[entry["route"], event] += 1
        elif event.startswith("reload"):
            self.reloads += 1

    def address(self, route):
        """Host and port."""
        return self.listening[route].removeprefix("tcp://").rsplit(":", 1)

    async def ending(self, client, within=45):
        """How the client's session ended; the log tells each once."""
        key = client.route, client.name
        await until(lambda: key in self.ended, within, f"an ending of {key}")
        return self.ended.pop(key)

    async def reload(self):
        before = self.reloads
        self.write()
        self.process.send_signal(signal.SIGHUP)
        await until(lambda: self.reloads > before, 20, "a reload")

    async def command(self, *words):
        """Another run of the binary beside it; its exit code and what it printed."""
        process = await asyncio.create_subprocess_exec(
            self.binary,
            *words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RUNTIME_DIRECTORY": str(self.folder)},
        )
        output, _ = await asyncio.wait_for(process.communicate(), 20)
        return process.returncode, output.decode("utf-8", "replace")

    @contextlib.contextmanager
    def limited(self, kind, most):
        """Runs the body while the process may have no more of `kind` (a resource.RLIMIT_… number)."""
        before = resource.prlimit(self.process.pid, kind)
        resource.prlimit(self.process.pid, kind, (most, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.process.pid, kind, before)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self, what="VmRSS"):
        """In KiB."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(what + ":"))

    async def stop(self):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        await until(lambda: self.process.poll() is not None, 12, "the gateway's end")
        await asyncio.sleep(0.3)  # the last lines of the log
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()


# --- clients ---------------------------------------------------------------------------------------------------------


class Client:
    """An ordinary TCP client of a route. `name` is what the gateway's log calls it."""

    def __init__(self, route, sock):
        self.route, self.sock = route, sock
        self.name = "{}:{}".format(*sock.getsockname()[:2])
        self.sent = 0
        self.received = 0

    @classmethod
    async def connect(cls, gateway, route, source="127.0.0.1", receive_buffer=None):
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer:  # else the kernel hides what a slow reader does not take
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((source, 0))
        host, port = gateway.address(route)
        async with asyncio.timeout(15):
            await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        return cls(route.removesuffix("@2"), sock)

    async def send(self, data, within=60):
        # Not wait_for, which in Python 3.11 forgets to be cancelled when the call has just succeeded.
        async with asyncio.timeout(within):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)
        self.sent += len(data)

    async def receive(self, within=60, most=1 << 18):
        """What comes next; empty at the end, None when the connection was reset."""
        try:
            async with asyncio.timeout(within):
                data = await asyncio.get_running_loop().sock_recv(self.sock, most)
        except (ConnectionResetError, BrokenPipeError):
            return None
        self.received += len(data)
        return data

    async def words(self, within=10):
        """All that comes until the end, as text."""
        text = b""
        while data := await self.receive(within):
            text += data
        return text.decode("utf-8", "replace")

    def finish(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self):
        self.sock.close()


# --- devices ---------------------------------------------------------------------------------------------------------


class PtyDevice:
    """A serial port whose far end we are, under a name that may lead to another port tomorrow."""

    def __init__(self, path):
        self.path = path
        self.master = self.slave = None

    @property
    def url(self):
        return f"tty://{self.path}"

    def appear(self):
        """A new port, of another name than the last one; the path leads to it."""
        old = self.slave_name if self.master is not None else None
        self.master, self.slave = os.openpty()
        tty.setraw(self.slave)
        os.set_blocking(self.master, False)
        self.slave_name = os.ttyname(self.slave)
        if old:
            os.close(old)
        new = f"{self.path}.new"
        os.symlink(self.slave_name, new)
        os.rename(new, self.path)

    def vanish(self):
        """The cable is pulled: whoever has the port sees a hang-up."""
        os.unlink(self.path)
        loop = asyncio.get_running_loop()
        for forget in (loop.remove_reader, loop.remove_writer):
            forget(self.master)
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = None

    def write(self, data):
        """How much it took; 0 when it is full."""
        try:
            return os.write(self.master, data)
        except BlockingIOError:
            return 0

    def read(self):
        """What came; empty when there is nothing now."""
        try:
            return os.read(self.master, PIECE)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:  # nobody has the port open
                raise
            return b""

    def unread(self):
        """Bytes of ours that the gateway has not read."""
        word = fcntl.ioctl(self.slave, termios.FIONREAD, b"\0" * 4)
        return struct.unpack("i", word)[0]


class TCPDevice:
    """A server with one connection at a time, which may be away."""

    def __init__(self):
        self.listener = self.connection = None
        # Bound all the time, also while nobody listens: a connection that was given the port would meet itself.
        self._placeholder = self._bound(0)
        self.port = self._placeholder.getsockname()[1]

    @staticmethod
    def _bound(port):
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    @property
    def url(self):
        return f"tcp://127.0.0.1:{self.port}"

    def appear(self):
        self.listener = self._bound(self.port)
        self.listener.listen(16)
        self.listener.setblocking(False)

    def vanish(self, resets=False):
        self.listener.close()
        self.listener = None
        if self.connection:
            if resets:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.connection = None

    def _accept(self):
        if self.listener is None:
            return
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        if self.connection:
            self.connection.close()
        connection.setblocking(False)
        self.connection = connection

    def write(self, data):
        self._accept()
        if not self.connection:
            return 0
        try:
            return self.connection.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return 0

    def read(self):
        self._accept()
        if not self.connection:
            return b""
        try:
            data = self.connection.recv(PIECE)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.connection.close()
            self.connection = None
        return data

    def unread(self):
        """Bytes of ours that the gateway's kernel has not acknowledged."""
        if not self.connection:
            return 0
        return struct.unpack("i", fcntl.ioctl(self.connection, termios.TIOCOUTQ, b"\0" * 4))[0]


class Line:
    """A device at work: it says a pattern as it is told to, and sorts what it hears by sender.

    `pace` is how it speaks and hears: "normal", "flood", "dribble", "stall" (neither), "silent" (it hears only).
    """

    def __init__(self, device, down, ups, random):
        self.device, self.random = device, random
        self.down = down  # the Pattern it says
        self.said = 0
        self.sorter = ups
        self.pace = "silent"
        self.fault = None
        self._task = None

    def start(self):
        self._task = asyncio.create_task(self._work())

    async def _work(self):
        try:
            while True:
                moved = self._turn() if self.device_is_there else 0
                # A pty wakes nobody of ours whom epoll could tell apart from a hang-up: looking is simpler, and fast enough.
                await asyncio.sleep(0 if moved else 0.002)
        except asyncio.CancelledError:
            raise
        except BaseException as fault:  # told to whoever looks next
            self.fault = fault

    @property
    def device_is_there(self):
        return getattr(self.device, "master", None) is not None or getattr(self.device, "listener", None) is not None

    def _turn(self):
        if self.pace == "stall":
            return 0
        moved = 0
        if self.pace == "dribble":
            if self.random.random() < 0.3:
                moved += self._say(self.random.randint(1, 9))
        elif self.pace in ("normal", "flood"):
            moved += self._say(PIECE if self.pace == "flood" else self.random.randint(1, 8192))
        for _ in range(8):
            data = self.device.read()
            if not data:
                break
            self.sorter.take(data)
            moved += len(data)
        return moved

    def _say(self, count):
        taken = self.device.write(self.down.piece(self.said, count))
        self.said += taken
        return taken

    def check(self):
        if self.fault:
            raise self.fault

    async def quiet(self, within=30):
        """Says no more, and waits until the gateway has all of what was said."""
        self.pace = "silent"
        await until(lambda: self.fault or self.device.unread() == 0, within, "the gateway reading all the device said")
        self.check()

    async def stop(self):
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
