"""bluetoothd starts and stops while the gateway runs: which of them owns the bonds then, and clients that stay."""
from bluetoothd import bluetoothd
from kit import until
from radio import HM10, LOCKED
from rig import GuestGateway
from test_bonds import BONDS, URL, talks
from test_rfcomm import answers, config, said


def test_bluetoothd_starts_and_stops_while_clients_stay(air, guest):
    url = f"ble://FFE0/{HM10}?address-type=public"
    with GuestGateway(guest, config(url, absent="hold")) as gateway, gateway.connect("radio") as client:
        gateway.event("link open", seconds=40)
        answers(client, b"before")
        with bluetoothd(guest, air):
            answers(client, b"beside")  # over the same link, or the next
        gateway.event("link lost", seconds=30)  # here the adapter is removed, and the link with it
        count = len(gateway.events("link open"))
        air.plug(on=False)
        gateway.event("link open", seconds=60, count=count + 1)
        answers(client, b"after")
        assert len(gateway.events("session opened")) == 1


def test_bluetoothds_bonds_are_used_while_it_runs_and_ours_afterwards(air, guest):
    air.pull()
    air.plug(on=False)
    with GuestGateway(guest, config(URL)) as gateway, gateway.connect("radio") as client:
        talks(gateway, client)
        gateway.event("bond kept", seconds=30)
    bonds = guest.ask(f"cat {BONDS}")
    air.pull()  # otherwise the kernel keeps our keys, and the adapter is on before bluetoothd sees it
    air.plug(on=False)
    with bluetoothd(guest, air), GuestGateway(guest, config(URL)) as gateway, gateway.connect("radio"):
        # bluetoothd does not know this bond or its keys; without an agent it does not pair.
        until(lambda: "bluetoothd" in said(gateway), 60, "whose business it is")
    assert guest.ask(f"cat {BONDS}") == bonds
    paired = air.order("paired locked")
    air.plug(on=False)
    with GuestGateway(guest, config(URL)) as gateway, gateway.connect("radio") as client:
        talks(gateway, client)
    assert LOCKED in bonds and air.order("paired locked") == paired
