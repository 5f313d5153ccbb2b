"""RFCOMM listeners: a device on the air looks the gateway up, connects and exchanges bytes."""
import contextlib

import pytest

from kit import until
from radio import PHONE, PRIVATE
from rig import GuestGateway, route

SIZE = 256 << 10


def served(listen: str, endpoint: str = "sim://echo", **more) -> dict:
    return {"routes": {"door": route(endpoint, listen=listen, **more)}}


def channel(gateway: GuestGateway, count: int = 1) -> str:
    """The listener's channel, from the log."""
    bound = gateway.event("listening", route="door", seconds=30, count=count)["listen"]
    return bound.split("channel=")[1].split("&")[0]


def found(air, uuid: str = "1101") -> str | None:
    """The result of a look-up; None while there is no list."""
    with contextlib.suppress(AssertionError):
        return air.order(f"find phone {uuid}")


def finds(air, uuid: str = "1101") -> str:
    """Like `found`, but waits for a list: it appears after the listener, and a gateway whose place was taken waits for
    bluetoothd first."""
    return until(lambda: found(air, uuid), 40, "a list of services", every=0.5)


def limits(gateway: GuestGateway, word: str = "listener limited") -> str:
    return " ".join(event.get("error", "") for event in gateway.events(word))


def reload(gateway: GuestGateway, config: dict):
    gateway.configure(config)
    gateway.guest.run("true", fresh=True)  # otherwise the machine still sees the old file
    gateway.signal(1)


def echoes(air, size: int = SIZE, caller: str = "phone"):
    poured = air.order(f"pour {caller} {size} {size}")
    assert air.order(f"got {caller} {size}") == poured


@pytest.mark.parametrize("listen, uuid, name", [
    ("rfcomm://", "1101", "door"), (f"rfcomm://?channel=11&name=the%20board&uuid={PRIVATE}&adapter=hci0", PRIVATE, "the board"),
], ids=["as it is", "all that can be said"])
def test_a_device_finds_the_listener_and_every_byte_is_echoed(air, guest, listen, uuid, name):
    with GuestGateway(guest, served(listen)) as gateway:
        number = channel(gateway)
        assert finds(air, uuid) == f"{number} {name}"
        assert finds(air, "1002") == f"{number} {name}" and finds(air, "1112") == "none"
        air.order(f"dial phone {number}")
        echoes(air)
        opened = gateway.event("session opened")
        assert opened["client"] == PHONE and f"channel={number}" in opened["listen"]
        assert PHONE in gateway.command("status", seconds=30).stdout
        air.order("leave phone")
        ended = gateway.event("session ended", seconds=20)
        assert (ended["reason"], int(ended["up"]), int(ended["down"])) == ("client-left", SIZE, SIZE)
        assert limits(gateway) == ""


def test_a_slow_endpoint_slows_the_device_and_loses_nothing(air, guest):
    size, pty = 1 << 20, "/run/door"
    with GuestGateway(guest, served("rfcomm://?channel=4", f"pty://{pty}")) as gateway:
        channel(gateway)
        air.order("dial phone 4")
        gateway.event("link open", seconds=20)
        poured = air.order(f"pour phone 1 {size}")
        left = [size, 0]

        def stands_still():
            left.append(int(air.order("unsent phone")))
            return left[-1] == left[-2] == left[-3] > 0

        until(stands_still, 60, "a device that waits", every=0.5)
        assert guest.ask(f"head -c {size} {pty} | sha256sum", 80).split()[0] == poured
        air.order("leave phone")
        assert int(gateway.event("session ended", seconds=20)["up"]) == size


def test_a_device_whose_link_is_lost_is_client_lost_and_frees_its_slot(air, guest):
    with GuestGateway(guest, served("rfcomm://?channel=4", clients={"max": 1})) as gateway:
        channel(gateway)
        air.order("dial phone 4")
        echoes(air, 100)
        air.order("lose phone")
        ended = gateway.event("session ended", seconds=20)
        assert ended["reason"] == "client-lost" and "ETIMEDOUT" in ended["error"]
        air.order("dial phone 4")
        echoes(air, 100)
        air.order("leave phone")
        gateway.event("session ended", seconds=20, count=2)


def test_an_adapter_is_switched_on_and_an_unplugged_one_is_awaited(air, guest):
    air.pull()
    with GuestGateway(guest, served("rfcomm://?channel=4&discoverable=yes"), ready=0) as gateway:
        assert "no Bluetooth adapter" in gateway.event("listener waiting", seconds=20)["error"]
        air.plug(on=False)
        channel(gateway)
        air.order("dial phone 4")
        echoes(air, 100)
        air.pull()
        gateway.event("listener waiting", seconds=20, count=2)
        gateway.event("session ended", seconds=20)
        air.plug(on=False)
        channel(gateway, 2)
        assert finds(air) == "4 door"
        air.order("dial phone 4")
        echoes(air, 100)


def test_a_reload_changes_the_service_record_and_disconnects_no_device(air, guest):
    with GuestGateway(guest, served("rfcomm://?channel=4&name=old")) as gateway:
        channel(gateway)
        air.order("dial phone 4")
        echoes(air, 100)
        reload(gateway, served("rfcomm://?channel=4&name=new"))
        channel(gateway, 2)
        until(lambda: found(air) == "4 new", 40, "the new name", every=0.2)
        echoes(air, 200)
        reload(gateway, served("tcp://0.0.0.0:0"))
        gateway.event("listener closed", seconds=20, count=2)
        echoes(air, 300)
        assert not gateway.events("session ended")
        air.order("leave phone")


def test_missing_capabilities_are_reported(air, guest):
    air.pull()
    air.plug()
    gateway = GuestGateway(guest, served("rfcomm://?channel=4&discoverable=yes"))
    gateway.prefix += ["setpriv", "--bounding-set", "-all"]
    with gateway:
        until(lambda: "CAP_NET_BIND_SERVICE" in limits(gateway) and "CAP_NET_ADMIN" in limits(gateway), 30, "what is missing")
        air.adapter("down")
        until(lambda: "hci0 is off" in str(gateway.events("listener waiting")), 30, "what is missing")
