"""The built gateway as a process, and the events of its log."""

import asyncio
import collections
import contextlib
import copy
import json
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import threading

from actors.waits import until


class Gateway:
    """The built gateway on a configuration that may change (a dictionary; JSON is YAML), and the events of its log."""

    def __init__(self, binary, keep_log=None):
        self.binary = binary
        self._folder = tempfile.TemporaryDirectory(prefix="bw-faults-", ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self._folder.name)
        self.path = self.folder / "config.yaml"
        self.routes = {}
        self.defaults = {"device": {}}
        self.listening = {}  # route → its addresses, from the log
        self.ended = {}  # (route, client) or session number → the log entry of its end; `ending` pops it
        self.numbers = {}  # (route, client) or session number → session number
        self.sessions = collections.defaultdict(list)  # route → numbers of its sessions, in the order they opened
        self.dropping = set()  # numbers of sessions that lost bytes because they were slow
        self.endings = collections.Counter()
        self.endings_now = collections.Counter()  # (route, word), counted since each route was last started
        self.opened = set()
        self.over = set()
        self.links = collections.Counter()  # (route, event) → count
        self.reloads = collections.Counter()  # "reloaded" or "reload failed" → count
        self._changes = asyncio.Lock()
        self.arriving = collections.defaultdict(asyncio.Lock)  # route → lock: nameless clients connect one by one
        self.problems = []
        self.tail = collections.deque(maxlen=200)
        self._log = open(keep_log, "w") if keep_log else None
        self.process = None

    def write(self):
        """Writes the configuration, replacing the file atomically."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"version": 1, "log": {"format": "json", "repeats": "all"}, "defaults": self.defaults, "routes": self.routes}))
        new.rename(self.path)

    async def start(self):
        loop = asyncio.get_running_loop()
        self.write()
        self.process = subprocess.Popen(
            [self.binary, "serve", str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "RUNTIME_DIRECTORY": str(self.folder)},
        )
        threading.Thread(target=self._follow, args=(loop,), daemon=True).start()
        await until(lambda: all(map(self.is_listening, self.routes)), 20, "listening on every route")

    def is_listening(self, route):
        """Whether the route listens on all of its addresses."""
        listen = self.routes[route]["listen"]
        have = sum(key.partition("@")[0] == route for key in self.listening)
        return have == (1 if isinstance(listen, str) else len(listen))

    @staticmethod
    def _which(address):
        """A suffix for the route's name: none for its one listener on 127.0.0.1, another for each other listener."""
        if not address.startswith("tcp://"):
            return "@local"
        return "@2" if "127.0.0.2" in address else ""

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
            self.listening[entry["route"] + self._which(entry["listen"])] = entry["listen"]
        elif event == "listener closed":
            key = entry["route"] + self._which(entry["listen"])
            if self.listening.get(key) == entry["listen"]:
                del self.listening[key]
        elif event == "session opened":
            if entry["session"] in self.opened:
                self.problems.append(f"session {entry['session']} opened twice")
            self.opened.add(entry["session"])
            self.sessions[entry["route"]].append(entry["session"])
            self.numbers[self._key(entry)] = entry["session"]
            self.ended.pop(self._key(entry), None)  # of an earlier client with the same port
        elif event == "session ended":
            if entry["session"] in self.over:
                self.problems.append(f"session {entry['session']} ended twice")
            self.over.add(entry["session"])
            self.endings[entry["reason"]] += 1
            self.endings_now[entry["route"], entry["reason"]] += 1
            self.numbers.pop(self._key(entry), None)
            self.ended[self._key(entry)] = entry
        elif event == "route stopped":
            for key in [key for key in self.endings_now if key[0] == entry["route"]]:
                del self.endings_now[key]
        elif event == "session drops":
            self.dropping.add(entry["session"])
        elif event.startswith("link "):
            self.links[entry["route"], event] += 1
        elif event in ("reloaded", "reload failed"):
            self.reloads[event] += 1

    @staticmethod
    def _key(entry):
        """For a TCP client its name, otherwise the session's number."""
        client = entry.get("client", "")
        return (entry["route"], client) if ":" in client else entry["session"]

    def address(self, route):
        """Host and port."""
        return self.listening[route].removeprefix("tcp://").rsplit(":", 1)

    async def ending(self, client, within=45):
        """How the client's session ended; the log reports each ending once."""
        key = client.key
        await until(lambda: key in self.ended, within, f"an ending of {key}")
        return self.ended.pop(key)

    @contextlib.asynccontextmanager
    async def changing(self, outcome="reloaded", by="signal"):
        """The body changes the routes, one body at a time; then the gateway reloads, by signal or command. If the
        reload is meant to fail, the old routes are restored."""
        async with self._changes:
            good = copy.deepcopy(self.routes) if outcome == "reload failed" else self.routes
            yield self.routes
            before = self.reloads[outcome]
            self.write()
            if by == "command":
                code, said = await self.command("reload", str(self.path))
                assert (code == 0) == (outcome == "reloaded"), said
            else:
                self.process.send_signal(signal.SIGHUP)
            await until(lambda: self.reloads[outcome] > before, 20, f"a reload: {outcome}")
            if good is not self.routes:
                self.routes = good
                self.write()

    async def kick(self, route, client=None):
        """Kicks one of a route's clients, or all."""
        if client:
            await until(lambda: client.key in self.numbers, 20, "a session to kick")
        numbers = [str(self.numbers[client.key])] if client else ["--all"]
        code, said = await self.command("kick", route, *numbers, "--config", str(self.path))
        assert code == 0, said

    async def command(self, *words):
        """Runs another command of the binary; returns its exit code and output."""
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
        """Runs the body while the process has a limit of `most` for `kind` (a resource.RLIMIT_… number)."""
        before = resource.prlimit(self.process.pid, kind)
        resource.prlimit(self.process.pid, kind, (most, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.process.pid, kind, before)

    async def endings_in_status(self):
        """Endings as `status` counts them, by route and word."""
        code, said = await self.command("status", "--json", str(self.path))
        assert code == 0, said
        routes = json.loads(said)["routes"]
        return {(route["route"], word): count for route in routes for word, count in route["totals"]["ended"].items()}

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self, what="VmRSS"):
        """A field of the gateway's /proc status, in KiB."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(what + ":"))

    async def stop(self):
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        await until(lambda: self.process.poll() is not None, 12, "the gateway's end")
        await asyncio.sleep(0.3)  # for the last log lines
        return self.process.returncode

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()
