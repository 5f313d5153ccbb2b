"""Common programs for serial ports, each under a terminal in which a test types and reads."""
import contextlib
import dataclasses
import fcntl
import os
import pathlib
import select
import shutil
import struct
import subprocess
import sys
import termios

from kit import GUARD, Deadline


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    words: tuple[str, ...]  # the port's path is appended
    ready: bytes  # what it shows when it has opened the port
    leave: tuple[bytes, ...]  # keys to exit; each is typed after the text in `asks` for the one before
    asks: tuple[bytes, ...] = ()

    def __str__(self):
        return self.name


# As users usually start them: with a rate, which they set. -o: without minicom's modem initialisation.
MINICOM = Program("minicom", ("minicom", "-o", "-b", "115200", "-D"), b"CTRL-A Z for help", (b"\x01x", b"\r"), (b"Leave",))
PICOCOM = Program("picocom", ("picocom", "-b", "115200"), b"Terminal ready", (b"\x01\x18",))
TIO = Program("tio", ("tio", "-b", "115200"), b"Connected", (b"\x14q",))
MINITERM = Program(
    "pyserial", ("/usr/bin/python3", "-m", "serial.tools.miniterm", "--raw", "--eol", "CR"), b"Miniterm on", (b"\x1d",))
PROGRAMS = (MINICOM, PICOCOM, TIO, MINITERM)


class Terminal:
    """A program that has `port` open, in a terminal of 24 by 80. Ends with the block, at the latest."""

    def __init__(self, program: Program, port: str, home: pathlib.Path):
        self.program = program
        self.shown = bytearray()
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        # Without the settings of the user that runs the tests.
        environment = {**os.environ, "HOME": str(home), "TERM": "vt100", "LC_ALL": "C"}
        self.process = subprocess.Popen(
            [*program.words, port], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)

    def start(self):
        self.expect(self.program.ready)
        return self

    def type(self, keys: bytes):
        os.write(self.master, keys)

    def expect(self, mark: bytes, seconds: float = GUARD):
        """Waits until it shows `mark` in one piece, and drops everything up to there."""
        deadline = Deadline(seconds)
        while mark not in self.shown:
            ready, _, _ = select.select([self.master], [], [], deadline.left)
            assert ready, f"{self.program} does not show {mark!r} within {seconds} s, but {bytes(self.shown[-400:])!r}"
            piece = b""
            with contextlib.suppress(OSError):  # EIO: it has ended
                piece = os.read(self.master, 1 << 16)
            assert piece, f"{self.program} ended before {mark!r}: {bytes(self.shown[-400:])!r}"
            self.shown += piece
        del self.shown[: self.shown.index(mark) + len(mark)]

    def watch(self, seconds: float) -> bytes:
        """What it shows during `seconds`."""
        deadline = Deadline(seconds)
        while select.select([self.master], [], [], deadline.left)[0]:
            try:
                self.shown += os.read(self.master, 1 << 16)
            except OSError:
                break
        shown, self.shown = bytes(self.shown), bytearray()
        return shown

    def leave(self) -> int:
        """Types its own exit keys; returns its exit code."""
        for number, keys in enumerate(self.program.leave):
            self.type(keys)
            if number < len(self.program.asks):
                self.expect(self.program.asks[number])
        return self.wait()

    def wait(self, seconds: float = GUARD) -> int:
        # It may wait until all of its last output has been read.
        deadline = Deadline(seconds)
        while self.process.poll() is None:
            assert not deadline.passed, f"{self.program} goes on: {bytes(self.shown[-400:])!r}"
            self.watch(0.02)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
