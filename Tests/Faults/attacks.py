#!/usr/bin/env python3
"""All attacks in turn from a network namespace, on a gateway with 300 descriptors and little memory. README.md has the
details.

Prints a table; exit code 1 if a requirement is not met.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "EndToEnd"))
from attackers import FLOOD_ROUTE, QUIET_ROUTE, TOKEN, terminal  # noqa: E402
from certificates import Authority  # noqa: E402

HOST, OTHER = "10.77.0.1", "10.77.255.254"  # the gateway's; an ordinary client's in the attackers' namespace
DESCRIPTORS, OWN_MEMORY = 300, 64 << 20

FEWEST = 200  # rounds needed before the slowest in a hundred means anything

# Title, attack, route and further arguments; run in this order, again and again.
ATTACKS = [
    ("half-open HTTP heads, 40 addresses", "half_http", "web", ()),
    ("half-open HTTP heads, 7 addresses", "half_http", "web", ("10.77.1.1", 7)),
    ("half-open TLS, 40 addresses", "half_tls", "tls", ()),
    ("half-open TLS on wss, 7 addresses", "half_tls", "wss", ("10.77.1.1", 7)),
    ("a flood of refused connections", "refused", "denied", ()),
    ("a flood on a full route", "refused", "full", ()),
    ("HTTP POST on a raw port", "post", "raw", ()),
    ("wrong passwords", "passwords", "users", ()),
    ("DNS rebinding", "rebinding", "web", ()),
    ("headers without end", "endless", "web", ()),
    ("slow readers that reset, drop-oldest with packets", "slow", "flood", ()),
    ("monitors that read slowly and reset", "slow", "monitor", ()),
    ("coming and going in the middle of packets", "unheard", "packets", ()),
    ("10,000 connect and close, raw", "churn", "proxy", ()),
    ("connect and close, TLS noise", "noise", "tls", ()),
    ("idle sockets of one address", "idle", "raw", ()),
    ("programs, of one address and of many", "programs", "program", ()),
    ("admin: 10,000 half-open connections", "half_open", "admin", ()),
    ("admin: half-open TLS, 40 addresses", "half_tls", "secure", ()),
    ("admin: requests a byte at a time", "slowloris", "admin", ()),
    ("admin: request smuggling", "smuggling", "admin", ()),
    ("admin: DNS rebinding", "rebound", "admin", ()),
    ("admin: pages of another site", "cross_site", "admin", ()),
    ("admin: huge requests", "huge", "admin", ()),
    ("admin: headers without end", "endless", "admin", ()),
    ("admin: paths to other files", "traversal", "admin", ()),
    ("admin: answers that nobody reads", "unread_answers", "admin", ()),
    ("terminals that never read", "unread", "admin", ()),
]
# The attacks for other gateways, and the route each is made on.
PEER_ATTACKS = {
    "haproxy": [("half_http", "web"), ("half_tls", "tls"), ("churn", "proxy"), ("idle", "proxy"), ("noise", "tls")],
    "ser2net": [("churn", "line"), ("post", "line"), ("idle", "line"), ("unheard", "line")],
}


def sh(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)


# --- where it happens
#   ------------------------------------------------------------------------------------------------


class Place:
    """Two network namespaces and a cable between them: the gateway's, which is also this process's, and the
    attackers'."""

    def __init__(self):
        self.name = f"bw-attack-{os.getpid()}"
        libc = __import__("ctypes").CDLL(None, use_errno=True)
        if libc.unshare(0x40000000):  # CLONE_NEWNET
            raise PermissionError("needs root, for network namespaces")
        sh("ip", "link", "set", "lo", "up")
        sh("ip", "netns", "add", self.name)
        sh("ip", "link", "add", "bwg", "type", "veth", "peer", "name", "bwa", "netns", self.name)
        sh("ip", "addr", "add", f"{HOST}/16", "dev", "bwg")
        sh("ip", "link", "set", "bwg", "up")
        for command in ("link set lo up", "addr add 10.77.0.2/16 dev bwa", "link set bwa up",
                        "route add local 10.77.1.0/24 dev lo", f"addr add {OTHER}/16 dev bwa"):
            sh("ip", "-n", self.name, *command.split())
        # Local addresses of the cable's network answer ARP and can be bound.
        for last in range(1, 41):
            sh("ip", "-n", self.name, "addr", "add", f"10.77.1.{last}/32", "dev", "bwa")

    def close(self):
        sh("ip", "netns", "del", self.name, check=False)

    def inside(self, *command):
        return ["ip", "netns", "exec", self.name, *command]


