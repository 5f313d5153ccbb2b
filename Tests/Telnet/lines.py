"""What is at the other end of a simulated serial cable."""
import contextlib
import mmap
import os
import pathlib
import shutil
import socket
import struct
import tempfile
import threading
import time

import servers
from kit import Pty, compiled

DTR, RTS = 0x002, 0x004
CTS, CAR, RNG, DSR = 0x020, 0x040, 0x080, 0x100


class Loop(Pty):
    """A pty whose far end sends everything back: the wire from TX to RX. A pty has no other wires."""

    environment = {}

    def __init__(self):
        super().__init__()
        threading.Thread(target=self._echo, daemon=True).start()

    def _echo(self):
        with contextlib.suppress(OSError):  # closed
            while data := os.read(self.master, 4096):
                self.write(data)


def modem_library() -> str:
    return compiled(str(servers.HERE / "programs" / "modem.c"), "-shared", "-fPIC")


class ModemPort(Pty):
    """A pty that has modem lines for programs started with `environment` (programs/modem.c). `changed(seconds, dtr, rts, on_break)`
    is called for each change that the program makes, with its time of CLOCK_MONOTONIC. DTR and RTS are on at first, as Linux sets
    them when it opens a port."""

    STATE = struct.Struct("=13I")

    def __init__(self, changed=lambda *_: None, wired: bool = False):
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bwl-"))
        file = self.folder / "state"
        file.write_bytes(self.STATE.pack(DTR | RTS, 0, wired, 0, 0x30, *[0] * 8))  # 0x30: CS8
        with file.open("r+b") as opened:
            self.state = mmap.mmap(opened.fileno(), self.STATE.size)
        self.changes = []
        self._changed = changed
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.folder / "changes"))
        threading.Thread(target=self._follow, daemon=True).start()

    def follow(self, changed):
        """Calls `changed` with the state of now, and from then on for each change."""
        self._changed = changed
        out = self.word(0)
        changed(time.monotonic(), bool(out & DTR), bool(out & RTS), bool(self.word(3)))

    @property
    def environment(self) -> dict:
        """For the program that opens the port."""
        return {"LD_PRELOAD": modem_library(), "MODEM_PORT": f"{self.path}:{self.folder}/state:{self.folder}/changes"}

    def _follow(self):
        while message := self._socket.recv(64):
            if len(message) == 16:
                nanoseconds, out, on_break = struct.unpack("=QII", message)
                change = nanoseconds / 1e9, bool(out & DTR), bool(out & RTS), bool(on_break)
                self.changes.append(change)
                self._changed(*change)

    def word(self, number: int) -> int:
        return struct.unpack_from("=I", self.state, 4 * number)[0]

    def set_in(self, lines: int):
        """The lines that the device drives: CTS, CAR, RNG, DSR."""
        struct.pack_into("=I", self.state, 4, lines)

    def close(self):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", str(self.folder / "changes"))
        self._socket.close()
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


class WiredLoop(ModemPort):
    """The loopback adapter of pyserial's tests: TX to RX, RTS to CTS, DTR to DSR."""

    def __init__(self):
        super().__init__(wired=True)
        threading.Thread(target=Loop._echo, args=(self,), daemon=True).start()


class NullModem:
    """Two ports with a null-modem cable between them: TX to RX, RTS to CTS, DTR to DSR and DCD, both ways."""

    def __init__(self):
        self.left, self.right = ends = ModemPort(), ModemPort()
        for end, other in (ends, ends[::-1]):
            end.follow(lambda _, dtr, rts, __, other=other: other.set_in((CTS if rts else 0) | (DSR | CAR if dtr else 0)))
            threading.Thread(target=self._carry, args=(end, other), daemon=True).start()

    def _carry(self, source: ModemPort, sink: ModemPort):
        with contextlib.suppress(OSError):  # closed
            while data := os.read(source.master, 4096):
                sink.write(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.left.close()
        self.right.close()


__all__ = ["CAR", "CTS", "DSR", "DTR", "Loop", "ModemPort", "NullModem", "RNG", "RTS", "WiredLoop"]
