"""Messages to a service manager: sd_notify(3) with a datagram socket in systemd's place. unit.sh tests the real
systemd."""
import re
import signal
import socket

import pytest
from kit import GUARD, Gateway, round_trip, until

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}


class Notified(Gateway):
    """A gateway under a service manager."""

    def __init__(self, config, watchdog=None, **more):
        super().__init__(config, **more)
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(self.folder / "notify"))
        self.manager.settimeout(GUARD)
        self.watchdog = watchdog

    @property
    def environment(self):
        interval = {"WATCHDOG_USEC": str(self.watchdog)} if self.watchdog else {}
        return {**super().environment, "NOTIFY_SOCKET": self.manager.getsockname(), **interval}

    def next_message(self, seconds=GUARD) -> dict:
        """The next message; empty if none comes."""
        self.manager.settimeout(seconds)
        try:
            return dict(line.split("=", 1) for line in self.manager.recv(4096).decode().splitlines())
        except TimeoutError:
            return {}

    def hears(self, **wanted) -> dict:
        """Waits for a message with these values; others may come before it."""
        return until(lambda: (m := self.next_message()) and wanted.items() <= m.items() and m, what=str(wanted))

    def __exit__(self, *error):
        super().__exit__(*error)
        self.manager.close()


def test_systemd_gets_each_state_of_the_gateway():
    away = {"listen": "tcp://127.0.0.1:0", "endpoint": "tty:///dev/not-there", "device": {"open": "always"}}
    with Notified({"routes": {"echo": ECHO, "away": away}}, stopping=False) as gateway:
        ready = gateway.hears(READY="1")
        assert re.match(r"2 routes, 0 clients", ready["STATUS"])
        # By then every address answers.
        with gateway.connect("echo") as client:
            round_trip(client)
            gateway.hears(STATUS="2 routes, 1 client, 1 device away")
            gateway.signal(signal.SIGHUP)
            assert int(gateway.hears(RELOADING="1")["MONOTONIC_USEC"]) > 0
            gateway.hears(READY="1")
            good = gateway.path.read_text()
            gateway.path.write_text("version: 1\nroutes: {echo: {listne: x}}\n")
            gateway.signal(signal.SIGHUP)
            gateway.hears(RELOADING="1")
            assert "reload failed" in gateway.hears(READY="1")["STATUS"]
            gateway.path.write_text(good)
        gateway.signal(signal.SIGTERM)
        gateway.hears(STOPPING="1")
        assert gateway.wait() == 0
        gateway.check_sessions()


def test_the_watchdog_is_notified_only_while_the_gateway_works():
    with Notified({"routes": {"echo": ECHO}}, watchdog=400_000) as gateway:
        for _ in range(5):
            gateway.hears(WATCHDOG="1")
        gateway.signal(signal.SIGSTOP)
        try:
            while gateway.next_message(0.5):
                pass
            assert gateway.next_message(1) == {}
        finally:
            gateway.signal(signal.SIGCONT)
        gateway.hears(WATCHDOG="1")


@pytest.mark.measured
@pytest.mark.waits
def test_an_idle_gateway_with_a_service_manager_sleeps_too(long):
    with Notified({"routes": {"echo": ECHO}}) as gateway, gateway.connect("echo") as client:
        round_trip(client)
        gateway.falls_asleep(10 if long else 3)


@pytest.mark.parametrize("address", ["nowhere", "@", "/" + "x" * 200])
def test_an_invalid_notify_address_is_reported_and_ignored(address):
    class Odd(Gateway):
        @property
        def environment(self):
            return {**super().environment, "NOTIFY_SOCKET": address}

    with Odd({"routes": {"echo": ECHO}}) as gateway:
        assert any("NOTIFY_SOCKET" in line for line in gateway.lines)
        with gateway.connect("echo") as client:
            round_trip(client)
