"""The terminal of the status page at real drivers: what its user sets arrives at the far end of the port, and what the far end
does to the line is shown. Chromium runs on the host, and reaches the machine's admin listener through QEMU."""
import contextlib
import json

import pytest

from admin import place
from browser import Browser, needs_chromium
from kit import until
from rig import PROGRAMS, UART, USB, BusRecord, FarEnd, GuestGateway, Modem, route
from terminal_page import choose, connected, keys, lines, shows, watched_browser
from test_com_port import SET_DATA, SET_RATE
from test_modem_lines import Wire
from test_reset import PAUSES, REPLAY, pauses

pytestmark = needs_chromium

FIELDS = {"baud": "baud", "data": "data", "parity": "parity", "stop": "stop-bits", "flow": "flow"}


@pytest.fixture
def browser():
    with watched_browser() as browser:
        yield browser


@contextlib.contextmanager
def terminal(guest, browser: Browser, device: str):
    """A gateway at the port, and the browser at its terminal."""
    port = route(f"tty://{device}", device={"open": "always", "retry": "250ms..1s"})
    gateway = GuestGateway(guest, {"admin": {"listen": "http://0.0.0.0:0", "insecure": True}, "routes": {"port": port}})
    gateway.expected += 1
    with gateway:
        gateway.event("link open")
        host, number = guest.forwarded_address(place(gateway)[1])
        browser.open(f"http://{host}:{number}/#/routes/port/terminal")
        try:
            connected(browser)
            has_line(browser, baud=115200, data=8, parity="none", stop=1, flow="none")
            is_pressed(browser, dtr=True, rts=True)
            yield gateway
        except AssertionError:
            print("the page:", browser.text("body"), *browser.complaints, sep="\n")
            raise


def answered(browser: Browser, text: str):
    """Waits for the page's answer to what its user did, and takes it away: the next one may have the same words."""
    browser.shows("#toast", text)
    browser.run("document.querySelector('#toast').textContent = ''")


def set_line(browser: Browser, answer: str = "The line is set.", **settings):
    for key, value in settings.items():
        choose(browser, f"#terminal-{FIELDS[key]}", str(value))
    browser.click("#terminal-line button")
    answered(browser, answer)


def has_line(browser: Browser, **settings):
    """Waits until the page shows these settings."""
    shown = ", ".join(f"document.querySelector('#terminal-{FIELDS[key]}').value" for key in settings)
    wanted = json.dumps([str(value) for value in settings.values()])
    browser.until(f"JSON.stringify([{shown}]) === JSON.stringify({wanted})", f"{settings} in the page")


def is_pressed(browser: Browser, **outputs):
    """Waits until the buttons show the outputs: dtr=True, rts=False."""
    for name, is_on in outputs.items():
        browser.until(f"document.querySelector('#terminal-{name}').ariaPressed === '{json.dumps(is_on)}'", f"{name} {is_on} in the page")


def signals(browser: Browser, **on):
    """Waits until the page shows that these modem lines are on, and the others off."""
    text = ", ".join(f"{name.upper()} {'on' if name in on else 'off'}" for name in ("cts", "dsr", "dcd", "ri"))
    until(lambda: browser.text("#terminal-modem") == text, what=f"{text!r} in the page", every=0.05)


def errors(browser: Browser, breaks=0, framing=0, parity=0, overruns=0):
    """Waits until the page shows these counters."""
    text = f"breaks {breaks}, framing {framing}, parity {parity}, overruns {overruns}, buffer overruns 0"
    until(lambda: browser.text("#terminal-errors") == text, what=f"{text!r} in the page", every=0.05)


# FTDI: usbmon records each request.


