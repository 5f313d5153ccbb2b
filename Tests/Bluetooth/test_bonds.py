"""Bonds without bluetoothd: kept in a file, loaded into the kernel again, and named when they are stale."""
from kit import until
from radio import HM10, LOCKED, SERIAL, SHY
from rig import GuestGateway
from test_rfcomm import answers, config, said

URL = f"ble://FFE0/{LOCKED}?address-type=random"
BONDS = "/var/lib/baudway/bonds"


def talks(gateway, client, count: int = 1):
    gateway.event("link open", seconds=60, count=count)
    answers(client, b"secret")


def check_stale_bond_is_renewed(air, guest, gateway, client, name, address):
    air.order(f"forget {name}")
    air.order(f"hangup {name}")
    gateway.event("link lost", seconds=30)
    until(lambda: f"is stale: one side has lost it. Remove line 3 of {BONDS}" in said(gateway), 60, "its place")
    guest.ask(f"sed -i /{address}/d {BONDS}")
    talks(gateway, client, count=2)


def test_a_bond_survives_a_restart_and_replugs(air, guest):
    before = int(air.order("paired locked"))
    air.pull()
    air.plug(on=False)  # the kernel only pairs on adapters that its management channel switched on
    with GuestGateway(guest, config(URL)) as gateway, gateway.connect("radio") as client:
        talks(gateway, client)
        assert gateway.event("bond kept", seconds=30)["device"] == LOCKED
    assert guest.ask(f"stat -c '%a %u' {BONDS} && stat -c %a /var/lib/baudway").split() == ["600", "0", "700"]
    line = [line for line in guest.ask(f"cat {BONDS}").splitlines() if LOCKED in line]
    key = line[0].split("ltk:")[1].split()[0]
    assert len(line) == 1 and key.lower() not in " ".join(gateway.lines).lower()
    air.pull()
    air.plug(on=False)
    with GuestGateway(guest, config(URL)) as gateway, gateway.connect("radio") as client:
        talks(gateway, client)
        air.pull()
        gateway.event("link lost", seconds=30)
        air.plug(on=False)
        talks(gateway, client, count=2)
    assert int(air.order("paired locked")) == before + 1


def test_an_rfcomm_bond_survives_restart_and_replug_and_is_reported_when_stale(air, guest):
    url, before = f"rfcomm://{SERIAL}:3?security=medium", int(air.order("paired serial"))
    air.pull()
    air.plug(on=False)
    with GuestGateway(guest, config(url)) as gateway, gateway.connect("radio") as client:
        talks(gateway, client)
        assert gateway.event("bond kept", seconds=30)["device"] == SERIAL
    air.pull()
    air.plug(on=False)
    with GuestGateway(guest, config(url)) as gateway, gateway.connect("radio") as client:
        talks(gateway, client)
        assert int(air.order("paired serial")) == before + 1
        check_stale_bond_is_renewed(air, guest, gateway, client, "serial", SERIAL)
        gateway.event("bond kept", seconds=30)
    air.pull()  # the kernel's keys go with the adapter


def test_a_refused_unencrypted_write_is_reported_and_later_writes_are_encrypted(air, guest):
    air.pull()
    air.plug(on=False)
    air.order("locks shy 1")
    with GuestGateway(guest, config(f"ble://FFF0/{SHY}?address-type=random")) as gateway, gateway.connect("radio") as client:
        gateway.event("link open", seconds=60)
        client.sendall(b"lost")
        assert "add security=medium" in gateway.event("endpoint says", seconds=30)["text"]
        gateway.event("link lost", seconds=30)
        talks(gateway, client, count=2)
        assert gateway.event("bond kept", seconds=30)["device"] == SHY


def test_a_stale_bond_is_reported_and_renewed_without_a_restart(air, guest):
    air.pull()
    air.plug(on=False)
    with GuestGateway(guest, config(URL)) as gateway, gateway.connect("radio") as client:
        talks(gateway, client)
        gateway.event("bond kept", seconds=30)
        check_stale_bond_is_renewed(air, guest, gateway, client, "locked", LOCKED)
        gateway.event("bond kept", seconds=30, count=2)


def test_a_device_that_does_not_pair_is_reported_and_retried(air, guest):
    air.pull()
    air.plug(on=False)
    air.order("pairs locked 0")
    with GuestGateway(guest, config(URL)) as gateway, gateway.connect("radio") as client:
        until(lambda: "the device refused to pair" in said(gateway), 60, "whose fault it is")
        air.order("pairs locked 1")
        talks(gateway, client)


def test_a_pairing_request_of_an_open_device_is_answered(air, guest):
    air.pull()
    air.plug(on=False)
    with GuestGateway(guest, config(f"ble://FFE0/{HM10}?address-type=public")) as gateway, gateway.connect("radio") as client:
        talks(gateway, client)
        air.order("asks hm10")
        assert gateway.event("bond kept", seconds=60)["device"] == HM10
        answers(client, b"still there")


def test_a_file_that_is_no_bonds_file_is_reported_and_kept(air, guest):
    air.pull()
    air.plug(on=False)
    guest.ask(f"mkdir -p -m 700 /var/lib/baudway; (umask 077; echo '{LOCKED} is mine' >{BONDS})")
    with GuestGateway(guest, config(URL)) as gateway, gateway.connect("radio") as client:
        talks(gateway, client)
        assert f"{BONDS}:1: a bond has" in gateway.event("bonds not kept", seconds=30)["error"]
    assert guest.ask(f"cat {BONDS}") == f"{LOCKED} is mine\n"
