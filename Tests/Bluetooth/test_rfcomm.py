"""RFCOMM endpoints: the gateway in the emulated machine, a client of the host, and a device on the air that echoes."""
import hashlib
import random

import pytest

from kit import receive, reset, run_all, until
from radio import MUTE, NOBODY, PRIVATE, SERIAL
from rig import GuestGateway, route


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def config(url: str, **device) -> dict:
    return {"routes": {"radio": route(url, device={"retry": "100ms..500ms", "connect-timeout": "20s", **device})}}


def answers(client, text: bytes):
    client.settimeout(30)
    client.sendall(text)
    assert receive(client, len(text)) == text


@pytest.mark.parametrize("url", [
    f"rfcomm://{SERIAL}:3", f"rfcomm://{SERIAL}:9?security=low&adapter=hci0", f"rfcomm://{SERIAL}",
    f"rfcomm://{SERIAL}?uuid=00001101&adapter=00:AA:01:00:00:00", f"rfcomm://{SERIAL}?uuid={PRIVATE}",
], ids=["given", "not in a record", "looked up", "by 32 bits, on an adapter by address", "by 128 bits"])
def test_every_byte_is_echoed(air, guest, url):
    size = 256 << 10
    data = random.Random(url).randbytes(size)
    with GuestGateway(guest, config(url)) as gateway:
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=30)
            client.settimeout(80)
            results = run_all(lambda: client.sendall(data), lambda: digest(receive(client, size)), seconds=90)
            assert results[1] == digest(data)
    report = gateway.events("session ended")[0]
    assert (int(report["up"]), int(report["down"]), int(report["dropped"])) == (size, size, 0)


def test_unrequested_output_arrives_up_to_the_last_byte(air, guest):
    with GuestGateway(guest, config(f"rfcomm://{SERIAL}:7", absent="close")) as gateway:
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=30)
            client.settimeout(30)
            air.order("say serial 7 hello")
            assert receive(client, 5) == b"hello"
            air.order("say serial 7 farewell")
            air.order("close serial 7")
            assert receive(client, 8) == b"farewell"
            assert client.recv(1) == b""
    assert gateway.events("session ended")[0]["reason"] == "device-lost"


@pytest.mark.parametrize("fault", ["hangup", "lose"])
def test_a_lost_link_is_reopened_and_kept_input_is_delivered(air, guest, fault):
    with GuestGateway(guest, config(f"rfcomm://{SERIAL}:3", absent="hold")) as gateway:
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=30)
            answers(client, b"before")
            air.order("silent serial 1") if fault == "lose" else None
            air.order(f"{fault} serial")
            gateway.event("link lost", seconds=30)
            client.sendall(b"meanwhile")
            air.order("silent serial 0")
            gateway.event("link open", seconds=60, count=2)
            client.settimeout(30)
            assert receive(client, 9) == b"meanwhile"
            answers(client, b"after")
        assert len(gateway.events("session opened")) == 1


def test_a_switched_off_adapter_is_switched_on(air, guest):
    with GuestGateway(guest, config(f"rfcomm://{SERIAL}", absent="hold")) as gateway:
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=30)
            air.adapter("down")
            gateway.event("link lost", seconds=30)
            gateway.event("link open", seconds=60, count=2)  # the gateway switches it on
            answers(client, b"after")


@pytest.mark.parametrize("url, words", [
    (f"rfcomm://{NOBODY}:3", ["EHOSTDOWN", "out of range"]),
    (f"rfcomm://{NOBODY}", ["EHOSTDOWN", "out of range"]),
    (f"rfcomm://{SERIAL}:8", ["ECONNREFUSED", "nothing listens on channel 8"]),
    (f"rfcomm://{SERIAL}?uuid=1112", ["service 1112", "offers no such service"]),
    (f"rfcomm://{MUTE}", ["offers no such service"]),
    (f"rfcomm://{SERIAL}?adapter=hci7", ["no adapter hci7, only hci0"]),
    (f"rfcomm://{SERIAL}:3?security=high", ["EACCES", "bluetoothd's agent"]),
])
def test_an_unreachable_device_is_reported_with_advice(air, guest, url, words):
    with GuestGateway(guest, config(url)) as gateway:
        with gateway.connect("radio"):
            until(lambda: all(word in said(gateway) for word in words), 40, f"{words}")


def test_a_channel_in_use_is_reported_busy(air, guest):
    both = config(f"rfcomm://{SERIAL}:3")
    both["routes"]["other"] = route(f"rfcomm://{SERIAL}", device={"retry": "100ms..500ms"})
    with GuestGateway(guest, both) as gateway:
        with gateway.connect("radio") as first:
            gateway.event("link open", route="radio", seconds=30)
            with gateway.connect("other") as second:
                until(lambda: "EBUSY" in said(gateway, "other"), 30, "EBUSY")
                assert "another program" in said(gateway, "other")
                reset(first)  # a client that only finishes sending would still receive
                gateway.event("link open", route="other", seconds=30)
                answers(second, b"mine now")


def said(gateway: GuestGateway, route: str = "radio") -> str:
    """All reports of attempts to open a route's link."""
    return " ".join(str(event) for event in gateway.events("link waiting", route=route))