@pytest.mark.usefixtures("adapter")
def test_settings_outputs_breaks_and_a_reset_are_on_an_adapters_bus(guest, browser):
    with BusRecord(guest) as record, terminal(guest, browser, USB) as gateway:
        def sent(request: int) -> list[int]:
            return [value for _, number, value in record.requests() if number == request]

        record.requests()
        signals(browser, cts=1, dsr=1, dcd=1)  # as QEMU has them
        for baud, divisor in (31250, 0x0060), (57600, 0xc034):
            set_line(browser, baud=baud)
            assert sent(SET_RATE) == [divisor]
        set_line(browser, data=7, parity="even", stop=2)
        even = 7 | 2 << 8 | 2 << 11
        assert sent(SET_DATA)[-1] == even
        has_line(browser, baud=57600, data=7, parity="even", stop=2)
        browser.click("#terminal-break")
        answered(browser, "A break of 250 ms was sent.")
        (began, begun), (ended, restored) = [(time, value) for time, number, value in record.requests() if number == SET_DATA]
        assert (begun, restored) == (even | 1 << 14, even) and ended - began >= 0.25

        wire = Wire(record)
        wire.level = dict.fromkeys(wire.level, True)  # since the opening
        for name, is_on, move in (
                ("dtr", False, "-dtr"), ("rts", False, "-rts"), ("rts", True, "+rts"), ("dtr", True, "+dtr"), ("rts", False, "-rts")):
            browser.click(f"#terminal-{name}")
            is_pressed(browser, **{name: is_on})
            assert wire.moves() == [move]
        browser.shows("#terminal-reset", "Reset device")
        browser.click("#terminal-reset")
        browser.until("document.querySelector('#confirmation').open", "the question")
        browser.type("#confirmation-value", "esp32")
        browser.press("Enter")
        answered(browser, "port was reset by esp32.")
        assert wire.moves() == REPLAY
        is_pressed(browser, dtr=False, rts=False)  # as the recipe leaves them
        for pause, wanted in zip(pauses(wire), PAUSES, strict=True):
            assert wanted <= pause
        assert gateway.event("device reset")["recipe"] == "esp32"


# 16550.


def test_a_16550_is_set_purged_and_its_signals_are_shown(guest, browser):
    with FarEnd(guest, "uart") as far, terminal(guest, browser, UART) as gateway:
        def driver_has(**settings):
            line = gateway.line(UART)
            assert {key: line[key] for key in settings} == settings

        signals(browser, cts=1, dsr=1, dcd=1)  # as QEMU has them; from now on errors are counted
        for turn in (1, 2):
            guest.qmp("chardev-send-break", id="uart")
            errors(browser, breaks=turn)
        set_line(browser, baud=300, data=7, parity="odd", stop=2)
        driver_has(baud=300, data=7, parity="odd", stop=2)
        set_line(browser, "Not done", baud=230400)  # more than a 16550 has
        assert gateway.event("line change refused")["request"] == "baud 230400"
        has_line(browser, baud=300, data=7, parity="odd", stop=2)
        driver_has(baud=300)
        set_line(browser, baud=115200, data=8, parity="none", stop=1, flow="xonxoff")
        driver_has(baud=115200, data=8, parity="none", stop=1, xonxoff=True)

        # In loopback CTS follows RTS, and DSR follows DTR. DCD stays on, since it follows the driver's OUT2.
        guest.ask(f"{PROGRAMS}/port loop $(busybox pidof baudway) {UART} on")
        for name, is_on, shown in (("rts", False, {"dsr"}), ("dtr", False, set()), ("rts", True, {"cts"}), ("dtr", True, {"cts", "dsr"})):
            browser.click(f"#terminal-{name}")
            is_pressed(browser, **{name: is_on})
            signals(browser, dcd=1, **dict.fromkeys(shown, 1))
        guest.ask(f"{PROGRAMS}/port loop $(busybox pidof baudway) {UART} off")

        # Held by the far end's XOFF, bytes stay in the driver until they are purged.
        far.write(b"\x13stopped\r\n")
        shows(browser, "stopped")
        keys(browser, "lost")

        def up() -> int:
            told = json.loads(gateway.command("status", str(gateway.path), "--json").stdout)
            return told["routes"][0]["totals"]["up"]

        until(lambda: up() == 4, what="the bytes in the driver")
        browser.click("#terminal-purge")
        answered(browser, "What was on its way is discarded.")
        far.write(b"\x11going on\r\n")
        shows(browser, "going on")
        keys(browser, "kept")
        assert far.read(4) == b"kept"


