#!/usr/bin/env python3
"""One attack on one port, for some seconds: attackers.py NAME HOST PORT SECONDS [FIRST-ADDRESS COUNT]. Runs in the
attackers' network namespace.

Prints how many connections it made, and how many answers show that the gateway did what it must refuse. Otherwise an
attacker ignores the other side's answers, and never fails.
"""

import base64
import contextlib
import os
import random
import resource
import select
import socket
import struct
import sys
import time

UPGRADE = (
    "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{more}"
)
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"

# A user of the admin listener, with the role `admin` on these two routes. Its token stands for what a browser adds to the
# requests of any page, or a proxy to those that it forwards.
TOKEN = "4f2d8c0a9b7e6d5c"
QUIET_ROUTE, FLOOD_ROUTE = "terminal", "flood"
LOG_IN = f"Authorization: Bearer {TOKEN}\r\n"
KICK = '{"all":true}'
JSON = f"Content-Type: application/json\r\nContent-Length: {len(KICK)}\r\n"
# Shows that a request with the token was carried out: the answers to `kick`, and to a question for the user.
DONE = (b'"kicked"', b'"user":')


def post(host, more=""):
    """Ends all sessions of the route whose ordinary client must stay."""
    return (f"POST /api/v1/routes/{QUIET_ROUTE}/kick HTTP/1.1\r\nHost: {host}\r\n{LOG_IN}{JSON}{more}\r\n" + KICK).encode()


def terminal(host, route, more=""):
    """A request for a terminal."""
    head = UPGRADE.format(host=host, more=f"Sec-WebSocket-Protocol: baudway.v1\r\n{LOG_IN}{more}\r\n")
    return head.replace("GET / ", f"GET /api/v1/routes/{route}/terminal ").encode()


