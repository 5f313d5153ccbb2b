"""With thousands of routes, what the admin listener answers holds no lane for long: neither those that carry bytes, nor those
of the gateway's own work and of handshakes.

Measured is each lane's processor time between two looks at its descriptors (lane_turns.c), so other programs of the machine
do not count.
"""
import contextlib
import signal
import threading

import pytest
from admin import ask, place
from kit import Gateway, compiled, connect, free_port, run_all, until
from listener_clients import WebSocket, finish
from test_api import Events

ROUTES = 2000


class Lanes:
    """A gateway whose lanes are measured. While it is asked for its health all the time, no lane falls asleep, and so each
    round is measured."""

    def __init__(self, gateway: Gateway, file):
        self.gateway, self.file, self.reports = gateway, file, 0

    @contextlib.contextmanager
    def awake(self):
        stop = threading.Event()

        def ping():
            while not stop.is_set():
                assert ask(self.gateway, "GET /healthz").status == 200

        thread = threading.Thread(target=ping, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def report(self) -> dict[int, tuple[int, float]]:
        """By lane: how many rounds since the last report, and how long the longest was, in milliseconds."""
        self.gateway.signal(signal.SIGUSR2)
        self.reports += 1
        until(lambda: self.file.exists() and self.file.read_text().count("end\n") == self.reports, what="a report")
        words = self.file.read_text().split("end\n")[self.reports - 1].split()
        return {int(lane): (int(count), int(most) / 1e6) for lane, count, most in zip(*[iter(words)] * 3)}


def visit(gateway: Gateway, address, numbers):
    """Clients of these routes come and go: four events each."""
    for number in numbers:
        client = WebSocket(connect(address), f"/r{number}")
        client.send(b"x")
        assert client.receive(1) == b"x"
        finish(client.client)


@pytest.mark.heavy
@pytest.mark.measured
@pytest.mark.timeout(900)
def test_metrics_and_events_of_two_thousand_routes_hold_no_lane_for_a_millisecond(tmp_path, figure):
    port, turns = free_port(), tmp_path / "turns"
    config = {
        "admin": {"listen": "http://127.0.0.1:0"}, "log": {"repeats": "summary"},
        "routes": {f"r{n}": {"listen": f"ws://127.0.0.1:{port}/r{n}", "endpoint": "sim://echo"} for n in range(ROUTES)}}
    shim = compiled("lane_turns.c", "-shared", "-fPIC")
    gateway = Gateway(config, prefix=["env", f"LD_PRELOAD={shim}", f"LANE_TURNS={turns}"])
    gateway.expected += 1
    with gateway:
        lanes, address = Lanes(gateway, turns), ("127.0.0.1", port)

        def scrape():
            answer = ask(gateway, "GET /metrics").text
            assert answer.count("baudway_route_up{") == ROUTES

        with lanes.awake():
            # Whatever is done for the first time.
            scrape()
            visit(gateway, address, range(0, 100))
            lanes.report()
            visit(gateway, address, range(100, 400))
            control = lanes.report()
            # One that begins now, and one that gets all events that are kept.
            events, late = Events(gateway), Events(gateway, "Last-Event-ID: x")
            late.until("session ended")
            run_all(lambda: visit(gateway, address, range(400, 700)), lambda: [scrape() for _ in range(10)],
                    lambda: [events.until("session ended") for _ in range(300)], seconds=600)
            asked = lanes.report()
            events.close()
            late.close()
        print("control", control, "asked", asked, sep="\n")
        # Two lanes for bytes at least, that of the gateway's own work, and that of handshakes.
        assert sum(count > 100 for count, _ in asked.values()) >= 4
        quiet, busy = (max(most for _, most in found.values()) for found in (control, asked))
        # Processor time does not depend on other programs, so less than ten times the aim is enough.
        assert busy < 5, "a lane was held"
        figure(f"the longest round of a lane, {ROUTES:,} routes, /metrics and event streams", busy, "ms", aim=1, control=quiet)
