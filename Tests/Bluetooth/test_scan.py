"""`baudway scan`: lists the devices on the air, and its URLs work as printed."""
import json
import shlex
import signal

import pytest

from kit import binary, until
from radio import HERE, HM10, LOCKED, MUTE, NUS, NUS_SERVICE, PRIVATE, SERIAL, SHY

NUS_URL = f"ble://{NUS_SERVICE}/{NUS}?address-type=random"
UNAVAILABLE, NOPERM = 69, 77


def scan(guest, *words: str, prefix: str = "", seconds: float = 60):
    return guest.run(f"{prefix} {binary()} scan {shlex.join(words)}", seconds)


def json_when(guest, names: set[str], *words: str) -> dict:
    """Scans longer and longer, until all of them are known with name and services."""
    for length in (2, 5, 15, 40):
        done = scan(guest, "--json", *words, "--seconds", str(length), seconds=length + 60)
        assert done.returncode == 0, done
        told = json.loads(done.stdout)
        if names <= {device.get("name") for device in told["devices"] if device["services"]}:
            return told
    raise AssertionError(done)


def echoes(guest, pasted: str):
    """Uses a URL as a shell reads it when a printed line is pasted."""
    with guest.call(f"(printf hello; exec sleep 60) | {binary()} connect --timeout 30s {pasted}") as call:
        call.until(lambda text: text == "hello", 40)


def test_a_scan_ends_when_its_output_pipe_is_closed(air, guest):
    guest.ask(f"{binary()} scan --le --service 1112 --seconds 300 | true", 100)  # finds nothing, so no write fails


def test_devices_are_printed_as_they_are_found_and_their_urls_work(air, guest):
    air.pull()
    air.plug(on=False)  # the scan switches it on
    with guest.call(f"exec {binary()} scan --seconds 60") as call:
        names = [b"test-nus", b"HMSoft", b"test-shy", b"test-locked", b"test-serial", b"test-mute"]
        call.until(lambda text: all(name.decode() in text for name in names), 40)
        until(lambda: air.order("seeks") != "nothing", 20, "a search that is under way")
        call.signal(signal.SIGTERM)
        assert call.wait(10) == 0
        lines = [line.split("\t") for line in call.output.decode().splitlines()]
    until(lambda: air.order("seeks") == "nothing", 20, "a search that has ended")
    assert {len(line) for line in lines} == {6}
    urls = {line[5] for line in lines}
    assert {
        f"'{NUS_URL}'", f"ble://FFE0/{HM10}", f"'ble://FFF0/{SHY}?address-type=random'", f"'ble://FFE0/{LOCKED}?address-type=random'",
        f"rfcomm://{SERIAL}", f"'rfcomm://{SERIAL}?uuid={PRIVATE}'", f"rfcomm://{MUTE}"} <= urls
    assert [NUS, "LE random", "-50", "test-nus", "Nordic UART", f"'{NUS_URL}'"] in lines
    assert [SERIAL, "Classic", "-50", "test-serial", f"Serial Port, {PRIVATE}", f"rfcomm://{SERIAL}"] in lines
    for pasted in (f"'{NUS_URL}'", f"ble://FFE0/{HM10}", f"rfcomm://{SERIAL}", f"'rfcomm://{SERIAL}?uuid={PRIVATE}'"):
        echoes(guest, pasted)


def test_a_scan_prints_json_on_request(air, guest):
    told = json_when(guest, {"test-nus", "HMSoft", "test-shy", "test-locked"}, "--le")
    assert told["adapter"] == "hci0"
    devices = {device["address"]: device for device in told["devices"]}
    assert set(devices) >= {NUS, HM10, SHY, LOCKED}
    assert devices[NUS] == {
        "address": NUS, "kind": "le", "address-type": "random", "name": "test-nus", "rssi": -50, "services": [NUS_SERVICE],
        "endpoints": [{"url": NUS_URL, "service": "Nordic UART", "sure": True}]}  # fmt: skip
    assert devices[HM10]["address-type"] == "public"
    (only,) = json_when(guest, {"test-serial"}, "--classic", "--adapter", "hci0", "--service", "1101")["devices"]
    assert (only["address"], only["kind"], only["name"]) == (SERIAL, "classic", "test-serial")
    assert only["endpoints"] == [{"url": f"rfcomm://{SERIAL}?adapter=hci0", "service": "Serial Port", "sure": True}]


def test_a_scan_on_a_terminal_prints_a_table(air, guest):
    with guest.call(f"exec /usr/bin/python3 {HERE}/programs/terminal.py {binary()} scan --le --seconds 3600") as call:
        call.until(lambda text: "HMSoft" in text and "test-nus" in text and NUS_SERVICE in text, 60)
        call.signal(signal.SIGTERM)
        assert call.wait(20) == 0, bytes(call.output)
        live, left = call.output.decode().split("\x1b[?1049l")
    assert live.startswith("\x1b[?1049h") and "Listening on hci0, " in live and " s left (" in live and "HMSoft" in live
    assert "HMSoft" in left and f"\x1b[32m  'ble://{NUS_SERVICE}/{NUS}?address-type=random'\x1b[0m\r\n" in left


@pytest.mark.parametrize("words, prefix, code, told", [
    (["--adapter", "hci7"], "", UNAVAILABLE, "there is no adapter hci7, only hci0 (00:AA:01:00:00:00)"),
    ([], "setpriv --bounding-set -all", NOPERM, "scanning needs CAP_NET_ADMIN"),
])
def test_a_reason_that_prevents_scanning_is_reported(air, guest, words, prefix, code, told):
    if prefix:
        scan(guest, "--le", "--seconds", "1")  # Low Energy is on now
    done = scan(guest, *words, "--seconds", "1", prefix=prefix)
    assert done.returncode == code and told in done.stderr.decode(), done
    assert done.stdout == b""


def test_a_scan_without_an_adapter_ends_at_once(air, guest):
    air.pull()
    done = scan(guest, "--json")
    assert (done.returncode, done.stdout) == (UNAVAILABLE, b"")
    assert "this machine has no Bluetooth adapter" in done.stderr.decode()


@pytest.mark.parametrize("order, told", [("pull", b"the adapter was just removed"), ("down", b"the adapter was switched off")])
def test_a_scan_reports_a_lost_adapter(air, guest, order, told):
    with guest.call(f"exec {binary()} scan --le --seconds 60") as call:
        call.until(lambda text: "HMSoft" in text, 20)
        if order == "pull":
            air.pull()
        else:
            air.adapter(order)
        assert call.wait(20) == 0
        assert told in call.errors
