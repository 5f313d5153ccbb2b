"""Clients for the kinds of listeners: TLS and WebSocket over plain sockets, small and blocking, for tests that check
each byte."""
import base64
import itertools
import os
import random
import socket
import ssl
import struct

from kit import connect, receive


ADDRESSES = itertools.count(1)


def own_address() -> tuple[str, int]:
    """A free port, for listeners that share one: on the test's own loopback address, which no other test has."""
    number = os.getpid() % 50_000 * 256 + next(ADDRESSES) % 256
    return f"127.{16 + number // 65536}.{number // 256 % 256}.{number % 256}", 8443


def trusting(authority, pair=None, **settings) -> ssl.SSLContext:
    """A client's context that trusts `authority`, and presents `pair` if asked."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    for name, value in settings.items():
        setattr(context, name, value)
    if pair:
        context.load_cert_chain(str(pair.certificate), str(pair.key))
    return context


def connect_tls(address, context: ssl.SSLContext, name: str | None = "gw.test") -> ssl.SSLSocket:
    return context.wrap_socket(connect(address), server_hostname=name)


def end_of(client) -> str:
    """How an end looks to the client: "end", or the error it gets."""
    try:
        while client.recv(65536):
            pass
        return "end"
    except (ssl.SSLError, ConnectionError) as error:
        return str(error)


class Status(Exception):
    """The upgrade was answered with another status than 101."""

    def __init__(self, status: int, head: dict, text: str):
        super().__init__(f"{status} {head} {text}")
        self.status, self.head, self.text = status, head, text


def request(client, path: str, fields: dict | None = None, upgrade=True) -> tuple[int, dict, bytes]:
    """Sends a request; returns the head of its answer (status, fields) and the bytes after it."""
    head = {"Host": "gw.test"}
    if upgrade:
        key = base64.b64encode(random.randbytes(16)).decode()
        head |= {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"}
    head |= fields or {}
    text = f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in head.items()) + "\r\n"
    client.sendall(text.encode())
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65536)
        assert piece, f"ended after {data!r}"
        data += piece
    answer, rest = data.split(b"\r\n\r\n", 1)
    lines = answer.decode().split("\r\n")
    found = dict(line.split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), {k.lower(): v for k, v in found.items()}, rest


class WebSocket:
    """The client's side of a WebSocket over a socket: plain frames, nothing hidden."""

    def __init__(self, client, path: str, fields: dict | None = None):
        self.client = client
        status, self.head, rest = request(client, path, fields)
        if status != 101:
            length = int(self.head.get("content-length", 0))
            raise Status(status, self.head, (rest + receive(client, length - len(rest))).decode())
        self._data = rest

    def send(self, payload: bytes, opcode: int = 2, fin: bool = True):
        self.client.sendall(frame(payload, opcode, fin))

    def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            piece = self.client.recv(1 << 18)
            assert piece, f"ended with {self._data[:100]!r}"
            self._data += piece
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def frame(self) -> tuple[int, bytes]:
        """The next frame's opcode and payload."""
        first, length = self._take(2)
        assert not length & 0x80, "a server must not mask"
        if length == 126:
            (length,) = struct.unpack("!H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._take(8))
        return first & 15, self._take(length)

    def receive(self, count: int) -> bytes:
        """`count` bytes of payload; pings are answered meanwhile."""
        data = bytearray()
        while len(data) < count:
            opcode, payload = self.frame()
            if opcode == 9:
                self.send(payload, 10)
                continue
            assert opcode in (0, 1, 2), (opcode, payload)
            data += payload
        assert len(data) == count, f"{len(data) - count} too many"
        return bytes(data)

    def close_code(self) -> tuple[int, str]:
        """Reads up to the close frame; returns its code and reason."""
        while True:
            opcode, payload = self.frame()
            if opcode == 8:
                return (struct.unpack("!H", payload[:2])[0], payload[2:].decode()) if payload else (1005, "")

    def close(self):
        self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def frame(payload: bytes, opcode: int = 2, fin: bool = True) -> bytes:
    """A client's frame, masked."""
    head = bytes([(0x80 if fin else 0) | opcode])
    if len(payload) < 126:
        head += bytes([0x80 | len(payload)])
    elif len(payload) < 1 << 16:
        head += bytes([0x80 | 126]) + struct.pack("!H", len(payload))
    else:
        head += bytes([0x80 | 127]) + struct.pack("!Q", len(payload))
    mask = random.randbytes(4)
    wide = int.from_bytes((mask * (len(payload) // 4 + 1))[: len(payload)], "big")
    masked = (int.from_bytes(payload, "big") ^ wide).to_bytes(len(payload), "big")
    return head + mask + masked


def finish(client: socket.socket):
    """Closes with a reset, so that the gateway does not wait for more."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
