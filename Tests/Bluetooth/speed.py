#!/usr/bin/python3
"""The gateway beside a bare relay in C (programs/bare.c), in turns in one emulated machine: bytes per second and CPU per MiB, each way,
over RFCOMM, an LE channel and GATT, as ratios, with the bars they are held against; and what an idle BLE route costs. Prints a table.

    BAUDWAY=$(Deploy/build) Tests/Bluetooth/speed.py [--rounds 5] [--kib 512] [--only rfcomm|channel|gatt]... [--output NAME.md]

Says little on a machine that does something else: machine and devices take a core each. The CPU is the process's own; what the kernel
does for a radio in its own threads is nobody's. --output puts it below Tests/Bench/results as well.
"""
import argparse
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "Guest"), str(HERE.parent / "EndToEnd")]

import machine  # noqa: E402
import radio  # noqa: E402
from kit import connect, receive, reset, until  # noqa: E402
from rig import GuestGateway, route  # noqa: E402

# What is reached, by whom on the air; how the relay is told; the share of what is carried that the least takes (GATT is slower).
KINDS = {
    "rfcomm": (f"rfcomm://{radio.SERIAL}:3", "serial", f"rfcomm {radio.SERIAL} 3", 1),
    "channel": (f"ble://1800:128/{radio.NUS}?address-type=random", "nus", f"channel {radio.NUS} 128", 1),
    "gatt": (f"ble://{radio.NUS_SERVICE}/{radio.NUS}?address-type=random", "nus", f"gatt {radio.NUS}", 0.5),
}
PORT = 7001
# Throughput at least, CPU at most, as ratios to the relay's.
LEAST, MOST = 0.9, 1.3


class Bare:
    """The relay, running in the machine. `pid` is its own."""

    def __init__(self, guest, words: str):
        self._call = guest.call(f"echo $$; exec {radio.STATE}/bin/bare {PORT} {words}")
        self._call.until(lambda text: "listening" in text)
        self.pid, self._address, self._times = int(self._call.output.split()[0]), guest.door(PORT), 0

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


def usage(guest, pid: int) -> tuple[float, int]:
    """CPU seconds and context switches so far."""
    words = guest.ask(f"{radio.STATE}/bin/usage {pid}").split()
    return int(words[0]) / 1e9, int(words[1])


def measure(guest, air, name: str, subject, pid: int, size: int) -> dict:
    """Both ways in one session: (bytes a second, CPU seconds per MiB)."""
    values = {}
    # The one before has let go of the device, and so has the kernel.
    until(lambda: not guest.ask(f"{air.programs}/adapter links"), 30, "no link", every=0.2)
    client = subject.connect()
    client.settimeout(120)
    mebibytes = size / (1 << 20)
    try:
        for way in ("up", "down"):
            heard = int(air.order(f"heard {name}"))
            before, start = usage(guest, pid)[0], time.monotonic()
            if way == "up":
                client.sendall(bytes(size))
                air.order(f"await {name} {heard + size}")
            else:
                air.order(f"flood {name} {size}")
                receive(client, size)
            took = time.monotonic() - start
            values[way] = (mebibytes / took, (usage(guest, pid)[0] - before) / mebibytes)
    finally:
        reset(client)
        subject.left()
    return values


def compare(guest, air, kind: str, rounds: int, size: int) -> list[str]:
    """The kind's rows."""
    url, name, words, share = KINDS[kind]
    size = int(size * share)
    air.order(f"echo {name} 0")
    results = {"gateway": [], "relay": []}
    config = {"routes": {"radio": route(url, device={"linger": "0s"})}}
    with Ours(guest, config) as gateway, Bare(guest, words) as bare:
        subjects = [("gateway", gateway, gateway.inside), ("relay", bare, bare.pid)]
        for turn in range(rounds + 1):
            for who, subject, pid in subjects[:: 1 if turn % 2 else -1] if turn else subjects:
                values = measure(guest, air, name, subject, pid, size if turn else size // 8)
                if turn:  # the first switches the adapter on, and warms up
                    results[who].append(values)
    air.order(f"echo {name} 1")
    rows = []
    for way in ("up", "down"):
        ours, theirs = ([value[way] for value in results[who]] for who in ("gateway", "relay"))
        for place, what, unit, scale, digits in ((0, "throughput", "KiB/s", 1024, 0), (1, "CPU", "ms/MiB", 1000, 1)):
            ratios = sorted(our[place] / their[place] for our, their in zip(ours, theirs))
            ratio = statistics.median(ratios)
            met = ratio >= LEAST if place == 0 else ratio <= MOST
            middles = [statistics.median(value[place] for value in side) * scale for side in (ours, theirs)]
            rows.append(
                f"| {kind} {way} | {what} | {middles[0]:.{digits}f} {unit} | {middles[1]:.{digits}f} {unit} "
                f"| {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {'≥ 0.9' if place == 0 else '≤ 1.3'} "
                f"| {'yes' if met else '**NO**'} |")
    return rows


def idle(guest, seconds: int) -> int:
    """Context switches in so long of a gateway whose BLE link is open and says nothing."""
    config = {"routes": {"radio": route(KINDS["gatt"][0])}}
    with Ours(guest, config) as gateway, gateway.connect():
        last = usage(guest, gateway.inside)[1]
        for _ in range(6):  # Dispatch's workers go home some seconds after the last work
            time.sleep(seconds)
            before, last = last, usage(guest, gateway.inside)[1]
            if last == before:
                break
    return last - before


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--kib", type=int, default=512)
    words.add_argument("--only", action="append", choices=[*KINDS, "idle"])
    words.add_argument("--output")
    words = words.parse_args()
    guest = machine.Machine.boot(life=1800)
    rows = []
    try:
        guest.ask(f"modprobe -a {radio.MODULES}", 60)
        air = radio.Air(guest, life=1800)
        try:
            air.plug()
            for kind in KINDS:
                if not words.only or kind in words.only:
                    rows += compare(guest, air, kind, words.rounds, words.kib << 10)
            if not words.only or "idle" in words.only:
                switches = idle(guest, 10)
                rows.append(f"| gatt, idle | wake-ups in 10 s | {switches} | | | 0 | {'**NO**' if switches else 'yes'} |")
        finally:
            air.close()
    finally:
        guest.stop()
    table = "\n".join([
        f"Medians of {words.rounds} rounds in turns, {words.kib} KiB each way (GATT half of it), ratios gateway / relay within a round.", "",
        "| | | gateway | relay in C | ratio | bar | met |", "|---|---|---|---|---|---|---|", *rows])
    print(table)
    if words.output:
        (HERE.parent / "Bench/results" / words.output).write_text(f"# Bluetooth, {time.strftime('%Y-%m-%d')}\n\n{table}\n")
    return 1 if "**NO**" in table else 0


if __name__ == "__main__":
    sys.exit(main())
