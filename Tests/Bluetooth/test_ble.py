"""BLE endpoints: the gateway in the emulated machine, a client of the host, and devices on the air that echo."""
import contextlib
import random
import socket
import threading
import time

import pytest

from kit import binary, receive, run_all, until
from radio import HM10, LOCKED, NOBODY, NUS, NUS_SERVICE
from rig import GuestGateway
from test_rfcomm import answers, config, digest, said


@pytest.mark.parametrize("url, size", [
    (f"ble://1800:128/{NUS}?address-type=random", 256 << 10),
    (f"ble://1800:131/{NUS}?address-type=random&adapter=hci0", 2 << 10),
    (f"ble://1800:132/{NUS}?address-type=random", 64 << 10),  # Linux could never send a message that fills its buffer
    (f"ble://{NUS_SERVICE}/{NUS}?profile=nus&address-type=random", 256 << 10),
    (f"ble://FFE0/{HM10}?profile=hm10&address-type=public", 256 << 10),
    (f"ble://FFE0/{HM10}?write=request&mtu=185&adapter=00:AA:01:00:00:00", 8 << 10),
    ("ble://FFF0?rx=FFF1&tx=FFF2", 2 << 10),
    ("ble://FFE0?name=HMSoft&mtu=23", 2 << 10),
], ids=["channel", "channel, short messages", "channel, the longest messages", "NUS", "HM-10", "address scanned for, requests", "service scanned for, indications",
        "name scanned for, the least MTU"])
def test_every_byte_is_echoed(air, guest, url, size):
    echoes(guest, url, size)


def echoes(guest, url: str, size: int):
    data = random.Random(url).randbytes(size)
    with GuestGateway(guest, config(url)) as gateway:
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=40)
            client.settimeout(80)
            results = run_all(lambda: client.sendall(data), lambda: digest(receive(client, size)), seconds=90)
            assert results[1] == digest(data)
    report = gateway.events("session ended")[0]
    assert (int(report["up"]), int(report["down"]), int(report["dropped"])) == (size, size, 0)


@pytest.mark.parametrize("url, name, size", [
    (f"ble://1800:128/{NUS}?address-type=random", "nus", 48 << 10),
    (f"ble://FFE0/{HM10}?profile=hm10&address-type=public", "hm10", 48 << 10),
], ids=["channel", "HM-10"])
def test_input_of_a_client_that_closes_at_once_is_delivered(air, guest, url, name, size):
    before = int(air.order(f"heard {name}"))
    with GuestGateway(guest, config(url)) as gateway:
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=40)
            air.order("pace 20")  # nearly all of it is in the kernel when the client leaves
            client.sendall(bytes(size))
        until(lambda: int(air.order(f"heard {name}")) - before == size, 60, "every byte", every=0.1)
    air.order("pace 0")


def test_a_channel_with_encryption_waits_for_it(air, guest):
    air.pull()
    air.plug(on=False)
    echoes(guest, f"ble://1800:128/{LOCKED}?address-type=random&security=medium", 4 << 10)


def test_a_device_that_wants_encryption_is_paired(air, guest):
    air.pull()
    air.plug(on=False)  # the kernel only pairs on adapters that its management channel switched on
    echoes(guest, f"ble://FFE0/{LOCKED}?address-type=random", 256 << 10)
    air.order("hangup locked")
    echoes(guest, f"ble://FFE0/{LOCKED}?address-type=random&security=medium", 4 << 10)


def test_an_adapter_that_cannot_pair_is_reported_with_advice(air, guest):
    air.pull()
    air.plug()  # by the ioctl that is older than the management channel
    url = f"ble://FFE0/{LOCKED}?address-type=random"
    with GuestGateway(guest, config(url)) as gateway, gateway.connect("radio") as client:
        until(lambda: "'hciconfig hci0 down'" in said(gateway), 40, "what to do")
        air.adapter("down")
        gateway.event("link open", seconds=60)
        answers(client, b"hello")


def test_lost_notifications_of_a_slow_gateway_are_reported_and_the_link_stays(air, guest):
    with GuestGateway(guest, config(f"ble://{NUS_SERVICE}/{NUS}?address-type=random")) as gateway:
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=40)
            answers(client, b"hello")
            air.order("echo nus 0")
            pid = guest.ask("busybox pidof baudway").split()[0]
            client.settimeout(100)
            reader = threading.Thread(target=lambda: list(iter(lambda: client.recv(1 << 16), b"")), daemon=True)
            reader.start()
            event = None
            for _ in range(5):  # a slow host may need long to send as much as is lost
                guest.ask(f"kill -STOP {pid}")
                air.order("flood nus 600000")  # about three times what the kernel keeps
                time.sleep(3)
                guest.ask(f"kill -CONT {pid}")
                with contextlib.suppress(AssertionError):
                    event = gateway.event("endpoint says", seconds=10)
                    break
            assert event and event["level"] == "warning" and "notifications were lost" in event["text"]
            assert not gateway.events("link lost") and not gateway.events("link closed")
            assert " notifications lost" in gateway.command("status", seconds=30).stdout
            client.shutdown(socket.SHUT_RDWR)
            reader.join(30)


