"""Many clients on one route: a stuck one does not delay the others, and running out of descriptors ends no session."""
import subprocess
import threading
import time

import pytest
from kit import GUARD, Gateway, Pty, compiled, connect, reset, round_trip, until

LINE = b"%06d " + b"." * 91 + b"\r\n"  # 100 bytes
RATE = 115  # lines a second: 11.5 kB/s, what a port at 115200 bit/s carries


class Metronome:
    """A device that sends lines at a steady rate until the block ends."""

    def __init__(self, device):
        self.device, self.stop = device, threading.Event()
        self.thread = threading.Thread(target=self._say, daemon=True)

    def _say(self):
        start, number = time.monotonic(), 0
        while not self.stop.is_set():
            due = start + number / RATE - time.monotonic()
            if due > 0:
                time.sleep(due)
            self.device.write(LINE % (number % 1000000))
            number += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(GUARD)


class Crowd:
    """Runs `crowd.c`."""

    def __init__(self, address, count: int):
        self.process = subprocess.Popen(
            [compiled("crowd.c"), address[0], str(address[1]), str(count)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def measure(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def finish(self) -> dict:
        answer = self.process.communicate(timeout=GUARD)[0].split()
        gap, worst, least, most, lost = float(answer[0]), *map(int, answer[1:])
        return {"gap": gap, "client": worst, "least": least, "most": most, "lost": lost}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def watch(stuck: bool, seconds: float, clients: int = 1000) -> dict:
    """The longest silence that any client saw: with a stuck client until it is disconnected, otherwise during
    `seconds`."""
    route = {
        "listen": "tcp://127.0.0.1:0", "endpoint": "", "clients": {"max": clients + 10, "slow": "disconnect"},
        "device": {"open": "always"},
    }
    with Pty() as device, Gateway({"routes": {"port": {**route, "endpoint": device.url}}}) as gateway, \
            Crowd(gateway.address("port"), clients) as crowd:
        gateway.event("session opened", count=clients)
        gateway.event("link open")
        with Metronome(device):
            # The first lines hit cold caches everywhere.
            time.sleep(1)
            crowd.measure()
            start = time.monotonic()
            if stuck:
                client = gateway.connect("port", receive_buffer=2048)
                gateway.event("session ended", reason="too-slow", seconds=90)
                # The disconnect's effect on the others is included.
                time.sleep(1)
                client.close()
            else:
                time.sleep(seconds)
            result = crowd.finish() | {"seconds": time.monotonic() - start}
        assert result["lost"] == 0
        assert result["most"] - result["least"] <= 10_000, "somebody missed some of it"
    return result


@pytest.mark.waits
@pytest.mark.heavy
@pytest.mark.timed
def test_a_stuck_client_delays_no_other_client(figure):
    stuck = watch(True, 0)
    control = watch(False, min(stuck["seconds"], 30))
    figure("longest gap of 1,000 clients beside a stuck one", stuck["gap"], "ms", aim=50, control=control["gap"])
    # Ten times the aim still distinguishes a stall from a busy machine.
    assert stuck["gap"] < control["gap"] + 500


def test_more_clients_than_descriptors():
    route = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": {"max": 1000}}
    with Gateway({"routes": {"echo": route}}, prefix=["prlimit", "--nofile=256:256"]) as gateway:
        first = gateway.connect("echo")
        assert round_trip(first, b"before")
        crowd = [connect(gateway.address("echo")) for _ in range(299)]
        # The last descriptors are reserved for devices and for routes without a client: the gateway refuses the rest
        # before the kernel does.
        kept = "the last descriptors are reserved for devices"
        until(lambda: sum(kept in line for line in gateway.lines) > 20, what="refusals in the log")
        # Connected clients are still served.
        first.sendall(b"during")
        until(lambda: first.recv(6))
        assert not any("EMFILE" in line for line in gateway.lines)
        for client in [first, *crowd]:
            reset(client)

        def served():
            try:
                client = connect(gateway.address("echo"))
                client.settimeout(2)
                return round_trip(client, b"after") > 0
            except (AssertionError, OSError):
                return False
            finally:
                reset(client)

        until(served, what="served again", every=0.1)
        until(lambda: len(gateway.events("session ended")) >= len(gateway.events("session opened")))
        assert gateway.process.poll() is None
