"""The driver applies a URL's line settings; a setting that the driver refuses is reported with the one in force."""
import json
import signal
import time

import pytest

from kit import until
from rig import PROGRAMS, UART, USB, BusRecord, FarEnd, GuestGateway, route

pytestmark = pytest.mark.usefixtures("adapter")

# The state of every port that the gateway has open, if the URL gives no other settings.
DEFAULTS = {
    "baud": 115200, "data": 8, "parity": "none", "stop": 1, "rtscts": False, "xonxoff": False, "hupcl": False,
    "clocal": True, "raw": True, "vmin": 1, "vtime": 0, "exclusive": True, "locked": True, "low-latency": True,
    "dtr": True, "rts": True,
}
UART_LOCK = "/var/lock/LCK..ttyS1"
OPEN = {"device": {"open": "always", "retry": "250ms..1s"}}


def words(told: dict) -> str:
    """The driver's settings in the form of `baudway status`."""
    flow = " rtscts" * told["rtscts"] + " xonxoff" * told["xonxoff"]
    return f"{told['baud']} {told['data']}{told['parity'][0].upper()}{told['stop']}{flow}"


def status(served: GuestGateway, name: str) -> dict:
    """The state of the route's link in `baudway status`."""
    answer = json.loads(served.command("status", str(served.path), "--json", seconds=30).stdout)
    return next(route["state"] for route in answer["routes"] if route["route"] == name)


def gateway(guest, **queries) -> GuestGateway:
    """A gateway with one route for each port, opened at once: gateway(guest, uart="baud=300", usb="parity=odd")."""
    ports = {"uart": UART, "usb": USB}
    return GuestGateway(guest, {"routes": {n: route(f"tty://{ports[n]}?{q}", **OPEN) for n, q in queries.items()}})


@pytest.mark.parametrize("uart, usb, differs", [
    ("", "", {}),
    ("baud=300&data=7&parity=even&stop=2", "baud=300&data=7&parity=even&stop=2",
     {"baud": 300, "data": 7, "parity": "even", "stop": 2}),
    ("baud=115200&parity=odd&flow=rtscts", "baud=115200&parity=odd&flow=rtscts",
     {"parity": "odd", "rtscts": True}),
    ("baud=31250&parity=mark&flow=xonxoff", "baud=31250&parity=mark&flow=xonxoff",
     {"baud": 31250, "parity": "mark", "xonxoff": True}),
    ("baud=57600&data=7&parity=space", "baud=57600&data=7&parity=space", {"baud": 57600, "data": 7, "parity": "space"}),
    ("low-latency=no&exclusive=no&hupcl=yes", "low-latency=no&exclusive=no&hupcl=yes",
     {"low-latency": False, "exclusive": False, "locked": False, "hupcl": True}),
    ("dtr=off&rts=off", "dtr=off&rts=off", {"dtr": False, "rts": False}),
    ("dtr=on&rts=off", "dtr=on&rts=off", {"rts": False}),
])
def test_a_line_setting_is_applied(guest, uart, usb, differs):
    with gateway(guest, uart=uart, usb=usb) as served:
        for name, device in ("uart", UART), ("usb", USB):
            served.event("link open", route=name)
            told = served.line(device)
            assert {k: told[k] for k in DEFAULTS} == {**DEFAULTS, **differs}, name
            assert told["baud-in"] == told["baud"]
            assert status(served, name)["line"] == words(told), name


def test_five_data_bits_get_one_and_a_half_stop_bits(guest):
    with gateway(guest, uart="data=5&stop=1.5") as served:
        served.event("link open")
        told = served.line(UART)
        assert (told["data"], told["stop"]) == (5, 2)  # CSTOPB, which means 1.5 here


@pytest.mark.parametrize("baud, divisor", [(31250, 0x0060), (250000, 0x000c), (1000000, 0x0003), (123456, 0x8018)])
def test_the_adapter_accepts_any_rate(guest, baud, divisor):
    """3 MHz through a divisor with eighths in its top bits: checks the request to the adapter, not only the driver's
    report."""
    with BusRecord(guest) as record, gateway(guest, usb=f"baud={baud}") as served:
        served.event("link open")
        assert served.line(USB)["baud"] == baud
        rates = [value for _, request, value in record.requests() if request == 3]
        assert rates[-1] == divisor, [hex(value) for value in rates]


