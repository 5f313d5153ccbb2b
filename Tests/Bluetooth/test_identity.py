"""An open device's identity in the log and in `status`; and the terminal of `connect` when the radio link is lost."""
import json
import signal

import pytest

from kit import binary, until
from radio import HERE, HM10, NUS, NUS_SERVICE, SERIAL
from rig import GuestGateway
from test_rfcomm import answers, config

IOERR = 74


def device(gateway) -> dict | None:
    (route,) = json.loads(gateway.command("status", "--json", seconds=30).stdout)["routes"]
    return route["state"].get("device")


def test_a_device_is_described_by_its_own_information(air, guest):
    with GuestGateway(guest, config(f"ble://{NUS_SERVICE}?name=test-nus")) as gateway, gateway.connect("radio") as client:
        gateway.event("link open", seconds=40)
        answers(client, b"hello")
        told = {"name": "test-nus", "manufacturer": "ACME", "model": "N-1", "serial": "00042", "firmware": "1.2"}
        until(lambda: any("firmware" in event for event in gateway.events("device known")), 30, "all of it")
        event = gateway.events("device known")[-1]
        assert {key: event.get(key) for key in told} == told
        assert (event["dbm"], event["mtu"]) == ("-50", "517")
        assert device(gateway) == {**told, "rssi": -50, "mtu": 517}
        table = gateway.command("status", seconds=30).stdout
        assert "device: test-nus, ACME N-1, serial 00042, firmware 1.2, -50 dBm, MTU 517" in table
        answers(client, b"still there")


@pytest.mark.parametrize("url", [f"ble://FFE0/{HM10}?address-type=public", f"ble://FFE0/{HM10}?address-type=public&write=request"])
def test_a_device_without_information_works_as_well(air, guest, url):
    with GuestGateway(guest, config(url)) as gateway, gateway.connect("radio") as client:
        gateway.event("link open", seconds=40)
        for number in range(20):
            answers(client, b"%d" % number)
        until(lambda: device(gateway) == {"name": "test-hm10", "rssi": -50, "mtu": 517}, 30, "its name and signal")


@pytest.mark.parametrize("url", [f"rfcomm://{SERIAL}", f"ble://FFE0/{HM10}?address-type=public"])
def test_status_shows_the_current_signal_strength_and_the_name(air, guest, url):
    with GuestGateway(guest, config(url)) as gateway, gateway.connect("radio") as client:
        gateway.event("link open", seconds=40)
        name = "test-serial" if "rfcomm" in url else "test-hm10"
        until(lambda: {"name": name, "rssi": -50}.items() <= (device(gateway) or {}).items(), 30, "its name and signal")
        told = len(gateway.events("device known"))
        air.order("strength -71")
        # The kernel asks the controller again after some seconds.
        until(lambda: "-71 dBm" in gateway.command("status", seconds=30).stdout, 30, "what has changed", every=0.5)
        assert len(gateway.events("device known")) == told
        answers(client, b"still there")


@pytest.mark.parametrize("url, name, end", [
    (f"ble://{NUS_SERVICE}/{NUS}?address-type=random", "nus", "lost link"), (f"rfcomm://{SERIAL}:3", "serial", "lost link"),
    (f"rfcomm://{SERIAL}:3", "serial", "SIGHUP"),
])
def test_connect_restores_the_terminal_when_the_link_is_lost(air, guest, url, name, end):
    with guest.call(f"exec /usr/bin/python3 {HERE}/programs/terminal.py {binary()} connect '{url}' --timeout 30s") as call:
        call.until(lambda text: "Ctrl-] quits." in text and "RAW" in text, 60)
        if end == "SIGHUP":
            guest.ask("busybox kill -HUP $(busybox pidof baudway)")
        else:
            air.order(f"lose {name}")
        assert call.wait(30) == (128 + signal.SIGHUP if end == "SIGHUP" else IOERR), bytes(call.output)
        assert call.output.decode().splitlines()[-1] == "as before"
