"""Line events of real drivers (modem lines, breaks) reach clients of `baudway.v1` that ask for them."""
import contextlib

import pytest

from control_channel import ControlChannel
from kit import connect, until
from listener_clients import finish
from rig import PROGRAMS, UART, FarEnd, GuestGateway

MODEM = "/dev/ttyACM0"
TIOCMIWAIT = "0x545c"
ALWAYS = {"open": "always", "retry": "250ms..1s"}


@contextlib.contextmanager
def control_channels(guest, device: str, count: int = 1, **more):
    """A gateway at the port, and clients of it."""
    lab = {"listen": "ws://0.0.0.0:0/lab", "endpoint": f"tty://{device}?baud=9600", "device": ALWAYS, **more}
    with GuestGateway(guest, {"routes": {"lab": lab}}) as gateway:
        gateway.event("link open")
        clients = [ControlChannel(connect(gateway.address("lab"))) for _ in range(count)]
        for client in clients:
            client.event("link", state="open")
            client.event("line", baud=9600)
        yield gateway, *clients
        for client in clients:
            if client.client.fileno() >= 0:
                finish(client.client)


def waiting(guest) -> int:
    """How many threads of the gateway wait in a driver for modem lines."""
    # A thread may end between the shell's listing of the folder and cat's open.
    return guest.ask("cat /proc/$(busybox pidof baudway)/task/*/syscall || true").count(TIOCMIWAIT)


def lines(event: dict) -> dict:
    return {name: event[name] for name in ("cts", "dsr", "dcd", "ri")}


def test_breaks_that_the_uart_receives_are_reported(guest):
    with FarEnd(guest, "uart"), control_channels(guest, UART, 2) as (gateway, client, other):
        assert client.answer("watch", on=True)["ok"]
        client.event("modem")
        for turn in (1, 2):
            guest.qmp("chardev-send-break", id="uart")
            assert client.event("errors")["breaks"] == turn
        assert other.answer("status")["ok"]
        assert not [text for text in other.texts if text.get("event") in ("errors", "modem")]


def test_changes_of_the_uarts_modem_lines_are_reported(guest):
    with FarEnd(guest, "uart"), control_channels(guest, UART) as (gateway, client):
        assert client.answer("watch", on=True)["ok"]
        client.event("modem")
        guest.ask(f"{PROGRAMS}/port loop $(busybox pidof baudway) {UART} on")
        assert client.answer("rts", on=False)["ok"]
        assert lines(client.event("modem", cts=False))["dsr"]
        assert client.answer("dtr", on=False)["ok"]
        client.event("modem", cts=False, dsr=False)
        guest.ask(f"{PROGRAMS}/port loop $(busybox pidof baudway) {UART} off")


def test_a_disconnect_ends_the_clients_break_and_reverts_its_settings(guest):
    with FarEnd(guest, "uart") as far, control_channels(guest, UART, 2) as (gateway, client, other):
        assert client.answer("line", baud=300, parity="even")["ok"]
        assert gateway.line(UART)["baud"] == 300 and gateway.line(UART)["parity"] == "even"
        assert client.answer("break", on=True)["ok"]
        finish(client.client)
        other.event("line", baud=300, parity="even")
        other.event("line", baud=9600, parity="none")
        assert gateway.line(UART)["baud"] == 9600
        other.send(b"heard")
        assert far.read(5) == b"heard"
        assert other.answer("purge", what="both")["ok"]


@pytest.fixture(scope="module")
def modem(booted):
    """A CDC ACM modem, whose far end is a gadget of the same machine: /dev/ttyGS0. DSR and DCD are up while that is
    open."""
    for module in ("dummy_hcd", "cdc_acm", "usb_f_acm", "g_serial"):
        booted.ask(f"modprobe {module}")
    until(lambda: booted.run(f"test -c {MODEM} && test -c /dev/ttyGS0").returncode == 0, 20, "the modem's nodes")
    yield
    booted.ask("rmmod g_serial dummy_hcd cdc_acm")


def test_changes_of_modem_lines_are_reported_when_the_driver_reports_them(guest, modem):
    with control_channels(guest, MODEM) as (gateway, client):
        assert waiting(guest) == 0
        assert client.answer("watch", on=True)["ok"]
        assert lines(client.event("modem")) == {"cts": True, "dsr": False, "dcd": False, "ri": False}  # CTS: always up
        until(lambda: waiting(guest) == 1, 10, "a thread in the driver")
        far = guest.call("exec 3<>/dev/ttyGS0; echo open; exec /run/guest/busybox sleep 600")
        assert client.event("modem", dsr=True, dcd=True)["changes"] > 0
        guest.ask(f"{PROGRAMS}/port break /dev/ttyGS0")
        assert client.event("errors")["breaks"] > 0
        far.close()
        client.event("modem", dsr=False, dcd=False)
        assert client.answer("watch", on=False)["ok"]
        until(lambda: waiting(guest) == 0, 10, "no thread in the driver")


def test_an_unplugged_modem_is_lost_while_a_thread_waits_in_its_driver(guest, modem):
    with control_channels(guest, MODEM) as (gateway, client):
        assert client.answer("watch", on=True)["ok"]
        until(lambda: waiting(guest) == 1, 10, "a thread in the driver")
        guest.ask("rmmod g_serial")
        client.event("link", state="waiting")
        guest.ask("modprobe g_serial")
        client.event("link", state="open")
        client.event("modem")
        until(lambda: waiting(guest) == 1, 10, "a thread in the driver")
        # A gateway that is stopping, as this one is now, does not wait for that thread.
