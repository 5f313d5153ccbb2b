#!/usr/bin/python3
"""The gateway and a bare relay in C (programs/bare.c), in turns in the same emulated machine: bytes per second and CPU
per MiB, each way, over RFCOMM, an LE channel and GATT, as ratios with their bars; and what idle links cost. Prints a
table.

    BAUDWAY=$(Deploy/build) Tests/Bluetooth/speed.py [--boots 2] [--rounds 8] [--share 1] [--only
    rfcomm|channel|gatt|idle]...
        [--output NAME.md]

It uses two kinds of machine, because no single one measures both well. CPU is what the process itself has run, in
instructions, counted in a machine whose clock counts them (QEMU's -icount). This excludes everything else on the host,
and the emulator's new look-ups after each change of the address space; both are in "CPU by the clock". The kernel's
work for a radio in its own threads is not counted for either. Throughput is that of the whole chain, by the host's
clock, in a machine without -icount: with it the chain is a third slower, and even slower for a process that sleeps
between two messages. Bumble and its controllers, in Python, are as slow a part of the chain as the machine. On a busy
host throughput varies, and results differ from machine to machine: use several --boots. --output also writes the table
below Tests/Bench/results.
"""
import argparse
import contextlib
import itertools
import pathlib
import random
import statistics
import sys
import time
import zlib

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "Guest"), str(HERE.parent / "EndToEnd")]

import machine  # noqa: E402
import radio  # noqa: E402
from kit import binary, connect, receive, reset, until  # noqa: E402
from rig import GuestGateway, route  # noqa: E402

# Per kind: URL, device, the relay's arguments, and how much is carried each way, in KiB.
KINDS = {
    "rfcomm": (f"rfcomm://{radio.SERIAL}:3", "serial", f"rfcomm {radio.SERIAL} 3", 1024),
    "channel": (f"ble://1800:128/{radio.NUS}?address-type=random", "nus", f"channel {radio.NUS} 128", 1024),
    "gatt": (f"ble://{radio.NUS_SERVICE}/{radio.NUS}?address-type=random", "nus", f"gatt {radio.NUS}", 512),
}
PORT = 7001
# Minimum throughput and maximum CPU, as ratios to the relay's.
LEAST, MOST = 0.9, 1.3
# In a machine whose clock counts instructions, one takes 1 << SHIFT nanoseconds.
SHIFT = 2
MACHINES = {"counting": ("-icount", f"shift={SHIFT},sleep=on"), "timing": ()}


class Bare:
    """The relay, running in the machine. `inside` is its process there."""

    def __init__(self, guest, words: str):
        self._call = guest.call(f"echo $$; exec {radio.Air.programs}/bare {PORT} {words}")
        self._call.until(lambda text: "listening" in text)
        self.inside, self._address, self._times = int(self._call.output.split()[0]), guest.forwarded_address(PORT), 0

    def connect(self):
        self._times += 1
        client = connect(self._address)
        self._call.until(lambda text: text.count("open") >= self._times, 40)
        return client

    def left(self):
        self._call.until(lambda text: text.count("closed") >= self._times, 40)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._call.close()


class Ours(GuestGateway):
    def __enter__(self):
        super().__enter__()
        self.inside, self._times = int(self.guest.ask("busybox pidof baudway").split()[0]), 0
        return self

    def connect(self):
        self._times += 1
        client = super().connect("radio")
        self.event("link open", seconds=40, count=self._times)
        return client

    def left(self):
        self.event("link closed", seconds=40, count=self._times)


def usage(guest, pid: int) -> tuple[int, int]:
    """Nanoseconds of CPU and context switches so far."""
    words = guest.ask(f"{radio.Air.programs}/usage {pid}").split()
    return int(words[0]), int(words[1])


