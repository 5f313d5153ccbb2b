"""Devices that connect and pair first, without bluetoothd: a phone whose key is kept, and the report when it has lost
its own."""
import pytest

from radio import MOBILE
from rig import GuestGateway
from test_bonds import BONDS
from test_rfcomm_listener import channel, echoes, limits, served

URL = "rfcomm://?channel=4&security=medium"


@pytest.fixture
def fresh(air):
    """An adapter whose kernel has no keys, before and after the test."""
    air.pull()
    air.plug(on=False)
    yield air
    air.pull()


def calls(air, size: int = 100):
    air.order("dial mobile 4")
    echoes(air, size, "mobile")
    air.order("leave mobile")
    air.order("hangup mobile")


def paired(air) -> int:
    """How often the device was asked to pair, in total."""
    return int(air.order("paired mobile"))


def test_a_phone_pairs_once_and_stays_bonded_after_restart_and_replug(fresh, guest):
    air, before = fresh, paired(fresh)
    with GuestGateway(guest, served(URL)) as gateway:
        channel(gateway)
        calls(air, 64 << 10)
        assert gateway.event("bond kept", seconds=30)["device"] == MOBILE
        assert gateway.event("session ended", seconds=20)["client"] == MOBILE
        assert "'security" not in limits(gateway)
    assert guest.ask(f"stat -c '%a %u' {BONDS}").split() == ["600", "0"]
    (line,) = [line for line in guest.ask(f"cat {BONDS}").splitlines() if MOBILE in line]
    key = line.split("link:")[1].split()[0]
    assert key.lower() not in " ".join(gateway.lines).lower()
    with GuestGateway(guest, served(URL)) as gateway:
        channel(gateway)
        calls(air)
        air.pull()
        gateway.event("listener waiting", seconds=20)
        air.plug(on=False)
        channel(gateway, 2)
        calls(air, 64 << 10)
    assert paired(air) == before + 1
    assert not gateway.events("bond kept")


def test_a_phone_that_lost_its_key_is_reported_until_its_bond_is_removed(fresh, guest):
    air = fresh
    with GuestGateway(guest, served("rfcomm://?channel=4")) as gateway:  # phones pair, whatever `security` says
        channel(gateway)
        calls(air)
        gateway.event("bond kept", seconds=30)
        air.order("forget mobile")
        with pytest.raises(AssertionError, match="AUTHENTICATION_FAILURE"):
            air.order("dial mobile 4")
        refused = gateway.event("pairing refused", seconds=30)
        assert refused["device"] == MOBILE and f"remove line 3 of {BONDS}" in refused["error"]
        guest.ask(f"sed -i /{MOBILE}/d {BONDS}")
        air.order("hangup mobile")
        calls(air)
        gateway.event("bond kept", seconds=30, count=2)
