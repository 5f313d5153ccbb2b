#!/usr/bin/env python3
"""One attack on one port, for some seconds: attackers.py NAME HOST PORT SECONDS [FIRST-ADDRESS COUNT]. Runs in the
attackers' network namespace.

Prints how many connections it made. An attacker ignores the other side's answers and never fails.
"""

import base64
import contextlib
import os
import random
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


class Attacker:
    """Connects from many addresses, a few thousand times a second at most: enough to hurt, without the machine as the
    limit."""

    def __init__(self, host, port, seconds, first="10.77.1.1", count=40):
        self.target = (host, port)
        self.end = time.monotonic() + seconds
        start = struct.unpack("!I", socket.inet_aton(first))[0]
        self.addresses = [socket.inet_ntoa(struct.pack("!I", start + n)) for n in range(count)]
        self.made = 0
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


if __name__ == "__main__":
    name, host, port, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    rest = [sys.argv[5], int(sys.argv[6])] if len(sys.argv) > 6 else []
    os.nice(5)
    attacker = Attacker(host, port, seconds, *rest)
    getattr(attacker, name)()
    print(attacker.made)
    os._exit(0)  # at once: thousands of sockets close with the process
