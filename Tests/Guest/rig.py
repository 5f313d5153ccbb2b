"""What the tests in the emulated machine share: the gateway running there, the far ends of its ports, the USB bus's
record."""
import json
import os
import re
import socket
import sys
import threading

import machine
from kit import ROOT, Deadline, Gateway, connect, until

PROGRAMS = machine.STATE / "bin"
UART, USB = "/dev/ttyS1", "/dev/ttyUSB0"


class GuestGateway(Gateway):
    """The gateway in the machine, with its log, its exit code and its clients on the host. Its listeners must be on
    0.0.0.0."""

    def __init__(self, guest: machine.Machine, config: dict, **more):
        self.guest = guest
        super().__init__(config, prefix=[sys.executable, machine.__file__, "-m", str(guest.folder), "--warm", "run"], **more)

    def line(self, device: str) -> dict:
        """The driver's settings of a port that the gateway has open."""
        return json.loads(self.guest.ask(
            f"pids=$(busybox pidof baudway) && exec {PROGRAMS}/port line ${{pids%% *}} {device}"))

    def port(self, route: str) -> int:
        """The route's port inside the machine."""
        return super().address(route)[1]

    def address(self, route: str, index: int = 0) -> tuple[str, int]:
        return self.guest.forwarded_address(super().address(route, index)[1])

    def connect(self, route: str, index: int = 0, receive_buffer: int | None = None) -> socket.socket:
        """A client on the host. Its connect succeeds before the machine knows of it, so this waits for the log."""
        count = len(self.events("session opened", route=route)) + 1
        client = connect(self.address(route, index), receive_buffer)
        self.event("session opened", route=route, count=count)
        return client


def _program(name: str, variable: str) -> str:
    """$VARIABLE, otherwise the newest release of it in this tree."""
    if path := os.environ.get(variable):
        return path
    built = [path for path in ROOT.glob(f".build/*/release/{name}") if path.is_file()]
    assert built, f"no {name} built: Deploy/build {name}, or name one in {variable}"
    return str(max(built, key=lambda path: path.stat().st_mtime))


def library_probe() -> str:
    """The program of a library user."""
    return _program("library-probe", "LIBRARY_PROBE")


def foundation_streams() -> str:
    """The examples with Foundation's streams."""
    return _program("foundation-streams", "FOUNDATION_STREAMS")


def route(endpoint: str, **more) -> dict:
    return {"listen": "tcp://0.0.0.0:0", "endpoint": endpoint, **more}


class FarEnd:
    """The far end of a port: keeps the received bytes, or sends them back. It always reads: an adapter with unread
    bytes blocks the whole machine."""

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
    """The far end of a USB adapter: the adapter is plugged in while the far end is connected."""

    def __init__(self, guest: machine.Machine, name: str = "usb"):
        super().__init__(guest, name)
        self.guest, self.serial = guest, machine.ADAPTERS[name]

    def plug(self):
        """Plugs it in and waits for its node."""
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


