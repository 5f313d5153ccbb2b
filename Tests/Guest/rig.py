"""What the tests in the emulated machine share: the gateway running there, the far ends of its ports, the USB bus's record."""
import json
import re
import socket
import sys
import threading

import machine
from kit import Deadline, Gateway, connect, until

PROGRAMS = machine.STATE / "bin"
UART, USB = "/dev/ttyS1", "/dev/ttyUSB0"


class GuestGateway(Gateway):
    """The gateway in the machine, with its log, its exit code and its clients here. Its listeners are to be on 0.0.0.0."""

    def __init__(self, guest: machine.Machine, config: dict, **more):
        self.guest = guest
        super().__init__(config, prefix=[sys.executable, machine.__file__, "-m", str(guest.folder), "--warm", "run"], **more)

    def line(self, device: str) -> dict:
        """The settings of a port that it has open, from the driver."""
        pid = self.guest.ask("busybox pidof baudway").split()[0]
        return json.loads(self.guest.ask(f"{PROGRAMS}/port line {pid} {device}"))

    def port(self, route: str) -> int:
        """Where the route listens, inside."""
        return super().address(route)[1]

    def address(self, route: str, index: int = 0) -> tuple[str, int]:
        return self.guest.door(super().address(route, index)[1])

    def connect(self, route: str, index: int = 0, receive_buffer: int | None = None) -> socket.socket:
        """A client of the host. Its connect succeeds before the machine knows of it, so the log is asked."""
        count = len(self.events("session opened", route=route)) + 1
        client = connect(self.address(route, index), receive_buffer)
        self.event("session opened", route=route, count=count)
        return client


def route(endpoint: str, **more) -> dict:
    return {"listen": "tcp://0.0.0.0:0", "endpoint": endpoint, **more}


class FarEnd:
    """What hangs at a port: keeps what it hears, or sends it back. It always listens: an adapter whose bytes nobody
    takes holds up the whole machine."""

    def __init__(self, guest: machine.Machine, name: str):
        self.data, self.echo, self._news = bytearray(), False, threading.Condition()
        self._path, self._socket = str(guest.folder / name), None

    def connect(self):
        if self._socket:
            return
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(self._path)
        self._thread = threading.Thread(target=self._listen, args=(self._socket,), daemon=True)
        self._thread.start()

    def _listen(self, connection: socket.socket):
        try:
            while piece := connection.recv(1 << 16):
                with self._news:
                    self.data += piece
                    self._news.notify_all()
                if self.echo:
                    connection.sendall(piece)
        except OSError:
            pass

    def write(self, data: bytes):
        self._socket.sendall(data)

    def read(self, count: int, seconds: float = 30) -> bytes:
        """The next `count` bytes."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.data) >= count, seconds), \
                f"{len(self.data)} of {count} bytes within {seconds} s"
            data = bytes(self.data[:count])
            del self.data[:count]
            return data

    def close(self):
        if self._socket:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join(5)
            self._socket.close()
            self._socket = None

    def __enter__(self):
        self.connect()
        return self

    def __exit__(self, *_):
        self.close()


class Adapter(FarEnd):
    """The far end of a USB adapter: it is plugged in while somebody is there."""

    def __init__(self, guest: machine.Machine, name: str = "usb"):
        super().__init__(guest, name)
        self.guest, self.serial = guest, machine.ADAPTERS[name]

    def plug(self):
        """Until its node is there."""
        self.connect()
        until(lambda: self.nodes(), 20, "the adapter's node")

    def unplug(self):
        self.close()
        until(lambda: not self.nodes(), 20, "the node gone")

    def nodes(self) -> list[str]:
        """The names in /dev that lead to it: ["ttyUSB0"]."""
        return self.guest.ask(
            "cd /sys/class/tty; for n in ttyUSB*; do [ -e /dev/$n ] || continue\n"
            f"[ $(cat $n/device/../../serial) = {self.serial} ] && echo $n; done; true").split()


class BusRecord:
    """What the host controller sends to USB devices, as usbmon writes it down: control requests of an FTDI adapter."""

    # FT232: request type 0x40 (vendor, to the device); 1 sets modem lines, 3 the rate's divisor, 9 the latency timer.
    REQUEST = re.compile(r" (\d+) S Co:\d+:\d+:0 s 40 (0[0-9a-f]) ([0-9a-f]{4}) ", re.M)
    MARK = re.compile(r" S Ci:\d+:\d+:0 s 80 00 0000 ")

    def __init__(self, guest: machine.Machine):
        self.guest = guest
        # busybox's cat: it takes its files from the machine itself and is there at once.
        self._call = guest.call("echo listening; exec /run/guest/busybox cat /sys/kernel/debug/usb/usbmon/0u")
        self._call.until(lambda text: "listening" in text)
        self._from = 0
        self._await_mark()

    def _await_mark(self):
        """A request of our own marks the place up to which the record is complete."""
        deadline = Deadline(20)
        while True:
            self.guest.ask(
                "read b </sys/bus/usb/devices/1-1/busnum; read d </sys/bus/usb/devices/1-1/devnum\n"
                f"exec {PROGRAMS}/port mark $(printf /dev/bus/usb/%03d/%03d $b $d)")
            try:
                self._call.until(lambda text: self.MARK.search(text[self._from:]), 1)
                return
            except AssertionError:
                assert not deadline.passed, "no mark in the record of the bus"

    def requests(self) -> list[tuple[float, int, int]]:
        """(seconds, request, value) of all that was sent since this was asked last."""
        self._await_mark()
        text = self._call.output.decode()
        part, self._from = text[self._from:], len(text)
        return [(int(us) / 1e6, int(request, 16), int(value, 16)) for us, request, value in self.REQUEST.findall(part)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._call.close()


__all__ = [
    "Adapter", "BusRecord", "FarEnd", "GuestGateway", "PROGRAMS", "UART", "USB", "route", "until",
]