@pytest.mark.parametrize("device, query, refused", [
    (UART, "baud=230400", "230400 bit/s (it runs at {baud})"),
    (USB, "baud=4000000", "4000000 bit/s (it runs at {baud})"),
    (USB, "data=6", "6 data bits"),
])
def test_a_refused_setting_is_reported_with_the_one_in_force(guest, device, query, refused):
    with gateway(guest, **{"uart" if device == UART else "usb": query}) as served:
        waiting = served.event("link waiting")
        told = json.loads(guest.ask(f"exec 3<>{device}; {PROGRAMS}/port line $$ {device}"))
        assert "the port does not support " + refused.format(**told) in waiting["error"], (waiting, told)
        assert not served.events("link open")


def test_a_reload_changes_the_settings_of_an_open_port(guest, adapter):
    """A setting that the driver refuses is reported with the one in force, while the client waits."""
    def configure(served, query):
        served.configure({"routes": {"usb": route(f"tty://{USB}?{query}", **OPEN)}})
        guest.run("true", fresh=True)  # otherwise the machine still sees the old file
        served.signal(1)

    with gateway(guest, usb="baud=9600") as served, served.connect("usb") as client:
        configure(served, "baud=250000&parity=even")
        served.event("reloaded")
        until(lambda: served.line(USB)["baud"] == 250000, 10, "the new rate")
        assert {k: served.line(USB)[k] for k in ("parity", "hupcl", "low-latency")} \
            == {"parity": "even", "hupcl": False, "low-latency": True}
        assert status(served, "usb")["line"] == "250000 8E1"
        client.sendall(b"at the new rate")
        assert adapter.read(15) == b"at the new rate"
        assert not served.events("link closed")

        configure(served, "baud=4000000")
        assert "does not support 4000000 bit/s (it runs at 9600)" in served.event("link waiting")["error"]
        configure(served, "baud=19200")
        served.event("link open", count=2)
        client.sendall(b"and back")
        assert adapter.read(8) == b"and back"
        assert not served.events("session ended")


@pytest.mark.parametrize("device", [UART, USB])
def test_rs485_without_driver_support_is_reported(guest, device):
    with gateway(guest, **{"uart" if device == UART else "usb": "rs485=rts-on-send"}) as served:
        waiting = served.event("link waiting")
        assert waiting["error"].startswith(f"ioctl TIOCSRS485 {device}: Inappropriate ioctl for device (ENOTTY)"), waiting
        assert "the driver has no RS-485 mode" in waiting["error"], waiting


def test_a_lock_file_is_honoured_and_written(guest):
    """As minicom, picocom and cu write it: /var/lock/LCK..ttyS1 with a process number."""
    guest.ask(f"printf '%10d\\n' 1 >{UART_LOCK}")
    with gateway(guest, uart="") as served:
        waiting = served.event("link waiting")
        assert UART_LOCK in waiting["error"], waiting
        guest.ask(f"rm {UART_LOCK}")
        served.event("link open")
        assert guest.ask(f"cat {UART_LOCK}").split() == guest.ask("busybox pidof baudway").split()
    assert guest.run(f"ls {UART_LOCK}").returncode != 0


def test_a_lock_file_is_removed_even_when_the_port_does_not_close(guest):
    """While the far end has stopped the port (XOFF), close(2) waits to send: longer than the gateway's shutdown may
    take."""
    with FarEnd(guest, "uart") as far, gateway(guest, uart="flow=xonxoff") as served, served.connect("uart") as client:
        served.event("link open")
        assert guest.run(f"ls {UART_LOCK}").returncode == 0
        far.write(b"\x13")

        def is_stopped():
            heard = len(far.data)
            client.sendall(b"?")
            time.sleep(0.5)
            return len(far.data) == heard

        until(is_stopped, 20, "the port stopped")
        client.sendall(bytes(1000))
        served.signal(signal.SIGTERM)
        until(lambda: guest.run(f"ls {UART_LOCK}").returncode != 0, 20, "no lock file", every=0.2)
        far.write(b"\x11")  # until then the kernel keeps the process
        assert served.wait(60) == 0
