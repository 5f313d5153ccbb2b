"""With BlueZ's daemon running: which program owns the list of services, and which one owns a link."""
import json

import pytest

from bluetoothd import bluetoothd
from kit import until
from radio import HM10, NUS, NUS_SERVICE, SERIAL
from rig import GuestGateway, route
from test_rfcomm import answers, config, said
from test_rfcomm_listener import channel, echoes, finds, limits, served
from test_scan import json_when


def test_without_compat_a_listener_reports_it_and_its_channel_works(air, guest):
    with bluetoothd(guest, air), GuestGateway(guest, served("rfcomm://?channel=9")) as gateway:
        channel(gateway)
        until(lambda: "--compat" in limits(gateway), 20, "advice")
        (shown,) = json.loads(gateway.command("status", "--json", seconds=30).stdout)["routes"]
        assert shown["listeners"][0]["state"] == "listening" and "--compat" in shown["listeners"][0]["limited"]
        assert "is limited: " in gateway.command("status", seconds=30).stdout
        air.order("dial phone 9")
        echoes(air, 100)
        air.order("leave phone")
        gateway.event("session ended", seconds=20)
        assert len(gateway.events("listener limited")) == 1


@pytest.fixture(scope="module")
def compat(devices, booted):
    """A bluetoothd that accepts other programs' records."""
    devices.reset()
    with bluetoothd(booted, devices, "--compat"):
        yield


def test_a_listener_is_in_bluetoothds_list_of_services(air, guest, compat):
    with GuestGateway(guest, served("rfcomm://?name=gps")) as gateway:
        number = channel(gateway)
        until(lambda: f"{number} gps" in finds(air), 20, "the record", every=0.5)
        air.order(f"dial phone {number}")
        echoes(air, 256 << 10)
        air.order("leave phone")
        gateway.event("session ended", seconds=20)
        assert limits(gateway) == ""
    assert "gps" not in finds(air)


def test_a_scan_finds_the_devices_on_the_air(air, guest, compat):
    addresses = {device["address"] for device in json_when(guest, {"test-nus", "HMSoft", "test-serial"})["devices"]}
    assert {NUS, HM10, SERIAL} <= addresses


def test_a_link_that_bluetoothd_uses_is_reported_busy_with_advice(air, guest, compat):
    both = config(f"ble://1800:128/{NUS}?address-type=random")
    both["routes"]["other"] = route(f"ble://{NUS_SERVICE}/{NUS}?address-type=random", device={"retry": "100ms..500ms"})
    with GuestGateway(guest, both) as gateway:
        with gateway.connect("radio") as first:  # a link made for a channel is bluetoothd's, too
            gateway.event("link open", route="radio", seconds=40)
            answers(first, b"hello")
            with gateway.connect("other"):
                until(lambda: "EBUSY" in said(gateway, "other"), 30, "EBUSY")
                assert f"bluetoothctl disconnect {NUS}" in said(gateway, "other")
