"""Programs of others as clients of a server: what is written to them, and what they print."""
import contextlib
import hashlib
import os
import pathlib
import random
import re
import select
import subprocess
import threading

import servers
from kit import Deadline, until

# Every value after every other, so also each command of telnet after IAC, CR before NUL and before LF, XON, XOFF and ^].
PAIRS = bytes(value for first in range(256) for second in range(256) for value in (first, second))
# Lines of text that a client in character mode carries, too.
TEXT = b"".join(b"%06d The quick brown fox jumps over the lazy dog.\r\n" % number for number in range(1000))


def shuffled(seed: int, count: int = 1 << 16) -> bytes:
    """All values equally often, in an order of their own."""
    data = bytearray(bytes(range(256)) * (count // 256))
    random.Random(seed).shuffle(data)
    return bytes(data)


def same(got: bytes, wanted: bytes):
    """Compares checksums, and reports the first difference."""
    if hashlib.sha256(got).digest() == hashlib.sha256(wanted).digest():
        return
    at = next((number for number, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]), min(len(got), len(wanted)))
    raise AssertionError(f"{len(got)} of {len(wanted)} bytes; at {at}: {got[at - 8 if at > 8 else 0:at + 16]!r}, not {wanted[at:at + 16]!r}")


class Client:
    """A program with pipes for its input and output."""

    def __init__(self, *words, environment=None):
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "HOME": "/nonexistent", "LC_ALL": "C", **(environment or {})})
        self.errors = bytearray()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read_errors(self):
        with contextlib.suppress(OSError, ValueError):
            while piece := os.read(self.process.stderr.fileno(), 4096):
                self.errors += piece

    def write(self, data: bytes):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, count: int, seconds: float = 30) -> bytes:
        data, deadline = bytearray(), Deadline(seconds)
        while len(data) < count:
            ready, _, _ = select.select([self.process.stdout], [], [], deadline.left)
            assert ready, f"{len(data)} of {count} bytes within {seconds} s; {bytes(data[-200:])!r}; {bytes(self.errors)!r}"
            piece = os.read(self.process.stdout.fileno(), min(count - len(data), 1 << 16))
            assert piece, f"ended after {len(data)} of {count} bytes; {bytes(data[-200:])!r}; {bytes(self.errors)!r}"
            data += piece
        return bytes(data)

    def read_until(self, mark: bytes, seconds: float = 20) -> bytes:
        data = b""
        deadline = Deadline(seconds)
        while mark not in data:
            data += self.read(1, deadline.left)
        return data

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(5)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.kill()
        if kind:
            print(self.process.args[0], "wrote to its standard error:", bytes(self.errors[-2000:]))
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()


def gensio(address: tuple[str, int], words: str = "telnet(rfc2217),tcp") -> str:
    return f"{words},{address[0]},{address[1]}"


def gensiot(address: tuple[str, int], words: str = "telnet(rfc2217),tcp") -> Client:
    return Client("gensiot", "-i", "stdio(self)", gensio(address, words))


@contextlib.contextmanager
def gensiot_pty(address: tuple[str, int], folder: str):
    """A pty that gensiot connects to the server; gives its path."""
    link = pathlib.Path(folder, "gensio-pty")
    with servers.Process("gensiot", "-i", f"pty(raw,link={link})", gensio(address)) as process:
        until(lambda: link.is_symlink() or process.process.poll() is not None, 10, "gensiot's pty")
        assert process.process.poll() is None, process.text()
        yield str(link)


def established(port: int) -> int:
    """How many connections to this port of the loopback there are."""
    rows = [row.split() for row in open("/proc/net/tcp").readlines()[1:]]
    return sum(row[3] == "01" and int(row[1].rpartition(":")[2], 16) == port for row in rows)


def connected(server, count: int = 1):
    until(lambda: established(server.port) >= count, 10, f"{count} clients connected")


def version(*words) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=10)
    return re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)[0]
