"""RFC 2217 to real drivers: each parameter arrives there and is answered with the value in force, and what the drivers
report of the line reaches the client."""
import contextlib
import threading

import pytest

from com_port import (
    BAUD, BREAK_OFF, BREAK_ON, CONTROL, DATA, DTR_OFF, DTR_ON, FLOWS, LINE_MASK, LINE_STATE, MODEM_STATE, PARITIES,
    PARITY, RTS_OFF, RTS_ON, STOP, ComPort)
from control_channel import ControlChannel
from kit import connect, until
from listener_clients import finish
from rig import PROGRAMS, UART, USB, BusRecord, FarEnd, GuestGateway, Modem
from test_modem_lines import Wire


# Requests of the FTDI's driver (rig.BusRecord): the rate's divisor; data bits, parity, stop bits and break together.
SET_RATE, SET_DATA = 3, 4
QUERIES = {BREAK_ON: 4, BREAK_OFF: 4, DTR_ON: 7, DTR_OFF: 7, RTS_ON: 10, RTS_OFF: 10}


@contextlib.contextmanager
def com_port(guest, endpoint: str, **device):
    """A gateway at the port, and a client of it."""
    config = {"listen": ["telnet://0.0.0.0:0", "ws://0.0.0.0:0/port?role=monitor"], "endpoint": endpoint,
              "device": {"open": "always", "retry": "250ms..1s", **device}}
    with GuestGateway(guest, {"routes": {"port": config}}) as gateway:
        gateway.event("link open")
        with ComPort(gateway.address("port")) as client:
            yield gateway, client


def is_set(client: ComPort, code: int, value: int):
    """The request is answered with its value, and so is a query after it."""
    assert client.set(code, value) == value
    assert client.set(code, QUERIES.get(value, 0) if code == CONTROL else 0) == value


# 16550.


def test_each_parameter_of_a_16550_is_set_and_answered_as_it_is_in_force(guest):
    with FarEnd(guest, "uart"), com_port(guest, f"tty://{UART}") as (gateway, client):
        for baud, data, parity, stop, flow in (
                (300, 5, "none", 3, "xonxoff"), (31250, 6, "even", 1, "rtscts"), (28800, 7, "odd", 2, "none"),
                (57600, 8, "mark", 1, "rtscts"), (115200, 8, "space", 2, "xonxoff")):
            numbers = {BAUD: baud, DATA: data, PARITY: PARITIES[parity], STOP: stop, CONTROL: FLOWS[flow]}
            for code, number in numbers.items():
                is_set(client, code, number)
            line = gateway.line(UART)
            # With five data bits, two stop bits are one and a half: 3.
            assert (line["baud"], line["data"], line["parity"], line["stop"]) == (baud, data, parity, min(stop, 2))
            assert (line["rtscts"], line["xonxoff"]) == (flow == "rtscts", flow == "xonxoff")
        assert client.set(BAUD, 230400) == 115200 == gateway.line(UART)["baud"]  # more than a 16550 has
        assert gateway.event("line change refused")["request"] == "baud 230400"
        for dtr, rts in ((DTR_OFF, RTS_ON), (DTR_ON, RTS_OFF)):
            is_set(client, CONTROL, dtr)
            is_set(client, CONTROL, rts)
            line = gateway.line(UART)
            assert (line["dtr"], line["rts"]) == (dtr == DTR_ON, rts == RTS_ON)
        for number in (BREAK_ON, BREAK_OFF):
            is_set(client, CONTROL, number)


def test_the_16550s_modem_lines_and_breaks_are_notified(guest):
    """In loopback CTS follows RTS, and DSR follows DTR. DCD stays on, since it follows the driver's OUT2."""
    with FarEnd(guest, "uart"), com_port(guest, f"tty://{UART}") as (gateway, client):
        loop = f"{PROGRAMS}/port loop $(busybox pidof baudway) {UART}"
        client.notified(MODEM_STATE, 0xb0)
        guest.ask(f"{loop} on")
        for number, notified in ((RTS_OFF, 0xa1), (DTR_OFF, 0x82), (RTS_ON, 0x91)):
            is_set(client, CONTROL, number)
            client.notified(MODEM_STATE, notified)
        guest.ask(f"{loop} off")
        assert client.set(LINE_MASK, 0x10) == 0x10
        for _ in range(2):
            guest.qmp("chardev-send-break", id="uart")
            client.notified(LINE_STATE, 0x10)


