"""The adapter goes and comes back while clients are held: the kernel's event wakes the route, long before its timer
would."""
import pytest

from kit import until
from radio import HM10, SERIAL
from rig import GuestGateway
from test_ble import bare
from test_rfcomm import answers, config, said

# Longer than any wait below: a link that comes back comes by the event.
PATIENT = {"retry": "90s..90s", "absent": "hold"}
KINDS = pytest.mark.parametrize(
    "url", [f"rfcomm://{SERIAL}:3", f"ble://FFE0/{HM10}?address-type=public"], ids=["rfcomm", "ble"])


def ready_for_ble(air, guest):
    """Switches Low Energy on, which a gateway without rights cannot do."""
    with GuestGateway(guest, config(f"ble://FFE0/{HM10}?address-type=public")) as gateway, gateway.connect("radio"):
        gateway.event("link open", seconds=40)
    # The kernel ends the link two seconds later, perhaps just when the next test uses it.
    until(lambda: not guest.ask(f"{air.programs}/adapter links"), 30, "no link", every=0.1)


@KINDS
def test_a_replugged_adapter_is_used_again_at_once(air, guest, url):
    with GuestGateway(guest, config(url, **PATIENT)) as gateway, gateway.connect("radio") as client:
        gateway.event("link open", seconds=40)
        air.pull()
        gateway.event("link lost", seconds=30)
        air.plug(on=False)
        gateway.event("link open", seconds=60, count=2)  # the gateway switches it on
        answers(client, b"after")
        assert len(gateway.events("session opened")) == 1


@KINDS
def test_a_gateway_that_cannot_switch_the_adapter_on_reports_it_and_waits(air, guest, url):
    if url.startswith("ble"):
        ready_for_ble(air, guest)
    gateway = bare(guest, url)
    gateway.configure(config(url, **PATIENT))
    with gateway, gateway.connect("radio") as client:
        gateway.event("link open", seconds=40)
        air.adapter("down")
        gateway.event("link lost", seconds=30)
        air.adapter("up")
        gateway.event("link open", seconds=60, count=2)
        answers(client, b"after")
        air.adapter("down")
    with bare(guest, url) as gateway, gateway.connect("radio"):
        until(lambda: "hci0 is off" in said(gateway) and "CAP_NET_ADMIN" in said(gateway), 30, "what is missing")