class Modem:
    """A CDC ACM modem as a gadget of the same machine (programs/acm.c); its port is /dev/ttyACM0 while it is plugged
    in. Within a module of tests, no other gadget may use the machine's only controller."""

    PORT = "/dev/ttyACM0"
    GADGET = "/sys/kernel/config/usb_gadget/modem"

    def __init__(self, guest: machine.Machine):
        self.guest, self._program = guest, None

    def plug(self):
        self._program = self.guest.call(f"exec {PROGRAMS}/acm /run/modem <>/run/modem.in")
        self._program.until(lambda text: "ready" in text)
        self.guest.ask(f"echo dummy_udc.0 >{self.GADGET}/UDC")
        until(lambda: self.guest.run(f"test -c {self.PORT}").returncode == 0, 20, "the modem's node")

    def unplug(self):
        self._program.close()
        until(lambda: self.guest.run(f"test -e {self.PORT}").returncode != 0, 20, "the modem's node gone")

    def tell(self, command: str):
        """A command for the program: "state 3"."""
        self.guest.ask(f"echo {command} >/run/modem.in")

    def events(self, kind: str) -> list[str]:
        """What the program has printed of that kind since it was plugged in: "lines" → ["1 1", "0 1"]."""
        return re.findall(rf"^\S+ {kind} (.*)$", self._program.output.decode(), re.M)

    def event(self, kind: str, value: str):
        """Waits until the latest event of that kind is this one."""
        until(lambda: self.events(kind)[-1:] == [value], 10, f"{kind} {value}")

    def __enter__(self):
        self.guest.ask(
            "for module in dummy_hcd cdc_acm usb_f_fs; do modprobe $module || exit; done\n"
            "mount -t configfs configfs /sys/kernel/config || exit\n"
            f"mkdir {self.GADGET} && cd {self.GADGET} || exit\n"
            "echo 0x0870 >idVendor; echo 0x0001 >idProduct\n"  # the IDs that acm.c needs
            "mkdir configs/c.1 functions/ffs.modem /run/modem && ln -s functions/ffs.modem configs/c.1 || exit\n"
            "mkfifo /run/modem.in && mount -t functionfs modem /run/modem")
        self.plug()
        return self

    def __exit__(self, *_):
        if self._program:
            self.unplug()
        self.guest.ask(
            "umount /run/modem; rmdir /run/modem; rm /run/modem.in\n"
            f"cd {self.GADGET} && rm configs/c.1/ffs.modem; rmdir configs/c.1 functions/ffs.modem\n"
            f"cd /; rmdir {self.GADGET}\n"
            "umount /sys/kernel/config; rmmod usb_f_fs dummy_hcd cdc_acm")


def mark_bus(guest: machine.Machine):
    """Sends the first adapter a request that no driver sends, as a mark in usbmon's records."""
    guest.ask(
        "read b </sys/bus/usb/devices/1-1/busnum; read d </sys/bus/usb/devices/1-1/devnum\n"
        f"exec {PROGRAMS}/port mark $(printf /dev/bus/usb/%03d/%03d $b $d)")


class BusRecord:
    """What the host controller sends to USB devices, as recorded by usbmon: control requests of an FTDI adapter."""

    # FT232: request type 0x40 (vendor, to the device); 1 sets modem lines, 3 the rate's divisor, 9 the latency timer.
    REQUEST = re.compile(r" (\d+) S Co:\d+:\d+:0 s 40 (0[0-9a-f]) ([0-9a-f]{4}) ", re.M)
    MARK = re.compile(r" S Ci:\d+:\d+:0 s 80 00 0000 ")

    def __init__(self, guest: machine.Machine):
        self.guest = guest
        # busybox's cat, whose file is in the machine itself, starts at once.
        self._call = guest.call("echo listening; exec /run/guest/busybox cat /sys/kernel/debug/usb/usbmon/0u")
        self._call.until(lambda text: "listening" in text)
        self._from = 0
        self._await_mark()

    def _await_mark(self):
        """Waits for our own request in the record: up to it the record is complete."""
        deadline = Deadline(20)
        while True:
            mark_bus(self.guest)
            try:
                self._call.until(lambda text: self.MARK.search(text[self._from:]), 1)
                return
            except AssertionError:
                assert not deadline.passed, "no mark in the record of the bus"

    def requests(self) -> list[tuple[float, int, int]]:
        """(seconds, request, value) of all requests since the last call."""
        self._await_mark()
        text = self._call.output.decode()
        part, self._from = text[self._from:], len(text)
        return [(int(us) / 1e6, int(request, 16), int(value, 16)) for us, request, value in self.REQUEST.findall(part)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._call.close()


__all__ = [
    "Adapter", "BusRecord", "FarEnd", "GuestGateway", "Modem", "PROGRAMS", "UART", "USB", "foundation_streams",
    "library_probe", "mark_bus", "route", "until",
]