# FTDI.


@pytest.mark.usefixtures("adapter")
def test_rates_and_lines_of_an_adapter_are_on_its_bus(guest):
    with BusRecord(guest) as record, com_port(guest, f"tty://{USB}") as (gateway, client):
        def sent(request: int) -> list[int]:
            return [value for _, number, value in record.requests() if number == request]

        record.requests()
        for baud, divisor in ((31250, 0x0060), (250000, 0x000c), (1000000, 0x0003), (123456, 0x8018), (57600, 0xc034)):
            is_set(client, BAUD, baud)
            assert sent(SET_RATE) == [divisor]
        is_set(client, BAUD, 57600)
        assert record.requests() == []  # it has not changed
        # The driver takes its own choice, 9600, for a rate that it does not have; the gateway returns to the last one.
        assert client.set(BAUD, 4000000) == 57600 == gateway.line(USB)["baud"]
        assert sent(SET_RATE)[-1] == 0xc034
        is_set(client, DATA, 7)
        is_set(client, PARITY, PARITIES["even"])
        is_set(client, STOP, 2)
        assert sent(SET_DATA)[-1] == 7 | 2 << 8 | 2 << 11
        for number, bit in ((BREAK_ON, 1), (BREAK_OFF, 0)):
            is_set(client, CONTROL, number)
            assert [value >> 14 for value in sent(SET_DATA)] == [bit]

        wire = Wire(record)
        wire.level = dict.fromkeys(wire.level, True)  # since the opening
        for number, move in ((DTR_OFF, "-dtr"), (RTS_OFF, "-rts"), (RTS_ON, "+rts"), (DTR_ON, "+dtr")):
            is_set(client, CONTROL, number)
            assert wire.moves() == [move]


class Traffic:
    """Sends numbered lines to a far end that echoes, until it is stopped."""

    def __init__(self, client: ComPort):
        self._client, self._stop = client, threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self):
        number = 0
        while not self._stop.wait(0.02):
            self._client.write(b"%08d\n" % number)
            number += 1

    def flows(self):
        count = len(self._client.data) + 100
        until(lambda: len(self._client.data) >= count, 20, "100 more bytes at the client")

    def stop(self):
        self._stop.set()
        self._thread.join(10)


@pytest.mark.timeout(300)
def test_an_adapter_is_replugged_ten_times_under_a_client_of_rfc_2217(guest, adapter):
    adapter.echo = True
    port = com_port(guest, f"tty://usb/0403:6001/{adapter.serial}", absent="hold")
    with BusRecord(guest) as record, port as (gateway, client):
        watcher = ControlChannel(connect(gateway.address("port", 1)), "/port")
        watcher.event("link", state="open")
        client.notified(MODEM_STATE, 0xB0)  # QEMU: CTS, DSR and DCD are on
        is_set(client, BAUD, 57600)
        is_set(client, PARITY, PARITIES["even"])
        is_set(client, CONTROL, DTR_OFF)
        watcher.event("outputs", dtr=False, rts=True)
        traffic = Traffic(client)
        for turn in range(1, 11):
            traffic.flows()
            adapter.close()
            gateway.event("link lost", count=turn)
            client.notified(MODEM_STATE, 0x0B)  # all are off, and three have changed
            watcher.event("link", state="waiting")
            adapter.connect()
            gateway.event("link open", count=turn + 1, seconds=20)
            client.notified(MODEM_STATE, 0xBB)
            assert client.set(BAUD, 0) == 57600  # answered when all is applied again
            line = gateway.line(USB)
            assert (line["baud"], line["parity"], line["dtr"], line["rts"]) == (57600, "even", False, True)
            last = {request: value for _, request, value in record.requests()}
            assert (last[SET_RATE], last[SET_DATA], last[1] & 1) == (0xc034, 8 | 2 << 8, 0)
            watcher.event("link", state="open")
            watcher.event("outputs", dtr=False, rts=True)
            traffic.flows()
        traffic.stop()
        assert not client.ended and not gateway.events("session ended")
        # Nothing comes twice or out of order, and lines are cut only by a pull: once each way.
        lines = bytes(client.data).split(b"\n")[:-1]
        whole = [int(line) for line in lines if len(line) == 8 and line.isdigit()]
        assert all(first < second for first, second in zip(whole, whole[1:]))
        assert len(lines) - len(whole) <= 20
        finish(watcher.client)


