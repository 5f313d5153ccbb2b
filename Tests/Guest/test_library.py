"""Programs of a library user (Tests/Library/probe) on serial ports, without a gateway."""
import contextlib
import os
import random
import re
import struct
import threading
import time

from kit import until
from rig import UART, FarEnd, library_probe, mark_bus

LINE = b"line %06d 0123456789abcdefgh\n"


def test_the_program_of_the_readme_exchanges_bytes_with_a_serial_port(guest):
    with FarEnd(guest, "uart") as far:
        far.echo = True
        assert guest.ask(f"{library_probe()} ask tty://{UART} hello", 60) == "hello\n"


class Feed:
    """Sends numbered lines to the adapter, in pieces of any size, until it is stopped or the adapter is pulled."""

    def __init__(self, adapter, first: int):
        self.first = self.next = first
        self._adapter, self._stop = adapter, threading.Event()
        self._random = random.Random(first)
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self):
        with contextlib.suppress(OSError, AttributeError):  # it was pulled
            while not self._stop.is_set():
                lines = b"".join(LINE % (self.next + more) for more in range(self._random.randrange(1, 6)))
                self.next += lines.count(b"\n")
                while lines:
                    size = self._random.randrange(1, 50)
                    self._adapter.write(lines[:size])
                    lines = lines[size:]
                    time.sleep(0.001)  # the pace of a fast port

    def stop(self):
        self._stop.set()
        self._thread.join(10)


class InTransfers:
    """What adapters deliver over the bus, by usbmon's record."""

    HEAD = struct.Struct("<QcBBBHccqiiII8s")  # Documentation/usb/usbmon.rst, raw binary format
    MARK = bytes.fromhex("8000000000000200")  # the setup packet of `port mark`

    def __init__(self, guest):
        self._guest = guest
        self._call = guest.call("echo; exec /run/guest/busybox cat /dev/usbmon0")
        self._call.until(lambda text: text)

    def by_device(self) -> list[bytes]:
        """The bytes of each device, in the order in which they were plugged in."""
        # The record arrives here later than other output of the machine. It is complete up to our own request.
        known = len(self._transfers())
        mark_bus(self._guest)
        until(lambda: any(setup == self.MARK for *_, setup in self._transfers()[known:]), 20, "the mark in the record")
        bytes_of = {}
        for kind, transfer, endpoint, device, data, _ in self._transfers():
            if (kind, transfer, endpoint) == (b"C", 3, 0x81):
                packets = [data[at + 2:at + 64] for at in range(0, len(data), 64)]  # two bytes are the FTDI's state
                bytes_of[device] = bytes_of.get(device, b"") + b"".join(packets)
        return list(bytes_of.values())

    def _transfers(self) -> list[tuple]:
        """(kind, transfer, endpoint, device, data, setup packet) of all that have arrived."""
        record, at, transfers = bytes(self._call.output)[1:], 0, []
        while at + self.HEAD.size <= len(record):
            _, kind, transfer, endpoint, device, *_, size, setup = self.HEAD.unpack_from(record, at)
            start = at + self.HEAD.size
            at = start + size
            if at <= len(record):
                transfers.append((kind, transfer, endpoint, device, record[start:at], setup))
        return transfers

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._call.close()


def test_a_logger_prints_all_that_an_adapter_delivers_through_ten_pulls(guest, adapter):
    """Half of the pulls cut a line: its rest is a line of its own, and the next link begins another. What the program has
    not read when the driver hangs up is discarded by the kernel: that is the end of a link, and only when it is pulled
    while bytes flow."""
    pulls = 10
    with InTransfers(guest) as record, guest.call(
            f"exec {library_probe()} log 'tty://usb/0403:6001/{adapter.serial}'") as logger:
        feeds = []

        def times(word: str) -> int:
            return len(re.findall(rf"^{word}\b", logger.errors.decode(), re.M))

        def has_printed(number: int) -> bool:
            return LINE % number in logger.output

        for turn in range(pulls + 1):
            until(lambda: times("open") == turn + 1, 30, "the link open")
            feed = Feed(adapter, feeds[-1].next if feeds else 0)
            feeds.append(feed)
            until(lambda: has_printed(feed.first + 100), 30, "a hundred lines")
            if is_quiet(turn):
                feed.stop()
                until(lambda: has_printed(feed.next - 1), 30, "the last line")
            if turn < pulls:
                adapter.close()
                feed.stop()
                until(lambda: times("lost") == turn + 1, 30, "the link lost")
                adapter.connect()
        delivered, printed = record.by_device(), logger.output.decode()
    assert len(delivered) == pulls + 1
    starts = [printed.index((LINE % feed.first).decode()) for feed in feeds] + [len(printed)]
    discarded = []
    for turn, link in enumerate(delivered):
        got = printed[starts[turn]:starts[turn + 1]].encode()
        assert got.endswith(b"\n")
        if not link.startswith(got):
            got = got[:-1]  # a cut line
        assert link.startswith(got), f"link {turn}: {difference(link, got)}"
        discarded.append(len(link) - len(got))
        assert discarded[-1] == 0 or not is_quiet(turn), f"link {turn}: {link[len(got):]!r} was not printed"
    cut = sum(not link.endswith(b"\n") for link in delivered)
    print(f"{sum(map(len, delivered))} bytes delivered, {cut} links ended within a line, "
          f"{discarded} bytes were discarded at the pulls")


def difference(link: bytes, got: bytes) -> str:
    same = len(os.path.commonprefix([link, got]))
    return (f"{len(link)} bytes delivered and {len(got)} printed, the same up to {same}: "
            f"delivered …{link[same - 40:same + 200]!r}, printed …{got[same - 40:]!r}")


def is_quiet(turn: int) -> bool:
    """All is printed before the pull."""
    return turn % 2 == 0
