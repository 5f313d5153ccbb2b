"""Openings that are given up leave nothing open: no descriptor, no thread, and no link of the controller."""
import time

import pytest

from kit import reset, until
from radio import HM10, NOBODY, NUS, NUS_SERVICE, PRIVATE, SERIAL
from rig import GuestGateway, route

pytestmark = pytest.mark.usefixtures("replugged")

# Each way of opening, with a device that answers, and one that never does.
URLS = {
    "given": f"rfcomm://{SERIAL}:3",
    "looked-up": f"rfcomm://{SERIAL}?uuid={PRIVATE}",
    "channel": f"ble://1800:128/{NUS}?address-type=random",
    "gatt": f"ble://{NUS_SERVICE}/{NUS}?address-type=random",
    "scanned": f"ble://FFE0/{HM10}",
    "absent": f"rfcomm://{NOBODY}:3",
    "absent-le": f"ble://FFE0/{NOBODY}?address-type=public",
}
CLASSIC, LOW_ENERGY = ["given", "looked-up", "absent"], ["channel", "gatt", "scanned", "absent-le"]


def config(names, **device) -> dict:
    return {"routes": {name: route(URLS[name], device={"linger": "0s", "retry": "100ms..200ms", **device}) for name in names}}


class Held:
    """The gateway's descriptors and threads."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.pid = gateway.guest.ask("busybox pidof baudway").split()[0]
        self.before = self.now()

    def now(self) -> tuple[int, int]:
        words = self.gateway.guest.ask(f"ls /proc/{self.pid}/fd | busybox wc -l; ls /proc/{self.pid}/task | busybox wc -l").split()
        return int(words[0]), int(words[1])

    def is_as_before(self):
        """A few are made once and kept, and some of Dispatch's workers come and go; one per opening would be twenty and
        more."""
        until(lambda: self.now()[0] <= self.before[0] + 10, 30, f"some {self.before[0]} descriptors", every=0.2)
        assert self.now()[1] < self.before[1] + 12


def no_link_is_left(guest, air):
    # The kernel keeps a link for two seconds after its last use.
    try:
        until(lambda: not guest.ask(f"{air.programs}/adapter links"), 30, "no link", every=0.2)
    except AssertionError:
        air.order("history")
        raise
    finally:
        print("links and sockets:", guest.ask(f"{air.programs}/adapter links; cat /proc/net/l2cap /proc/net/rfcomm"), sep="\n")


def taken(gateway) -> list[dict]:
    """Reports of channels that are already in use by this machine."""
    return [event for event in gateway.events("link waiting") if "EBUSY" in str(event) or "open already" in str(event)]


def come_and_go(guest, names):
    with GuestGateway(guest, config(names)) as gateway:
        held = Held(gateway)
        for turn in range(20):
            clients = [gateway.connect(name) for name in names]
            time.sleep(turn * 0.02)  # gives up at another step each time; not a wait for an event
            for client in clients:
                reset(client)
            gateway.event("session ended", seconds=30, count=len(names) * (turn + 1))
        held.is_as_before()


def test_abandoned_openings_of_classic_leave_nothing_open(air, guest):
    come_and_go(guest, CLASSIC)
    no_link_is_left(guest, air)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["given", "looked-up"])
def test_openings_of_classic_abandoned_during_channel_setup_leave_nothing_open(air, guest, name):
    """Linux 6.1 cleans up neither kind well. The device's answer connects a closed L2CAP channel again, and then no
    socket owns it. An RFCOMM channel that the device does not know yet blocks the next one for 20 s."""
    with GuestGateway(guest, config([name])) as gateway:
        air.order("pace 50")  # each step takes its time
        try:
            for turn in range(20):
                client = gateway.connect(name)
                time.sleep(turn * 0.025)  # gives up at another step each time; not a wait for an event
                reset(client)
                gateway.event("session ended", seconds=30, count=2 * turn + 1)
                opened, refused = len(gateway.events("link open")), len(taken(gateway))
                client = gateway.connect(name)
                gateway.event("link open", seconds=60, count=opened + 1)
                # A few refusals while the old channel ends; 20 s of it would be a hundred.
                assert len(taken(gateway)) < refused + 20
                reset(client)
                gateway.event("session ended", seconds=30, count=2 * turn + 2)
        finally:
            air.order("pace 0")
    no_link_is_left(guest, air)


def test_abandoned_openings_of_low_energy_leave_nothing_open(air, guest):
    come_and_go(guest, LOW_ENERGY)
    no_link_is_left(guest, air)


@pytest.mark.parametrize("name", ["channel", "gatt"])
def test_several_short_attempts_connect_in_the_end(air, guest, name):
    """The next attempt continues the one that was given up: the kernel does not start again each time, and connects in
    the end."""
    with GuestGateway(guest, config([name], **{"connect-timeout": "50ms"})) as gateway:
        client = gateway.connect(name)
        gateway.event("link open", seconds=60, route=name)
        reset(client)
        gateway.event("session ended", seconds=30)
    no_link_is_left(guest, air)


def test_openings_that_time_out_leave_nothing_open(air, guest):
    names = ["absent", "absent-le"]
    with GuestGateway(guest, config(names, **{"connect-timeout": "300ms"})) as gateway:
        held = Held(gateway)
        clients = [gateway.connect(name) for name in names]
        for name in names:
            gateway.event("link waiting", seconds=60, count=20, route=name)
        for client in clients:
            reset(client)
        held.is_as_before()
        no_link_is_left(guest, air)


def test_a_gateway_that_stops_while_connecting_leaves_nothing_open(air, guest):
    """It exits only when the devices have answered, or had their time: if several connections end while they are being
    made, Linux 6.1 confuses them, reports a failed cancel, and leaves a link or connects to no device any more."""
    before, longest = guest.console().count("Opcode 0x200e failed"), 0
    for turn in range(3):
        with GuestGateway(guest, config(URLS)) as gateway:
            clients = [gateway.connect(name) for name in URLS]
            time.sleep(turn * 0.1)  # as above
            began = time.monotonic()
            gateway.stop()
            longest = max(longest, time.monotonic() - began)
            for client in clients:
                client.close()
        no_link_is_left(guest, air)
    assert longest > 4, "the absent devices had their time"
    assert guest.console().count("Opcode 0x200e failed") == before