class Cgroup:
    """Limits a process's memory by cgroup v2 or v1, or by RLIMIT_DATA if no cgroup can be made."""

    def __init__(self, name, limit):
        self.limit, self.folder, self.kind = limit, None, "RLIMIT_DATA (no cgroup can be made here)"
        for base, file, kind in (("/sys/fs/cgroup", "memory.max", "cgroup v2"),
                                 ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "cgroup v1")):
            folder = pathlib.Path(base) / name
            with contextlib.suppress(OSError):
                folder.mkdir()
                self.folder = folder
                if (folder / file).exists():
                    (folder / file).write_text(str(limit))
                    self.kind = kind
                    return
                folder.rmdir()
            self.folder = None

    def prefix(self):
        limits = ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"]
        if not self.folder:
            return [*limits, f"--data={self.limit}"]
        return [*limits, "sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh"]

    @property
    def peak(self):
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            with contextlib.suppress(OSError, TypeError):
                return int((self.folder / name).read_text())
        return 0

    def close(self):
        if not self.folder:
            return
        for _ in range(50):
            with contextlib.suppress(OSError):
                return self.folder.rmdir()
            time.sleep(0.1)


class Device:
    """A serial port that echoes and can be unplugged: another process's pty, under its own path."""

    CODE = (
        "import os,tty\n"
        "m,s=os.openpty()\n"
        "tty.setraw(s)\n"
        "print(os.ttyname(s),flush=True)\n"
        "while d:=os.read(m,4096): os.write(m,d)\n")

    def __init__(self, path):
        self.path = str(path)
        self.plug()

    def plug(self):
        self.process = subprocess.Popen([sys.executable, "-c", self.CODE], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        os.symlink(self.process.stdout.readline().decode().strip(), self.path)

    def unplug(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.process.kill()
        self.process.wait()


def echo_server():
    """An echo server for proxies, in its own process."""
    code = (
        "import asyncio,socket\n"
        "async def serve(r,w):\n"
        "  w.transport.get_extra_info('socket').setsockopt(6,1,1)\n"
        "  try:\n"
        "    while d:=await r.read(4096): w.write(d)\n"
        "  except OSError: pass\n"
        "  finally: w.close()\n"
        "async def main():\n"
        "  s=await asyncio.start_server(serve,'127.0.0.1',0,backlog=4096)\n"
        "  print(s.sockets[0].getsockname()[1],flush=True)\n"
        "  await s.serve_forever()\n"
        "asyncio.run(main())\n")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return process, int(process.stdout.readline())


# --- ordinary clients ------------------------------------------------------------------------------------------------


class Client:
    """Stays connected and has a byte echoed now and then. Endings are counted, and it connects again."""

    def __init__(self, name, connect, *, echoes=True):
        self.name, self._connect, self.echoes = name, connect, echoes
        self.socket, self.times, self.all, self.faults = None, [], [], collections.Counter()
        self.tries = 0

    def round(self):
        """One byte there and back, in seconds; None if it was not served."""
        self.tries += 1
        try:
            if self.socket is None:
                self.socket = self._connect()
            began = time.perf_counter()
            if self.echoes:
                self.say(b"\x55")
                self.hear(1)
                spent = time.perf_counter() - began
                self.times.append(spent)
            else:
                self.hear(1)
                spent = time.perf_counter() - began
            return spent
        except (OSError, EOFError) as error:
            self.faults[f"{type(error).__name__}: {error}"[:80]] += 1
            with contextlib.suppress(Exception):
                self.socket.close()
            self.socket = None
            return None

    def say(self, data):
        self.socket.sendall(data)

    def hear(self, count):
        data = self.socket.recv(count)
        if not data:
            raise EOFError("the other side has closed")
        return data

    @property
    def p99(self):
        return percentile(self.times)


def percentile(times):
    return sorted(times)[int(len(times) * 0.99)] if times else float("nan")


class WebClient(Client):
    def say(self, data):
        self.socket.sendall(struct.pack("!BBI", 0x82, 0x80 | len(data), 0) + data)

    def hear(self, count):
        while True:
            head = self._take(2)
            length = head[1] & 127
            if length == 126:
                length = struct.unpack("!H", self._take(2))[0]
            data = self._take(length)
            if head[0] & 15 == 9:  # a ping
                self.socket.sendall(struct.pack("!BBI", 0x8A, 0x80 | len(data), 0) + data)
            elif head[0] & 15 == 8:
                raise EOFError(f"closed: {data[2:].decode('utf-8', 'replace')}")
            elif head[0] & 15 != 1:  # a text of `baudway.v1` is no answer of the device
                return data

    def _take(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise EOFError("the other side has closed")
            data += piece
        return data


def dial(address, own=None, security=None, request=None):
    def connect():
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        client = socket.socket(family)
        client.settimeout(5)
        if own:
            client.bind((own, 0))
        client.connect(address)
        if family == socket.AF_INET:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if security:
            client = security.wrap_socket(client)
        if request:
            client.sendall(request)
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(1)
                if not piece:
                    raise EOFError(f"refused: {head[:60]!r}")
                head += piece
            if b" 101 " not in head:
                raise EOFError(f"refused: {head.splitlines()[0].decode()}")
        return client
    return connect


UPGRADE = ("GET / HTTP/1.1\r\nHost: 10.77.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
           "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{more}\r\n")


def insecure():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# --- what is measured ------------------------------------------------------------------------------------------------


def anonymous(pid):
    """Anonymous memory in KiB, of the process and its children."""
    total = 0
    for one in [pid, *children(pid)]:
        with contextlib.suppress(OSError):
            text = pathlib.Path(f"/proc/{one}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss_Anon: +(\d+)", text, re.M)[1])
    return total


def children(pid):
    with contextlib.suppress(OSError):
        return [int(one) for one in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def ask(path, request="health"):
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(10)
        control.connect(str(path))
        control.sendall(request.encode() + b"\n")
        answer = b""
        while piece := control.recv(65536):
            answer += piece
    return json.loads(answer)


def wait(condition, seconds, every=0.2):
    end = time.monotonic() + seconds
    while True:
        if condition():
            return True
        if time.monotonic() > end:
            return False
        time.sleep(every)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind((HOST, 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Run:
    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bw-attack-"))
        self.processes, self.failures, self.lines = [], [], []

    def spawn(self, *command, **others):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **others)
        self.processes.append(process)
        return process

    def expect(self, condition, text):
        if not condition:
            self.failures.append(text)
            print(f"  NOT AS IT MUST BE: {text}", flush=True)

    # The gateway and its helpers.

    def prepare(self):
        self.place = Place()
        self.device = Device(self.folder / "port")
        self.packets = Device(self.folder / "packets")
        echo, self.echo_port = echo_server()
        self.processes.append(echo)
        authority = Authority(self.folder)
        self.chain, self.key = authority.issue("gw.test", "DNS:gw.test")
        names = ["raw", "line", "tls", "web", "wss", "users", "program", "proxy", "flood", "monitor", "packets", "denied",
                 "full", "terminal", "admin", "secure", "relay"]
        self.ports = dict(zip(names, free_ports(len(names))))
        relay = self.folder / "relay"
        sh("cc", "-O2", "-o", str(relay), str(HERE.parent / "Bench" / "relay.c"))
        # The relay listens on loopback: its ordinary client is in this namespace, and so are the clients it is compared
        # with.
        self.spawn(str(relay), f"{self.ports['relay']}=tcp:{self.echo_port}")

    def config(self):
        def at(name, scheme="tcp", more=""):
            return f"{scheme}://{HOST}:{self.ports[name]}{more}"

        small = {"max": 20, "buffer": "64KiB"}
        hashed = subprocess.run([self.options.binary, "hash-password"], input="secret-of-ada\n", capture_output=True, text=True,
                                timeout=20).stdout.strip()
        return {
            "version": 1,
            "tls": {"certificate": str(self.chain), "key": str(self.key)},
            # Attackers have the token, too.
            "users": {"ada": {"password": hashed, "roles": {"users": "writer"}},
                      "eve": {"token": TOKEN, "roles": {QUIET_ROUTE: "admin", FLOOD_ROUTE: "admin"}}},
            "admin": {"listen": [at("admin", "http"), at("secure", "https")], "insecure": True},
            "routes": {
                "raw": {"listen": at("raw"), "endpoint": "sim://echo", "clients": {"max": 10}},
                "line": {"listen": at("line"), "endpoint": f"tty://{self.folder}/port"},
                "tls": {"listen": at("tls", "tls"), "endpoint": "sim://echo"},
                "web": {"listen": at("web", "ws"), "endpoint": "sim://echo"},
                "wss": {"listen": at("wss", "wss"), "endpoint": "sim://echo"},
                "users": {"listen": at("users", "ws"), "endpoint": "sim://echo", "clients": {"users": ["ada"]}},
                "program": {"listen": at("program"), "endpoint": "exec:/bin/cat", "clients": small},
                "proxy": {"listen": at("proxy"), "endpoint": f"tcp://127.0.0.1:{self.echo_port}", "clients": small},
                "flood": {"listen": [at("flood"), at("monitor", more="?role=monitor")], "endpoint": "sim://flood",
                          "clients": {"slow": "drop-oldest", "buffer": "4KiB", "max": 20}, "packets": {"max": 1000}},
                "packets": {"listen": at("packets"), "endpoint": f"tty://{self.folder}/packets",
                            "device": {"open": "always", "flush": "disconnect"}, "packets": {"delimiter": "\\n"}},
                "denied": {"listen": at("denied"), "endpoint": "sim://echo", "clients": {"deny": ["10.77.1.0/24"]}},
                "full": {"listen": at("full"), "endpoint": "sim://echo", "clients": {"max": 1}},
                QUIET_ROUTE: {"listen": at("terminal"), "endpoint": "sim://echo", "clients": small},
                "local": {"listen": f"unix://{self.folder}/local", "endpoint": "sim://echo"},
            },
        }

    def worst_case(self, path):
        said = subprocess.run(["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", self.options.binary, "check", str(path)],
                              capture_output=True, text=True, timeout=20)
        if said.returncode:
            sys.exit(said.stderr)
        self.said = [line for line in said.stdout.splitlines() if line.startswith("#")]
        return int(re.search(r"# memory: at most (\d+) MiB", said.stdout)[1]) << 20

    def start(self):
        path = self.folder / "config.yaml"
        path.write_text(json.dumps(self.config()))
        self.cgroup = Cgroup(self.place.name, OWN_MEMORY + self.worst_case(path))
        self.log = self.folder / "log"
        environment = {**os.environ, "RUNTIME_DIRECTORY": str(self.folder)}
        with open(self.log, "wb") as log:
            self.gateway = self.spawn(*self.cgroup.prefix(), self.options.binary, "serve", str(path), env=environment,
                                      stderr=log, stdout=subprocess.DEVNULL)
        self.control = self.folder / "control.sock"

        def is_healthy():
            with contextlib.suppress(OSError):
                return ask(self.control)["healthy"]

        if not wait(is_healthy, 20):
            sys.exit(f"does not start: {self.log.read_text()[-2000:]}")
        print(f"{self.cgroup.kind}: {self.cgroup.limit >> 20} MiB ({OWN_MEMORY >> 20} MiB and what check says), "
              f"{DESCRIPTORS} descriptors", *self.said, sep="\n", flush=True)

    def clients(self):
        """One client per route, connected before the first attack; clients of the network connect from this side, as
        the relay's do."""
        secure, port = insecure(), lambda name: (HOST, self.ports[name])
        web = UPGRADE.format(more="").encode()
        word = __import__("base64").b64encode(b"ada:secret-of-ada").decode()
        user = UPGRADE.format(more=f"Authorization: Basic {word}\r\n").encode()
        return [
            Client("relay", dial(("127.0.0.1", self.ports["relay"]))),
            Client("raw", dial(port("raw"))), Client("line", dial(port("line"))),
            Client("tls", dial(port("tls"), security=secure)), WebClient("web", dial(port("web"), request=web)),
            WebClient("wss", dial(port("wss"), security=secure, request=web)),
            WebClient("users", dial(port("users"), request=user)), Client("program", dial(port("program"))),
            Client("proxy", dial(port("proxy"))), Client("flood", dial(port("flood")), echoes=False),
            Client("packets", dial(port("packets")), echoes=False), Client("denied", dial(port("denied"))),
            Client("full", dial(port("full"))),
            WebClient("terminal", dial(port("admin"), request=terminal(HOST, QUIET_ROUTE))), Client("local", dial(f"{self.folder}/local")),
        ]

    # The run.

    def attack(self, name, port, seconds, rest=()):
        script = [sys.executable, str(HERE / "attackers.py"), name, HOST, str(port), f"{seconds:.1f}", *map(str, rest)]
        return self.spawn(*self.place.inside(*script), stdout=subprocess.PIPE, text=True)

    def finish(self, attacker, seconds):
        """How many connections the attacker made, and how many of its requests were carried out."""
        try:
            words = attacker.communicate(timeout=seconds)[0].split()
        except subprocess.TimeoutExpired:
            attacker.kill()
            words = []
        made, accepted = map(int, words or (0, 0))
        return made, accepted

    def is_ready(self):
        """A new client of the admin listener."""
        with contextlib.suppress(OSError):
            with dial((HOST, self.ports["admin"]))() as client:
                client.sendall(b"GET /readyz HTTP/1.1\r\nHost: 10.77.0.1\r\n\r\n")
                return client.recv(12) == b"HTTP/1.1 200"
        return False

    def measure(self, clients, end):
        """Rounds of all clients in turn until `end`; meanwhile asks for health, and for readiness at the admin listener.
        Returns the longest time of each."""
        worst, worst_ready = 0, 0
        asked = 0
        while time.monotonic() < end:
            for client in clients:
                if client.name == "packets":
                    continue
                client.round()
            if time.monotonic() - asked > 1:
                asked = time.monotonic()
                try:
                    answer = ask(self.control)
                    worst = max(worst, time.monotonic() - asked)
                    self.expect(answer["healthy"] or self.unplugged, f"health: {answer}")
                except OSError as error:
                    self.expect(False, f"health: {error}")
                began = time.monotonic()
                self.expect(self.is_ready() or self.unplugged, "the admin listener does not serve a new client")
                worst_ready = max(worst_ready, time.monotonic() - began)
            time.sleep(0.002)
        return worst, worst_ready

    def reopen(self, clients):
        """Unplugs the device and plugs it in again: how long until its client gets an echo."""
        line = next(client for client in clients if client.name == "line")
        self.unplugged = True
        self.device.unplug()
        time.sleep(0.1)
        self.device.plug()
        began = time.monotonic()

        def echoes():
            before = sum(line.faults.values())
            done = line.round() is not None
            if not done:
                line.faults.clear()
                line.faults["before it was plugged in"] = before * 0
            return done

        if line.socket:
            line.socket.settimeout(0.3)
        back = wait(echoes, 10, 0.01)
        if line.socket:
            line.socket.settimeout(5)
        self.unplugged = False
        self.expect(back, "the device was not opened again within 10 s")
        return time.monotonic() - began

    def run(self):
        self.unplugged = False
        clients = self.clients()
        self.relay = clients[0]
        self.warm_up()
        for _ in range(100):
            for client in clients:
                if client.name != "packets":
                    client.round()
        for client in clients:
            self.expect(not client.faults, f"before any attack {client.name}: {dict(client.faults)}")
            client.times.clear()
        if not wait(lambda: self.is_quiet(), 30):
            print("  memory is still falling after the warm-up")
        before = {"descriptors": descriptors(self.gateway.pid), "memory": anonymous(self.gateway.pid)}
        self.calm(clients)
        share = max(1.0, self.options.seconds / len(ATTACKS) / self.options.rounds)
        log_before, began = self.log.stat().st_size, time.monotonic()
        spent = {title: ([], []) for title, *_ in ATTACKS}  # of the clients' rounds and the relay's, per attack
        for turn in range(self.options.rounds):
            for title, name, route, rest in ATTACKS:
                self.one(clients, title, name, self.ports[route], share, rest, spent[title])
                if self.gateway.poll() is not None:
                    self.expect(False, f"the gateway ended: {self.log.read_text(errors='replace')[-1500:]}")
                    return
        minutes = (time.monotonic() - began) / 60
        grown = (self.log.stat().st_size - log_before) / minutes / 1e6
        # Each served session logs an end line, up to 1,000 a second; in a short run 2,000 connections make many of the
        # lines.
        self.expect(grown < (1 if self.options.seconds >= 300 else 2), f"the log grew by {grown:.2f} MB a minute")
        reopened = self.reopen(clients)
        after = {}

        def is_back():
            after.update(descriptors=descriptors(self.gateway.pid), memory=anonymous(self.gateway.pid))
            return (after["descriptors"] <= before["descriptors"]
                    and after["memory"] <= before["memory"] + max(before["memory"] // 10, 4096))

        ended = time.monotonic()
        back = wait(is_back, 60, 1)
        self.expect(back, f"60 s later: {after}, before: {before}")
        print(f"log {grown:.2f} MB a minute; the device was open again {reopened * 1000:.0f} ms after it came back; "
              f"the cgroup's peak was {self.cgroup.peak >> 20} of {self.cgroup.limit >> 20} MiB\n"
              f"before: {before['descriptors']} descriptors, {before['memory']} KiB of anonymous PSS; "
              f"{time.monotonic() - ended:.0f} s after the last attack: {after['descriptors']}, {after['memory']} KiB")
        for name, client in ((c.name, c) for c in clients):
            self.expect(not client.faults, f"{name} was not served: {dict(client.faults)}")
        print("p99 of all rounds under attack, in ms:", ", ".join(f"{c.name} {percentile(c.all) * 1e3:.2f}" for c in clients if c.echoes))
        # One attack with all routes, and one route with all attacks.
        for title, (times, relay) in spent.items():
            if len(relay) >= FEWEST:
                p99, relay = percentile(times), percentile(relay)
                self.expect(p99 <= self.options.times * relay, f"{title}: p99 {p99 * 1e3:.2f} ms, the relay's {relay * 1e3:.2f} ms")
        for client in clients[1:]:
            if client.echoes and len(client.all) >= FEWEST:
                self.expect(percentile(client.all) <= self.options.times * percentile(self.relay.all), f"{client.name}: p99 "
                            f"{percentile(client.all) * 1e3:.2f} ms, the relay's {percentile(self.relay.all) * 1e3:.2f} ms")
        status = ask(self.control, "status")
        print(f"handshakes: {status.get('handshakes')}")

    def warm_up(self):
        """1,000 clients, spread over the routes with a handshake."""
        for route in ("proxy", "tls"):
            self.finish(self.attack("churn", self.ports[route], 1.5), 20)

    def is_quiet(self):
        """No more memory is being returned."""
        first = anonymous(self.gateway.pid)
        time.sleep(6)
        return abs(anonymous(self.gateway.pid) - first) < 256

    def calm(self, clients):
        self.measure(clients, time.monotonic() + 2)
        print("p99 before any attack, in ms:", ", ".join(f"{c.name} {c.p99 * 1e3:.2f}" for c in clients if c.echoes))
        for client in clients:
            client.times.clear()

    def one(self, clients, title, name, port, seconds, rest, spent):
        faults = sum(sum(client.faults.values()) for client in clients)
        tries = sum(client.tries for client in clients)
        log = self.log.stat().st_size
        for client in clients:
            client.times.clear()
        attacker = self.attack(name, port, seconds, rest)
        health, ready = self.measure(clients, time.monotonic() + seconds)
        made, accepted = self.finish(attacker, seconds + 20)
        self.expect(made, f"{title}: no connection was made")
        self.expect(not accepted, f"{title}: {accepted} requests were carried out that must be refused")
        self.expect(health < 1, f"{title}: health took {health:.2f} s")
        # A SYN that finds no room in a listen queue comes again after 1 s.
        self.expect(ready < 2, f"{title}: the admin listener took {ready:.2f} s for a new client")
        times = [took for client in clients[1:] for took in client.times]
        p99, relay = percentile(times), self.relay.p99
        spent[0].extend(times)
        spent[1].extend(self.relay.times)
        for client in clients:
            client.all += client.times
        lost = sum(sum(client.faults.values()) for client in clients) - faults
        self.expect(not lost, f"{title}: {lost} rounds not served: " + "; ".join(
            f"{c.name}: {dict(c.faults)}" for c in clients if c.faults))
        for client in clients:
            client.faults.clear()
        rounds = sum(client.tries for client in clients) - tries
        row = (title, made, rounds - lost, rounds, p99 * 1e3, relay * 1e3, health * 1e3, ready * 1e3,
               (self.log.stat().st_size - log) / seconds * 60 / 1e6, anonymous(self.gateway.pid))
        print(self.line(row), flush=True)

    @staticmethod
    def line(row):
        title, made, served, rounds, p99, relay, health, ready, log, memory = row
        return (f"{title:<52} {made:>7} {served:>6}/{rounds:<6} {p99:>7.2f} {relay:>7.2f} {p99 / relay:>5.1f} "
                f"{health:>7.1f} {ready:>7.1f} {log:>6.2f} {memory:>7}")

    HEAD = (f"{'attack':<52} {'made':>7} {'rounds served':>13} {'p99 ms':>7} {'relay':>7} {'ratio':>5} {'health':>7} "
            f"{'admin':>7} {'MB/min':>6} {'KiB':>7}")

    # Other gateways, for comparison.

    def peers(self):
        print("\nothers, with the same limits: rounds served of those that were tried under each attack, p99 (ms)")
        for name, start in (("haproxy", self.haproxy), ("ser2net", self.ser2net)):
            if not shutil.which(name) and not os.path.exists(f"/usr/sbin/{name}"):
                print(f"{name}: not installed")
                continue
            self.peer(name, start)

    def haproxy(self):
        both = self.folder / "both.pem"
        both.write_text(pathlib.Path(self.chain).read_text() + pathlib.Path(self.key).read_text())
        (self.folder / "haproxy.cfg").write_text("\n".join([
            "global", "  log stderr local0", "defaults", "  log global", "  timeout connect 5s", "  timeout client 1h",
            "  timeout server 1h", "  timeout http-request 10s",
            "listen proxy", "  mode tcp", "  option tcplog", f"  bind {HOST}:{self.ports['proxy']}",
            f"  server s 127.0.0.1:{self.echo_port}",
            "listen tls", "  mode tcp", "  option tcplog", f"  bind {HOST}:{self.ports['tls']} ssl crt {both}",
            f"  server s 127.0.0.1:{self.echo_port}",
            "listen web", "  mode http", "  option httplog", f"  bind {HOST}:{self.ports['web']}",
            "  http-request return status 200", ""]))
        secure = insecure()
        return ["haproxy", "-db", "-f", str(self.folder / "haproxy.cfg")], [
            Client("proxy", dial((HOST, self.ports["proxy"]))),
            Client("tls", dial((HOST, self.ports["tls"]), security=secure))]

    def ser2net(self):
        self.device.unplug()
        self.device.plug()
        (self.folder / "ser2net.yaml").write_text("\n".join([
            "%YAML 1.1", "---", "connection: &line", f"  accepter: tcp,{HOST},{self.ports['line']}", "  enable: on",
            f"  connector: serialdev,{self.folder}/port,115200n81,local", "  options:", "    max-connections: 8", ""]))
        return ["ser2net", "-n", "-d", "-c", str(self.folder / "ser2net.yaml")], [Client("line", dial((HOST, self.ports["line"])))]

    def peer(self, name, start):
        command, clients = start()
        cgroup = Cgroup(f"{self.place.name}-{name}", self.cgroup.limit)
        log = self.folder / f"{name}.log"
        with open(log, "wb") as file:
            process = self.spawn(*cgroup.prefix(), *command, stdout=file, stderr=file)
        try:
            time.sleep(1)
            for client in clients:
                client.round()
                client.faults.clear()
            first = anonymous(process.pid)
            for attack, route in PEER_ATTACKS[name]:
                # A new ordinary client per route connects during the attack.
                for client in clients:
                    client.times.clear()
                    client.tries = 0
                size = log.stat().st_size
                seconds = max(1.0, self.options.seconds / 60)
                attacker = self.attack(attack, self.ports[route], seconds)
                time.sleep(seconds / 2)
                new = Client("new", clients[0]._connect if attack not in ("half_tls", "noise") else clients[-1]._connect)
                gets_in = new.round() is not None
                end = time.monotonic() + seconds / 2
                while time.monotonic() < end:
                    for client in clients:
                        client.round()
                    time.sleep(0.005)
                made, _ = self.finish(attacker, seconds + 20)
                rounds, lost = sum(c.tries for c in clients), sum(sum(c.faults.values()) for c in clients)
                for client in clients:
                    client.faults.clear()
                times = sorted(t for c in clients for t in c.times)
                p99 = times[int(len(times) * 0.99)] * 1e3 if times else float("nan")
                grown = (log.stat().st_size - size) / seconds * 60 / 1e6
                alive = "" if process.poll() is None else "  ENDED"
                print(f"{name:<8} {attack:<10} on {route:<6} {made:>6} made, {rounds - lost:>5}/{rounds:<5} served, p99 {p99:>8.2f}, "
                      f"a new client {'gets in' if gets_in else 'does not get in'}, log {grown:.2f} MB/min, "
                      f"anonymous PSS {first} -> {anonymous(process.pid)} KiB{alive}", flush=True)
        finally:
            process.kill()
            process.wait()
            cgroup.close()

    def end_gateway(self):
        """By SIGTERM: a gateway that is killed leaves its lock files in /var/lock."""
        with contextlib.suppress(AttributeError):
            self.gateway.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.gateway.wait(12)
            self.gateway.kill()
            self.gateway.wait()

    def close(self):
        self.end_gateway()
        for name in ("device", "packets"):
            with contextlib.suppress(AttributeError):
                getattr(self, name).unplug()
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.kill()
        for process in self.processes:
            with contextlib.suppress(Exception):
                process.wait(5)
        with contextlib.suppress(AttributeError):
            self.cgroup.close()
        with contextlib.suppress(AttributeError):
            self.place.close()
        if self.options.keep:
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


class Tee:
    """Prints a line, and adds it to the output file."""

    def __init__(self, *files):
        self.files = files

    def write(self, text):
        for file in self.files:
            file.write(text)

    def flush(self):
        for file in self.files:
            file.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=25, help="of attacks, all together; 600 for the long run")
    parser.add_argument("--rounds", type=int, default=0, help="how often each attack has its turn (one for each two minutes)")
    parser.add_argument("--attacks", help="only these: " + ", ".join(dict.fromkeys(name for _, name, _, _ in ATTACKS)))
    parser.add_argument("--peers", action="store_true", help="also what HAProxy and ser2net do")
    parser.add_argument("--times", type=float, help="how often the relay's p99 one may take: 5; in a short run, where one pause of the "
                        "machine is one in a hundred, 20")
    parser.add_argument("--output", help="a file for what is printed")
    parser.add_argument("--keep", action="store_true", help="keep configuration and log")
    options = parser.parse_args()
    if options.attacks:
        ATTACKS[:] = [attack for attack in ATTACKS if attack[1] in options.attacks.split(",")]
    options.times = options.times or (5 if options.seconds >= 300 else 20)
    options.rounds = options.rounds or max(1, int(options.seconds // 120))
    options.binary = os.path.abspath(os.environ.get("BAUDWAY") or sys.exit("BAUDWAY names the gateway to attack"))
    if os.geteuid() != 0:
        sys.exit("needs root, for network namespaces")
    if options.output:
        os.makedirs(os.path.dirname(os.path.abspath(options.output)), exist_ok=True)
        sys.stdout = Tee(sys.stdout, open(options.output, "w"))
        print(f"attacks in turn, {options.seconds:.0f} s, {time.strftime('%Y-%m-%d')}, {os.uname().release}, {os.cpu_count()} CPUs\n")
    run = Run(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        run.prepare()
        run.start()
        print(Run.HEAD)
        run.run()
        if options.peers:
            run.end_gateway()
            run.peers()
    finally:
        run.close()
    print("not as it must be:", *run.failures, sep="\n  ") if run.failures else print("all as it must be")
    sys.exit(1 if run.failures else 0)


if __name__ == "__main__":
    main()