def test_unrequested_output_of_the_device_arrives(air, guest):
    with GuestGateway(guest, config(f"ble://{NUS_SERVICE}/{NUS}?address-type=random")) as gateway:
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=40)
            client.settimeout(30)
            air.order("tell nus hello")
            assert receive(client, 5) == b"hello"


@pytest.mark.parametrize("url, fault", [
    (f"ble://{NUS_SERVICE}/{NUS}?address-type=random", "hangup"), (f"ble://1800:128/{NUS}?address-type=random", "lose"),
])
def test_a_lost_link_is_reopened_and_kept_input_is_delivered(air, guest, url, fault):
    with GuestGateway(guest, config(url, absent="hold")) as gateway:
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=40)
            answers(client, b"before")
            air.order("silent nus 1")
            air.order(f"{fault} nus")
            gateway.event("link lost", seconds=30)
            client.sendall(b"meanwhile")
            air.order("silent nus 0")
            gateway.event("link open", seconds=60, count=2)
            client.settimeout(30)
            assert receive(client, 9) == b"meanwhile"
            answers(client, b"after")
        assert len(gateway.events("session opened")) == 1


@pytest.mark.parametrize("url, words", [
    (f"ble://FFE0/{NOBODY}?address-type=public", ["ETIMEDOUT", "no answer within 6.0 seconds", "address-type=random"]),
    ("ble://FFE9", ["offers service FFE9", "it was not found within 8.0 seconds"]),
    (f"ble://1800:129/{NUS}?address-type=random", ["ECONNREFUSED", "nothing listens on channel 129"]),
    (f"ble://FFE5/{HM10}?address-type=public", ["no service FFE5"]),
    (f"ble://FFE0/{HM10}?address-type=public&profile=fff0", ["no characteristic FFF1"]),
    (f"ble://FFE0/{HM10}?adapter=hci7", ["no adapter hci7, only hci0"]),
])
def test_an_unreachable_device_is_reported_with_advice(air, guest, url, words):
    # This timeout is for connecting: a scan has its own.
    with GuestGateway(guest, config(url, **{"connect-timeout": "6s"})) as gateway:
        with gateway.connect("radio"):
            until(lambda: all(word in said(gateway) for word in words), 40, f"{words}")


def bare(guest, url: str, *capabilities: str) -> GuestGateway:
    """A gateway with these capabilities, and no others."""
    gateway = GuestGateway(guest, config(url))
    gateway.prefix += ["setpriv", "--bounding-set", ",".join(["-all", *capabilities])]
    return gateway


def test_no_capability_is_needed_where_the_adapter_is_ready_and_the_device_is_named(air, guest):
    url = f"ble://FFE0/{HM10}"  # without the right to scan, the address counts as public
    air.pull()
    air.plug()
    with bare(guest, url) as gateway, gateway.connect("radio"):
        until(lambda: "Low Energy switched off" in said(gateway), 30, "what is missing")
    with GuestGateway(guest, config(url)) as gateway, gateway.connect("radio"):
        gateway.event("link open", seconds=40)
    with bare(guest, url) as gateway, gateway.connect("radio") as client:
        gateway.event("link open", seconds=40)
        answers(client, b"hello")
    with bare(guest, "ble://FFE0") as gateway, gateway.connect("radio"):
        until(lambda: "scanning needs CAP_NET_ADMIN" in said(gateway), 30, "what is missing")
    joined = guest.run(f"setpriv --bounding-set=-all {binary()} connect ble://FFE0 </dev/null", 60)
    assert joined.returncode == 77 and b"scanning needs CAP_NET_ADMIN" in joined.stderr


def test_a_single_capability_is_enough_to_switch_on_scan_and_pair(air, guest):
    air.pull()
    air.plug(on=False)
    with bare(guest, "ble://FFE0?name=test-locked", "+net_admin") as gateway, gateway.connect("radio") as client:
        gateway.event("link open", seconds=40)
        answers(client, b"hello")