# CDC ACM.


@pytest.fixture(scope="module")
def modem(booted):
    with Modem(booted) as modem:
        yield modem


def test_settings_and_lines_arrive_at_a_modem(guest, modem):
    with com_port(guest, f"tty://{modem.PORT}") as (gateway, client):
        modem.event("lines", "1 1")
        modem.event("coding", "115200 8 none 1")
        is_set(client, BAUD, 123456)
        modem.event("coding", "123456 8 none 1")
        is_set(client, DATA, 7)
        is_set(client, PARITY, PARITIES["space"])
        is_set(client, STOP, 2)
        modem.event("coding", "123456 7 space 2")
        count = len(modem.events("lines"))
        for number in (DTR_OFF, RTS_OFF, DTR_ON, RTS_ON):
            is_set(client, CONTROL, number)
        modem.event("lines", "1 1")
        assert modem.events("lines")[count:] == ["0 1", "0 0", "1 0", "1 1"]
        # The driver refuses breaks of this modem: the answer is that there is none.
        assert client.set(CONTROL, BREAK_ON) == BREAK_OFF
        assert "not supported" in gateway.event("line change refused", request="break on")["error"]
        client.write(bytes(range(256)))
        until(lambda: "".join(modem.events("data")) == bytes(range(256)).hex(), 10, "the bytes at the modem")
        modem.tell("send " + bytes(range(256)).hex())
        assert client.read(256) == bytes(range(256))


def test_all_of_a_modems_serial_state_is_notified(guest, modem):
    with com_port(guest, f"tty://{modem.PORT}") as (gateway, client):
        client.notified(MODEM_STATE, 0x10)  # the driver says that CTS is on
        for state, notified in (
                (0x01, 0x98), (0x02, 0x3a), (0x08, 0x52),  # DCD, then DSR, then RI
                (0x03, 0xbe), (0x00, 0x1a)):  # the end of RI is its event
            modem.tell(f"state {state:x}")
            client.notified(MODEM_STATE, notified)
        assert client.set(LINE_MASK, 0x1e) == 0x1e
        for state, notified in ((0x04, 0x10), (0x10, 0x08), (0x20, 0x04), (0x40, 0x02), (0x74, 0x1e)):
            modem.tell(f"state {state:x}")
            client.notified(LINE_STATE, notified)
        assert client.data == bytes(2)  # of the breaks, as from a UART


def test_an_unplugged_modem_has_no_line_on(guest, modem):
    with com_port(guest, f"tty://{modem.PORT}") as (gateway, client):
        client.notified(MODEM_STATE, 0x10)
        modem.tell("state 3")
        client.notified(MODEM_STATE, 0xba)
        is_set(client, BAUD, 57600)
        modem.unplug()
        client.notified(MODEM_STATE, 0x0b)
        assert client.set(BAUD, 19200) == 19200  # for its return
        modem.plug()
        client.notified(MODEM_STATE, 0x11)
        modem.event("coding", "19200 8 none 1")
        modem.tell("echo on")
        client.write(b"back again")
        assert client.read(10) == b"back again"