class Attacker:
    """Connects from many addresses, a few thousand times a second at most: enough to hurt, without the machine as the
    limit."""

    def __init__(self, host, port, seconds, first="10.77.1.1", count=40):
        self.target = (host, port)
        self.end = time.monotonic() + seconds
        start = struct.unpack("!I", socket.inet_aton(first))[0]
        self.addresses = [socket.inet_ntoa(struct.pack("!I", start + n)) for n in range(count)]
        self.made = 0
        self.accepted = 0
        self.random = random.Random(1)

    @property
    def is_over(self):
        return time.monotonic() > self.end

    def connect(self, *, receives=None, number=None):
        """A connected socket, or None."""
        client = socket.socket()
        try:
            if receives:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
            client.settimeout(2)
            client.bind((self.addresses[(self.made if number is None else number) % len(self.addresses)], 0))
            client.connect(self.target)
            self.made += 1
            if self.made % 20 == 0:
                time.sleep(0.005)
            return client
        except OSError:
            client.close()
            time.sleep(0.002)
            return None

    def send(self, client, data):
        with contextlib.suppress(OSError):
            client.sendall(data)

    def reset(self, client):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    def hold(self, first, most):
        """Keeps `most` connections open; each has sent `first` and no more. A new one replaces the oldest."""
        held = []
        while not self.is_over:
            if client := self.connect():
                self.send(client, first)
                held.append(client)
            if len(held) > most:
                held.pop(0).close()

    # The attacks.

    def half_http(self):
        self.hold(b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"a" * 8000, 2000)

    def half_tls(self):
        self.hold(HALF_HELLO, 2000)

    def refused(self):
        """Connects and closes as fast as it can."""
        while not self.is_over:
            if client := self.connect():
                client.close()

    def churn(self):
        """2,000 connections, as fast as it can: 10,000 in the five turns of ten minutes."""
        while not self.is_over and self.made < 2000:
            if client := self.connect():
                self.send(client, b"x" * 10)
                with contextlib.suppress(OSError):
                    client.recv(100)
                client.close()

    def post(self):
        body = b"reboot\nreboot\n"
        while not self.is_over:
            if client := self.connect():
                self.send(client, b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                with contextlib.suppress(OSError):
                    client.recv(1000)
                client.close()

    def passwords(self):
        while not self.is_over:
            if client := self.connect():
                word = base64.b64encode(f"{self.random.choice(['ada', 'eve'])}:{self.random.random()}".encode()).decode()
                self.send(client, UPGRADE.format(host="here", more=f"Authorization: Basic {word}\r\n\r\n").encode())
                with contextlib.suppress(OSError):
                    client.recv(1000)
                client.close()

    def rebinding(self):
        while not self.is_over:
            if client := self.connect():
                host = f"evil.example:{self.target[1]}"
                self.send(client, UPGRADE.format(host=host, more=f"Origin: http://{host}\r\n\r\n").encode())
                with contextlib.suppress(OSError):
                    client.recv(1000)
                client.close()

    def endless(self):
        """Headers without end, also after the answer."""
        held = []
        while not self.is_over:
            if len(held) < 60 and (client := self.connect()):
                self.send(client, b"GET / HTTP/1.1\r\nHost: here\r\n")
                client.setblocking(False)
                held.append(client)
            for client in list(held):
                try:
                    client.send(b"X: " + b"a" * 4000 + b"\r\n")
                except BlockingIOError:
                    pass
                except OSError:
                    held.remove(client)
                    client.close()
            time.sleep(0.005)

    def slow(self):
        """Eight clients that read little, at odd times, and reset."""
        held = []
        while not self.is_over:
            while len(held) < 8 and (client := self.connect(receives=2048)):
                client.setblocking(False)
                held.append(client)
            for client in list(held):
                with contextlib.suppress(OSError):
                    if self.random.random() < 0.3:
                        client.recv(self.random.randint(1, 3000))
                if self.random.random() < 0.02:
                    held.remove(client)
                    self.reset(client)
            time.sleep(0.002)

    def idle(self):
        """As many idle clients as are accepted, from one address."""
        held = []
        while not self.is_over:
            if len(held) < 1000 and (client := self.connect(number=0)):
                held.append(client)
            for client in select.select(held[-100:], [], [], 0.002)[0]:
                data = b""
                with contextlib.suppress(OSError):
                    data = client.recv(4096)
                if not data or data.startswith(b"baudway: "):  # refused; others receive echoed bytes of other clients
                    held.remove(client)
                    client.close()

    def programs(self):
        """A program for each connection, from one address and from many in turn."""
        held = []
        while not self.is_over:
            if client := self.connect(number=0 if self.made % 2 else None):
                self.send(client, b"x")
                held.append(client)
            if len(held) > 1000:
                held.pop(0).close()
            time.sleep(0.002)

    def unheard(self):
        """Connects and leaves in the middle of packets."""
        while not self.is_over:
            if client := self.connect():
                self.send(client, self.random.choice([b"x", b"lo", b"hello\n"]))
                time.sleep(self.random.choice([0, 0.001, 0.005]))
                self.reset(client) if self.random.random() < 0.5 else client.close()

    def noise(self):
        while not self.is_over:
            if client := self.connect():
                self.send(client, os.urandom(self.random.randint(1, 2000)))
                client.close()

    # The admin listener.

    def half_open(self):
        """Up to 10,000 connections that send nothing."""
        self.hold(b"", 10_000)

    def slowloris(self):
        """Requests that come a byte at a time, and are never complete."""
        held = []
        while not self.is_over:
            if len(held) < 1000 and (client := self.connect()):
                self.send(client, b"GET /readyz HTTP/1.1\r\nHost: here\r\nX: ")
                client.setblocking(False)
                held.append(client)
            for client in held[:: max(1, len(held) // 20)]:
                try:
                    client.send(b"a")
                except BlockingIOError:
                    pass
                except OSError:
                    held.remove(client)
                    client.close()

    def try_all(self, requests, is_done=lambda answer: any(mark in answer for mark in DONE)):
        """Sends each of `requests` on a connection of its own, in turn. Counts those for whose answer `is_done` is true."""
        while not self.is_over:
            if client := self.connect():
                self.send(client, requests[self.made % len(requests)])
                answer = b""
                with contextlib.suppress(OSError):
                    while len(answer) < 1 << 16 and (piece := client.recv(1 << 14)):
                        answer += piece
                self.accepted += is_done(answer)
                client.close()

    def smuggling(self):
        """Requests whose end is doubtful, each with a second one behind it: with the token, which only that one has."""
        host = self.target[0]
        inner = f"GET /api/v1/user HTTP/1.1\r\nHost: {host}\r\n{LOG_IN}\r\n"
        heads = [
            "", f"Content-Length: {len(inner)}\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\n",
            "Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n", "Content-Length: 0\r\nContent-Length: 5\r\n",
            "Content-Length: +0\r\n", "Content-Length: 0x0\r\n", "Content-Length: 0, 0\r\n", "Content-Length : 0\r\n", "Content-Length: -1\r\n",
            "Content-Length: 18446744073709551616\r\n", "X: y\r\n Content-Length: 0\r\n", "Transfer-Encoding:\x0bchunked\r\n", "X: \0\r\n",
        ]
        bodies = ["", "0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"]
        lines = ["GET /healthz", "POST /api/v1/reload", f"POST /api/v1/routes/{QUIET_ROUTE}/kick"]
        requests = [
            f"{line} HTTP/1.1\r\nHost: {host}\r\nConnection: keep-alive\r\n{head}\r\n{body}{inner}".encode()
            for line in lines for head in heads for body in bodies]
        requests += [f"GET /healthz HTTP/1.1\nHost: {host}\n\n{inner}".encode(), f"GET /healthz HTTP/1.0\r\n\r\n{inner}".encode()]
        self.try_all(requests)

    def rebound(self):
        """As a page whose own name leads here (DNS rebinding): it may look only with credentials, and change nothing."""
        evil = f"evil.example:{self.target[1]}"
        own = f"Origin: http://{evil}\r\n"
        look = [f"GET {path} HTTP/1.1\r\nHost: {evil}\r\n{own}\r\n".encode() for path in ("/", "/api/v1/user", "/api/v1/events", "/metrics")]
        self.try_all(
            [*look, post(evil, own), post(evil, own + "Sec-Fetch-Site: same-origin\r\n"), terminal(evil, QUIET_ROUTE, own)],
            lambda answer: answer[9:10] in (b"1", b"2"))

    def cross_site(self):
        """As a page of another site, to whose requests the browser adds what its user knows."""
        host = f"{self.target[0]}:{self.target[1]}"
        fields = [
            "Origin: https://evil.example\r\n", "Origin: null\r\n", f"Origin: http://{host}\r\nOrigin: http://evil.example\r\n", f"Origin: http://{host}.evil.example\r\n",
            f"Origin: http://{self.target[0]}:1\r\n", "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n",
            f"Origin: http://{host}\r\nSec-Fetch-Site: cross-site\r\n"]
        form = post(host).replace(b"application/json", b"text/plain")
        self.try_all(
            [request for more in fields for request in (post(host, more), terminal(host, QUIET_ROUTE, more))] + [form],
            lambda answer: answer[9:10] in (b"1", b"2"))

    def huge(self):
        """Long paths, many fields, contents that are too long, or never end, or do not come."""
        host = self.target[0]
        head = f"POST /api/v1/routes/{QUIET_ROUTE}/kick HTTP/1.1\r\nHost: {host}\r\n{LOG_IN}Content-Type: application/json\r\n"
        requests = [
            b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
            b"A" * (1 << 20), (head + "Content-Length: 10000000000\r\n\r\n").encode() + b"[" * (1 << 20),
            (head + "Content-Length: 65536\r\n\r\n").encode() + b"[" * 65_536,
            (head + "Content-Length: 65536\r\n\r\n").encode() + b'{"all":' + b"1" * 65_529,
            (head + "Content-Length: 65536\r\nExpect: 100-continue\r\n\r\n").encode(),
        ]
        self.try_all(requests, lambda answer: answer[9:10] == b"2")

    def traversal(self):
        """Paths that would lead to files of the machine."""
        ups = ["..", "%2e%2e", "%2E%2E", ".%2e", "..%2f", "%252e%252e", "..;", "..\\", "%c0%ae%c0%ae", "..%00", "...."]
        files = ["etc/passwd", "proc/self/environ", "config.yaml"]
        starts = ["/", "/page/", "//", "/page//", "/api/v1/routes/", f"/api/v1/routes/{QUIET_ROUTE}/", "/api/v1/", "http://x/page/"]
        requests = [
            f"GET {start}{(up + '/') * depth}{file} HTTP/1.1\r\nHost: {self.target[0]}\r\n{LOG_IN}\r\n".encode()
            for start in starts for up in ups for file in files for depth in (1, 8)]
        self.random.shuffle(requests)
        self.try_all(requests, lambda answer: answer[9:10] == b"2" or b"root:" in answer or b"PATH=" in answer)

    def unread(self):
        """Terminals that never read what the device sends; some end by a reset."""
        held = []
        while not self.is_over:
            if len(held) < 12 and (client := self.connect(receives=2048)):
                self.send(client, terminal(self.target[0], FLOOD_ROUTE))
                held.append(client)
            if held and self.random.random() < 0.02:
                self.reset(held.pop(self.random.randrange(len(held))))
            time.sleep(0.005)

    def unread_answers(self):
        """Metrics, lists and event streams that are asked for and not read."""
        held, paths = [], ("/metrics", "/api/v1/events", "/api/v1/routes", "/page/main.js")
        while not self.is_over:
            if client := self.connect(receives=2048):
                self.send(client, f"GET {paths[self.made % len(paths)]} HTTP/1.1\r\nHost: {self.target[0]}\r\n{LOG_IN}\r\n".encode())
                held.append(client)
            if len(held) > 500:
                held.pop(0).close()


def raise_limit():
    """As many descriptors as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    name, host, port, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    rest = [sys.argv[5], int(sys.argv[6])] if len(sys.argv) > 6 else []
    os.nice(5)
    raise_limit()
    attacker = Attacker(host, port, seconds, *rest)
    getattr(attacker, name)()
    print(attacker.made, attacker.accepted)
    os._exit(0)  # at once: thousands of sockets close with the process