def chain(guest, air) -> float:
    """Seconds of CPU that the machine and the devices have used on the host. The machine is a child of timeout(1)."""
    parent = guest.process.pid
    emulator = int(pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
    # clock_getcpuclockid(3): the clock of another process.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in (emulator, air.pid))


class Lost(Exception):
    """Notifications that did not arrive: a device sends them without flow control, and the kernel drops those it has no
    space for. Or the measured program has given up during them."""


def measure(guest, air, kind: str, subject, size: int) -> dict:
    """Both ways in one session: FIGURES, in their order. Every byte is compared."""
    values, name = {}, KINDS[kind][1]
    data = random.Random(size).randbytes(size)
    # Wait until the previous subject and the kernel have released the device.
    until(lambda: not guest.ask(f"{air.programs}/adapter links"), 30, "no link", every=0.2)
    client = subject.connect()
    client.settimeout(120)
    time.sleep(1)  # at a new link the kernel asks for the device's name and more: not part of a stream
    try:
        for way in ("up", "down"):
            heard = int(air.order(f"heard {name}"))
            air.order(f"sum {name}")
            before, chained, start = usage(guest, subject.inside), chain(guest, air), time.monotonic()
            if way == "up":
                client.sendall(data)
                air.order(f"await {name} {heard + size}")
            else:
                air.order(f"flood {name} {size}")
                client.settimeout(30)
                try:
                    said = receive(client, size)
                except (AssertionError, TimeoutError) as what:
                    if kind == "gatt":
                        raise Lost(what) from None
                    raise  # the others have credits, and lose nothing
            took, chained = time.monotonic() - start, chain(guest, air) - chained
            cpu, changes = (now - then for now, then in zip(usage(guest, subject.inside), before))
            mebibytes = size / (1 << 20)
            values[way] = size / 1024 / took, cpu / 1e6 / mebibytes, changes / mebibytes, 1000 * chained / mebibytes
            assert int(air.order(f"sum {name}")) == zlib.crc32(data) if way == "up" else said == data, f"{name} {way}: other bytes"
    finally:
        reset(client)
        subject.left()
    return values


# Figure, machine, index in a measurement, divisor for the unit; bar, and whether a ratio meets it.
FIGURES = (
    ("throughput, KiB/s", "timing", 0, 1, f"≥ {LEAST}", lambda ratio: ratio >= LEAST),
    ("CPU, million instructions/MiB", "counting", 1, 1 << SHIFT, f"≤ {MOST}", lambda ratio: ratio <= MOST),
    ("CPU by the clock, ms/MiB", "timing", 1, 1, "", None),
    ("context switches/MiB", "timing", 2, 1, "", None),
    ("CPU of the chain, host's ms/MiB", "timing", 3, 1, "", None),
)


def compare(guest, air, kind: str, rounds: int, share: float, results: dict[str, list]) -> list[str]:
    """Adds measurements of both. Returns the names of those that lost bytes, one per round that counts for neither."""
    losers = []
    url, name, words, kibibytes = KINDS[kind]
    size = int(kibibytes * share) << 10
    air.order(f"echo {name} 0")
    config = {"routes": {"radio": route(url, device={"linger": "0s"})}}
    with Ours(guest, config) as gateway, Bare(guest, words) as bare:
        subjects = [("gateway", gateway), ("relay", bare)]
        for turn in range(rounds + 1):
            measured = {}
            try:
                for who, subject in subjects[:: 1 if turn % 2 else -1] if turn else subjects:
                    measured[who] = values = measure(guest, air, kind, subject, size if turn else size // 8)
                    print(kind, turn, who, {way: [round(one, 1) for one in each] for way, each in values.items()}, file=sys.stderr)
            except Lost as what:
                print(kind, turn, who, "has lost some:", what, file=sys.stderr)
                losers.append(who)
                continue
            if turn:  # the first switches the adapter on, and warms up
                for who, values in measured.items():
                    results[who].append(values)
    air.order(f"echo {name} 1")
    return losers


def rows_of(kind: str, results: dict[str, dict[str, list]]) -> list[str]:
    rows = []
    for way in ("up", "down"):
        for what, where, place, unit, bar, is_met in FIGURES:
            ours, theirs = ([value[way][place] / unit for value in results[where][who]] for who in ("gateway", "relay"))
            ratios = sorted(our / their for our, their in zip(ours, theirs))
            if not ratios:
                rows.append(f"| {kind} {way} | {what} | | | no round that counts | {bar} | **NO** |")
                continue
            ratio = statistics.median(ratios)
            met = "" if is_met is None else "yes" if is_met(ratio) else "**NO**"
            middles = " | ".join(f"{statistics.median(side):.1f}" for side in (ours, theirs))
            rows.append(f"| {kind} {way} | {what} | {middles} | {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {bar} | {met} |")
    return rows


def switches(guest, pid: int, seconds: float) -> int:
    """Context switches in `seconds`; never negative, although those of ended threads are no longer counted."""
    before = usage(guest, pid)[1]
    time.sleep(seconds)
    return abs(usage(guest, pid)[1] - before)


def rest(guest, pid: int):
    """Waits until Dispatch's workers have ended: five seconds after the last work, one after the other."""
    until(lambda: switches(guest, pid, 6) == 0, 60, "a gateway that has come to rest")


def idle(guest, kind: str | None, seconds: float) -> int:
    """Context switches of a gateway with an open idle link; without a kind, of one without a link."""
    with Ours(guest, {"routes": {"radio": route(KINDS[kind or "gatt"][0])}}) as gateway:
        with gateway.connect() if kind else contextlib.nullcontext():
            rest(guest, gateway.inside)
            return switches(guest, gateway.inside, seconds)


def idle_beside_a_scan(guest, seconds: float) -> tuple[int, int]:
    """The same for a link to a device that was found by a scan; then while another program scans."""
    with Ours(guest, {"routes": {"radio": route(f"ble://{radio.NUS_SERVICE}?name=test-nus")}}) as gateway, gateway.connect():
        rest(guest, gateway.inside)
        alone, before = switches(guest, gateway.inside, seconds), usage(guest, gateway.inside)[1]
        with guest.call(f"exec {binary()} scan --seconds 600") as scan:
            scan.until(lambda text: all(name in text for name in ("HMSoft", "test-shy", "test-locked")), 60)
            time.sleep(seconds)
            beside = abs(usage(guest, gateway.inside)[1] - before)
            scan.signal(15)
            scan.wait(20)
        return alone, beside


def idle_rows(guest, seconds: float) -> list[str]:
    measured = [("no link", idle(guest, None, seconds)), *((kind, idle(guest, kind, seconds)) for kind in KINDS)]
    measured.append(("gatt, while somebody scans", idle_beside_a_scan(guest, seconds)[1]))
    return [f"| idle, {what} | context switches in {seconds} s | {count} | | | 0 | {'**NO**' if count else 'yes'} |"
            for what, count in measured]


@contextlib.contextmanager
def devices(kind: str):
    """A separate machine, of one of MACHINES, with its devices."""
    guest = machine.Machine.boot(life=3000, devices=MACHINES[kind])
    try:
        guest.ask(f"modprobe -a {radio.MODULES}", 120)
        air = radio.Air(guest, life=3000)
        try:
            air.plug()
            yield guest, air
        finally:
            air.close()
    finally:
        guest.stop()


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--boots", type=int, default=2, help="machines of each kind, one after the other")
    words.add_argument("--rounds", type=int, default=8, help="in each")
    words.add_argument("--share", type=float, default=1, help="of what is carried else")
    words.add_argument("--only", action="append", choices=[*KINDS, "idle"])
    words.add_argument("--output")
    words = words.parse_args()
    kinds = [kind for kind in KINDS if not words.only or kind in words.only]
    results, idles = {kind: {one: {"gateway": [], "relay": []} for one in MACHINES} for kind in kinds}, []
    losers = []
    for _, one in itertools.product(range(words.boots), MACHINES):
        with devices(one) as (guest, air):
            for kind in kinds:
                losers += compare(guest, air, kind, words.rounds, words.share, results[kind][one])
            if not idles and (not words.only or "idle" in words.only):
                idles = idle_rows(guest, 10)
    rows = [row for kind in kinds for row in rows_of(kind, results[kind])] + idles
    carried = ", ".join(f"{kind} {int(KINDS[kind][3] * words.share)} KiB" for kind in KINDS)
    table = "\n".join([
        f"Medians of up to {words.rounds} rounds in turns in each of {words.boots} machines of each kind, each way ({carried}), "
        f"ratios gateway / relay within a round (least to most). Every byte was compared.",
        f"Rounds that count for neither, since notifications were lost: by the gateway {losers.count('gateway')}, by the relay "
        f"{losers.count('relay')}.", "",
        "| | | gateway | relay in C | ratio | bar | met |", "|---|---|---|---|---|---|---|", *rows])
    print(table)
    if words.output:
        command = " ".join(["Tests/Bluetooth/speed.py", *sys.argv[1:]])
        (HERE.parent / "Bench/results" / words.output).write_text(
            f"# Bluetooth, {time.strftime('%Y-%m-%d')}\n\n    BAUDWAY=$(Deploy/build) {command}\n\n{table}\n")
    return 1 if "**NO**" in table or "gateway" in losers else 0


if __name__ == "__main__":
    sys.exit(main())
