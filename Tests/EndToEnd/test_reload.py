"""Reload under load: whatever changes in the configuration, unchanged routes lose no byte and no client, and a changed
route keeps its clients, except those it forbids now."""
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time

import pytest
from admin import ask as ask_admin
from admin import curl
from kit import GUARD, Deadline, Gateway, Pty, Server, binary, connect, free_ports, noise, receive_all, run_all, until
from test_control import status

BLOCK = noise(1 << 16)


def pattern(place: int, count: int) -> bytes:
    """The running pattern of a stream: the byte at each position can be checked."""
    start = place % len(BLOCK)
    return (BLOCK[start:] + BLOCK * (count // len(BLOCK) + 1))[:count]


class Traffic:
    """A client that sends the pattern, and all ends that must receive it, byte by byte, while `running`."""

    def __init__(self, sender: socket.socket, *hearers: socket.socket, seed: int, most: int = 2000):
        self.sent, self.heard, self.errors = 0, [0] * len(hearers), []
        self.running = True
        self.most = most  # bytes at once, fifty times a second
        self.random = random.Random(seed)
        bodies = [(self._send, sender)] + [(self._hear, index, hearer) for index, hearer in enumerate(hearers)]
        self.threads = [threading.Thread(target=self._guard, args=body, daemon=True) for body in bodies]
        for thread in self.threads:
            thread.start()

    def _guard(self, body, *arguments):
        try:
            body(*arguments)
        except BaseException as error:  # noqa: B902 - the test checks it
            self.errors.append(error)

    def _send(self, sender):
        while self.running:
            count = self.random.randint(1, self.most)
            sender.sendall(pattern(self.sent, count))
            self.sent += count
            time.sleep(0.02)

    def _hear(self, index, hearer):
        while self.running or self.heard[index] < self.sent:
            if not select.select([hearer], [], [], 0.1)[0]:
                continue
            data = hearer.recv(65536)
            assert data, f"ended at byte {self.heard[index]}"
            assert data == pattern(self.heard[index], len(data)), f"changed behind byte {self.heard[index]}"
            self.heard[index] += len(data)

    def check(self):
        assert not self.errors, self.errors

    def finish(self) -> int:
        """Waits until every byte sent has arrived; returns how many that were."""
        self.running = False
        deadline = Deadline(GUARD)
        while any(thread.is_alive() for thread in self.threads) and not self.errors and not deadline.passed:
            time.sleep(0.02)
        self.check()
        assert all(heard == self.sent for heard in self.heard), (self.sent, self.heard)
        return self.sent


class Echo(Pty):
    """A device that echoes."""

    def __init__(self):
        super().__init__()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            while data := os.read(self.master, 4096):
                self.write(data)
        except OSError:
            pass


def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)


class Changes:
    """The route `changing`, and one that is added and removed: a change of each kind, one after the other, and back
    again."""

    def __init__(self, devices):
        self.devices = devices
        *self.ports, self.guest, self.other = free_ports(5)
        self.base = {"listen": [f"tcp://127.0.0.1:{self.ports[0]}"], "endpoint": {"url": devices[0].url}}
        self.kinds = [
            ("listener added", {"listen": self.base["listen"] + [f"tcp://127.0.0.1:{self.ports[1]}"]}),
            ("listener replaced", {"listen": self.base["listen"] + [f"tcp://127.0.0.1:{self.ports[2]}"]}),
            ("endpoint", {"endpoint": {"url": devices[1].url}}),
            ("line setting", {"endpoint": {"url": devices[1].url, "baud": 19200, "parity": "even"}}),
            ("clients", {"clients": {"max": 5, "slow": "block", "buffer": "8KiB", "banner": "hello"}}),
            ("writer", {"clients": {"writers": "one", "takeover": "newest"}}),
            ("device", {"device": {"absent": "discard", "linger": "2s", "retry": "100ms..1s", "open": "always"}}),
            ("allow", {"clients": {"allow": ["127.0.0.1/32"]}}),
            ("packets", {"packets": {"idle": "5ms"}}),
            ("link", None),
        ]

    def config(self, turn: int) -> tuple[str, dict, dict]:
        """The name of this turn's change, the routes, and the settings besides them."""
        name, change = self.kinds[turn % len(self.kinds)]
        routes = {"changing": {**self.base, **(change or {})}}
        if turn % 2:
            routes["guest"] = {"listen": f"tcp://127.0.0.1:{self.guest}", "endpoint": "sim://echo"}
        if change is None:  # another kind of link: replaced, not changed
            routes["other"] = {"listen": f"tcp://127.0.0.1:{self.other}", "endpoint": "sim://echo", "link": "per-client"}
        else:
            routes["other"] = {"listen": f"tcp://127.0.0.1:{self.other}", "endpoint": "sim://echo"}
        return name, routes, {"log": {"format": "json", "level": "info" if turn % 3 else "notice"}} if turn % 5 == 4 else {}


def ask(client: socket.socket, token: bytes):
    """Waits until a token comes back through the device, whatever else is sent. Repeats it: while a port is reopened,
    or another client has the writer role for a moment, input may be dropped, as configured."""
    deadline, data = Deadline(GUARD), b""
    client.settimeout(0.3)
    while token not in data:
        assert not deadline.passed, f"no {token!r}"
        client.sendall(token)
        with contextlib.suppress(TimeoutError):
            piece = client.recv(1 << 16)
            assert piece, f"ended before {token!r}"
            data = data[-100:] + piece


@pytest.mark.timeout(900)
def test_a_reload_under_load_keeps_every_client_and_byte(long):
    turns = 100 if long else 10
    with Echo() as steady, Echo() as first, Echo() as second, Server(echo) as server:
        changes = Changes([first, second])
        untouched = {
            "steady": {"listen": "tcp://127.0.0.1:0", "endpoint": steady.url, "clients": {"slow": "block"}},
            "flow": {"listen": "tcp://127.0.0.1:0", "endpoint": server.url},
        }
        name, routes, more = changes.config(0)
        with Gateway({"routes": {**untouched, **routes}}) as gateway:
            one, two = gateway.connect("steady"), gateway.connect("steady")
            flows = [gateway.connect("flow") for _ in range(3)]
            traffic = [Traffic(one, one, two, seed=1)] + [
                Traffic(f, f, seed=2 + n, most=40_000) for n, f in enumerate(flows)]
            stays = connect(("127.0.0.1", changes.ports[0]))
            ask(stays, b"<begin>")
            until(lambda: len(sessions(gateway, untouched)) == 5, what="five clients")
            before = sessions(gateway, untouched)
            link = gateway.event("link open", route="steady")
            for turn in range(1, turns + 1):
                marks = [stream.sent + 1000 for stream in traffic]
                turn_over(gateway, changes, untouched, turn)
                ask(stays, b"<%d>" % turn)
                until(lambda: all(s.errors or s.sent >= mark for s, mark in zip(traffic, marks)), what="traffic goes on")
                for stream in traffic:
                    stream.check()
            assert sessions(gateway, untouched) == before
            assert gateway.events("link open", route="steady") == [link]
            assert not gateway.events("link closed", route="steady") and not gateway.events("listener waiting")
            moved = [stream.finish() for stream in traffic]
            assert min(moved) > 1000 * turns, moved
            ended = gateway.events("session ended")
            assert not [e for e in ended if e["route"] in untouched or e["client"] == "%s:%d" % stays.getsockname()]
            # The other clients of the changed route only connected to check it, or are forbidden now.
            assert {e["reason"] for e in ended if e["route"] == "changing"} <= {"client-left", "client-lost", "denied"}
            assert any(e["reason"] == "denied" for e in ended)
            for client in (one, two, stays, *flows):
                client.close()


def sessions(gateway, names) -> set:
    return {(r["route"], c["session"]) for r in status(gateway)["routes"] if r["route"] in names for c in r["clients"]}


def turn_over(gateway, changes, untouched, turn):
    """Does one reload, by signal or command, and checks the result."""
    name, routes, more = changes.config(turn)
    stranger = None
    if name == "allow":
        stranger = socket.create_connection(("127.0.0.1", changes.ports[0]), source_address=("127.0.0.2", 0))
        until(lambda: any(":" in c["client"] and c["client"].startswith("127.0.0.2:") for r in status(gateway)["routes"]
                          for c in r["clients"]), what="the stranger is in")
    count = len(gateway.events("reloaded"))
    gateway.configure({"routes": {**untouched, **routes}})
    if turn % 2:
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded", count=count + 1)
    else:
        done = gateway.command("reload", str(gateway.path))
        assert (done.returncode, done.stderr) == (0, ""), done
        gateway.event("reloaded", count=count + 1)
    told = gateway.events("reloaded")[-1]
    assert "steady" not in told.get("changes", "") and "flow" not in told.get("changes", ""), told
    if stranger:
        receive_all(stranger)
        stranger.close()
    for port, is_served in [(changes.guest, "guest" in routes), (changes.other, True)] + [
        (port, any(str(port) in url for url in routes["changing"]["listen"])) for port in changes.ports
    ]:
        with socket.socket() as probe:
            probe.settimeout(GUARD)
            assert (probe.connect_ex(("127.0.0.1", port)) == 0) == is_served, (name, port)
    if turn % 10 == 9:
        text = gateway.path.read_text()
        gateway.path.write_text(text.replace('"endpoint"', '"endpiont"'))
        done = gateway.command("reload", str(gateway.path))
        assert done.returncode == 78 and "endpiont" in done.stderr, done
        gateway.path.write_text(text)


@pytest.mark.parametrize("kind", ["fifo", "terminal", "secret"])
def test_a_configuration_or_secret_that_is_no_file_does_not_block_a_reload(kind):
    echo = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
    with Gateway({"routes": {"echo": echo}}) as gateway, Pty() as terminal:
        if kind == "secret":
            os.mkfifo(gateway.folder / "token")
            gateway.configure({"routes": {"echo": echo}, "users": {"ada": {"token": "file:token"}}})
        else:
            gateway.path.unlink()
            os.mkfifo(gateway.path) if kind == "fifo" else gateway.path.symlink_to(terminal.path)
        gateway.signal(signal.SIGHUP)
        assert "ENXIO" in str(gateway.event("reload failed"))
        done = gateway.command("check", str(gateway.path))
        assert done.returncode == 78 and "it is a FIFO, a socket or a device" in done.stderr, done
        gateway.path.unlink()
        gateway.configure({"routes": {"echo": echo, "more": echo}})
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded")


def middle_of_a_reload(gateway, routes, **more):
    """Removes a route whose client does not read: the reload takes the 5 s that the client has. Returns the client."""
    slow = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://flood"}
    gateway.configure({"routes": {**routes, "slow": slow}, **more})
    gateway.signal(signal.SIGHUP)
    client = gateway.connect("slow", receive_buffer=4096)
    gateway.event("reloaded")
    sent = lambda: [found["clients"][0]["down"] for found in status(gateway)["routes"] if found["route"] == "slow"][0]
    until(lambda: 0 < sent() == sent(), what="the client takes nothing")
    gateway.configure({"routes": routes, **more})
    gateway.signal(signal.SIGHUP)
    gateway.event("listener closed", route="slow")
    return client


@pytest.mark.waits
def test_a_configuration_refused_in_the_middle_of_a_reload_stays_in_status_and_health():
    echo = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
    with Gateway({"routes": {"echo": echo}}) as gateway, middle_of_a_reload(gateway, {"echo": echo}):
        text = gateway.path.read_text()
        gateway.path.write_text(text.replace('"endpoint"', '"endpiont"'))
        done = gateway.command("reload", str(gateway.path))
        assert done.returncode == 78 and "endpiont" in done.stderr, done
        failed = lambda: ("reload-failed" in status(gateway), "reload-failed" in gateway.command("health", str(gateway.path)).stdout)
        assert failed() == (True, True)
        gateway.event("reloaded", count=2)
        assert failed() == (True, True)
        gateway.path.write_text(text)
        assert gateway.command("reload", str(gateway.path)).returncode == 0
        assert failed() == (False, False)


@pytest.mark.waits
def test_reloads_requested_in_the_middle_of_another_are_answered_with_what_the_newest_changes():
    echo = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
    admin = {"listen": "http://127.0.0.1:0"}
    more = {"admin": admin, "log": {"level": "debug"}}
    gateway = Gateway({"routes": {"echo": echo}, **more})
    gateway.expected += 1
    with gateway, middle_of_a_reload(gateway, {"echo": echo}, **more):
        # While it lasts, the gateway answers everything else.
        assert gateway.command("health", str(gateway.path)).returncode == 0
        assert [route["route"] for route in status(gateway)["routes"]] == ["echo"]
        assert curl(gateway, "/readyz").status == 200
        with gateway.connect("echo") as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
        gateway.configure({"routes": {"echo": echo, "second": echo}, **more})
        gateway.signal(signal.SIGHUP)
        gateway.event("reloading", count=3)
        gateway.configure({"routes": {"echo": echo, "third": echo}, **more})
        by_command, by_admin = run_all(
            lambda: gateway.command("reload", str(gateway.path)),
            lambda: ask_admin(gateway, "POST /api/v1/reload"))
        assert by_command.returncode == 0 and "third" in by_command.stdout and "second" not in by_command.stdout, by_command
        assert by_admin.status == 200 and by_admin.json["added"] == ["third"], by_admin
        gateway.event("reloaded", changes="+third")
        assert sorted(route["route"] for route in status(gateway)["routes"]) == ["echo", "third"]


@pytest.mark.waits
def test_a_stop_in_the_middle_of_a_reload_answers_the_commands_that_wait_for_it():
    echo = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
    more = {"log": {"level": "debug"}}
    with Gateway({"routes": {"echo": echo}, **more}, stopping=False) as gateway, middle_of_a_reload(gateway, {"echo": echo}, **more):
        waiting = subprocess.Popen(
            [binary(), "reload", str(gateway.path)], env=gateway.environment, stderr=subprocess.PIPE, text=True)
        gateway.event("reloading", count=3)
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
        assert "stopping" in waiting.communicate(timeout=GUARD)[1] and waiting.returncode != 0


def test_a_configuration_may_come_through_a_pipe():
    gateway = Gateway({"routes": {"echo": {"listen": "tcp://127.0.0.1:4001", "endpoint": "sim://echo"}}})
    with gateway.path.open() as file:
        words = f"sleep 0.2; cat {gateway.path}"
        for command in (f"({words}) | {binary()} check /dev/stdin", f"{binary()} check <({words})"):
            done = subprocess.run(["/bin/bash", "-c", command], stdin=file, capture_output=True, text=True, timeout=GUARD)
            assert done.returncode == 0 and "sim://echo" in done.stdout, done