# CDC ACM.


@pytest.fixture(scope="module")
def modem(booted):
    with Modem(booted) as modem:
        yield modem


def test_settings_outputs_and_bytes_arrive_at_a_modem(guest, browser, modem):
    with terminal(guest, browser, modem.PORT) as gateway:
        modem.event("coding", "115200 8 none 1")
        modem.event("lines", "1 1")
        count = len(modem.events("coding"))
        set_line(browser, baud=123456)
        modem.event("coding", "123456 8 none 1")
        set_line(browser, data=7, parity="space", stop=2)
        modem.event("coding", "123456 7 space 2")
        assert modem.events("coding")[count:] == ["123456 8 none 1", "123456 7 space 2"]
        has_line(browser, baud=123456, data=7, parity="space", stop=2)
        count = len(modem.events("lines"))
        for name, arrived in (("dtr", "0 1"), ("rts", "0 0"), ("dtr", "1 0"), ("rts", "1 1")):
            browser.click(f"#terminal-{name}")
            modem.event("lines", arrived)
            is_pressed(browser, **{name: arrived.split()[name == "rts"] == "1"})
        assert modem.events("lines")[count:] == ["0 1", "0 0", "1 0", "1 1"]
        # The driver refuses breaks of this modem, and the page says so.
        browser.click("#terminal-break")
        assert "not supported" in gateway.event("line change refused", request="break 250 ms")["error"]
        answered(browser, "Not done")
        keys(browser, "ATI\r")
        until(lambda: "".join(modem.events("data")) == b"ATI\r".hex(), what="the keys at the modem")
        modem.tell(f"send {b'from the modem'.hex()}")
        shows(browser, "from the modem")


def test_a_modems_lines_and_error_counters_are_shown(guest, browser, modem):
    with terminal(guest, browser, modem.PORT) as gateway:
        signals(browser, cts=1)  # the driver says that it is on
        for state, shown in (0x1, {"dcd"}), (0x2, {"dsr"}), (0x8, {"ri"}), (0xb, {"dcd", "dsr", "ri"}), (0, set()):
            modem.tell(f"state {state:x}")
            signals(browser, cts=1, **dict.fromkeys(shown, 1))
        counted = {"breaks": 0, "framing": 0, "parity": 0, "overruns": 0}
        for state, happened in (
                (0x04, ["breaks"]), (0x10, ["framing"]), (0x20, ["parity"]), (0x40, ["overruns"]), (0x74, list(counted)),
                (0x10, ["framing"])):
            modem.tell(f"state {state:x}")
            for name in happened:
                counted[name] += 1
            errors(browser, **counted)
        # A terminal that is opened anew counts anew, and shows no counters of another one.
        browser.run("location.hash = '#/'")
        gateway.event("session ended")
        browser.run("location.hash = '#/routes/port/terminal'")
        connected(browser)
        signals(browser, cts=1)
        assert browser.text("#terminal-errors") == ""
        modem.tell("state 10")
        errors(browser, framing=1)


def test_an_unplugged_modem_is_shown_and_gets_the_pages_settings_again(guest, browser, modem):
    with terminal(guest, browser, modem.PORT):
        set_line(browser, baud=57600, parity="even")
        modem.event("coding", "57600 8 even 1")
        browser.click("#terminal-dtr")
        modem.event("lines", "0 1")
        modem.tell("state 3")
        signals(browser, cts=1, dsr=1, dcd=1)
        modem.unplug()
        browser.shows("#terminal-link", "device waiting")
        assert browser.text("#terminal-modem") == ""
        set_line(browser, "Not done: the link is waiting", baud=19200)
        modem.plug()
        connected(browser)
        modem.event("coding", "57600 8 even 1")
        modem.event("lines", "0 1")
        has_line(browser, baud=57600, parity="even")
        is_pressed(browser, dtr=False, rts=True)
        modem.tell("state 2")
        signals(browser, cts=1, dsr=1)
        modem.tell("echo on")
        keys(browser, "back again")
        shows(browser, "back again")
        assert [line for line in lines(browser) if "connected again" in line] == []  # the page's own connection stayed
