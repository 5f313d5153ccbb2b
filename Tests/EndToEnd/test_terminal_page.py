"""The terminal of the status page in Chromium: what a device sends is on the screen, what a user types gets to it."""
import json
import os
import re
import signal
import termios
import time

import pytest
from admin import ask, curl, place
from browser import AXE, Browser, needs_chromium
from kit import Gateway, Pty, connect, free_port, until
from remote_ports import PyserialServer
from terminal_page import choose, connected, keys, lines, shows, watched_browser

pytestmark = [pytest.mark.heavy, needs_chromium]

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
TOKENS = {"ada": "4f2d8c0a9b7e6d5c", "bob": "0b1c2d3e4f506172"}
USERS = {"ada": {"token": TOKENS["ada"], "roles": {"*": "admin"}}, "bob": {"token": TOKENS["bob"], "roles": {"a": "monitor"}}}


def serving(routes=None, *, port=0, **more) -> Gateway:
    gateway = Gateway({"admin": {"listen": f"http://127.0.0.1:{port}"}, "routes": routes or {"a": ECHO}, **more})
    gateway.expected += 1
    return gateway


def on(port: Pty, **more) -> dict:
    return {"a": {"listen": "tcp://127.0.0.1:0", "endpoint": f"{port.url}?baud=9600", **more}}


def visit(browser: Browser, gateway: Gateway, route: str = "a"):
    host, port = place(gateway)
    browser.open(f"http://{host}:{port}/#/routes/{route}/terminal")
    connected(browser)


def paste(browser: Browser, text: str):
    browser.run(f"""(() => {{
        const clipboardData = new DataTransfer();
        clipboardData.setData("text/plain", {json.dumps(text)});
        const event = new ClipboardEvent("paste", {{ clipboardData, bubbles: true, cancelable: true }});
        document.querySelector("#terminal-screen textarea").dispatchEvent(event);
    }})()""")


@pytest.fixture
def browser():
    with watched_browser() as browser:
        yield browser


def test_a_console_is_used(browser):
    routes = {"a": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://console", "clients": {"backlog": "4KiB"}, "device": {"open": "always"}}}
    with serving(routes, users=USERS) as gateway:
        host, port = place(gateway)
        browser.open(f"http://{host}:{port}/#/routes/a")
        browser.until("document.activeElement?.id === 'log-in-user'", "the form")
        browser.type("#log-in-token", TOKENS["ada"])
        browser.press("Enter")
        browser.shows("#route-terminal", "Terminal")
        browser.click("#route-terminal")
        connected(browser)
        shows(browser, "sim>")
        keys(browser, "help\r")
        shows(browser, "sim> help")
        # Another client of the route sees the same, and the page the other's.
        with gateway.connect("a") as other:
            other.sendall(b"from-elsewhere\r")
            shows(browser, "from-elsewhere")
        # Loaded again: the backlog first.
        browser.call("Page.reload")
        browser.until("document.readyState === 'complete'", "the page")
        connected(browser)
        shows(browser, "from-elsewhere")
        browser.run("location.hash = '#/'")
        gateway.event("session ended", count=3)
        # Another terminal begins anew.
        browser.run("location.hash = '#/routes/a/terminal'")
        connected(browser)
        shows(browser, "from-elsewhere")
        assert not any("connected again" in line for line in lines(browser))
        assert not any(TOKENS["ada"] in line for line in gateway.lines)


def test_a_port_its_line_and_its_signals(browser):
    with Pty() as port, serving(on(port)) as gateway:
        visit(browser, gateway)
        browser.until("document.querySelector('#terminal-baud').value === '9600'", "the line")
        choose(browser, "#terminal-baud", "19200")
        choose(browser, "#terminal-flow", "xonxoff")
        browser.click("#terminal-line button")
        browser.shows("#toast", "The line is set.")
        until(lambda: termios.tcgetattr(port.slave)[5] == termios.B19200, what="the bit rate at the port")
        assert termios.tcgetattr(port.slave)[0] & termios.IXON
        # A setting that the port refuses is said, and the page shows what is in force.
        choose(browser, "#terminal-parity", "mark")
        browser.click("#terminal-line button")
        browser.until("document.querySelector('#toast').innerText !== 'The line is set.'", "an answer")
        browser.click("#terminal-break")
        browser.until("/break|Not done/.test(document.querySelector('#toast').innerText)", "an answer")
        browser.click("#terminal-purge")
        browser.shows("#toast", "discarded")
        # A pty has no DTR: that is said.
        browser.click("#terminal-dtr")
        browser.shows("#toast", "Not done")
        keys(browser, "x\r")
        assert port.read(2) == b"x\r"


def test_modem_lines_and_every_setting_of_a_port(browser):
    """pyserial's loop leads RTS to CTS and DTR to DSR."""
    with PyserialServer() as server:
        with serving({"a": {**ECHO, "endpoint": f"rfc2217://127.0.0.1:{server.port}?baud=9600&dtr=on&rts=off"}}) as gateway:
            visit(browser, gateway)
            browser.shows("#terminal-modem", "CTS off, DSR on, DCD on, RI off")
            assert browser.run("['dtr', 'rts'].map((one) => document.querySelector(`#terminal-${one}`).ariaPressed)") == ["true", "false"]
            browser.click("#terminal-rts")
            browser.shows("#terminal-modem", "CTS on, DSR on")
            browser.click("#terminal-dtr")
            browser.shows("#terminal-modem", "CTS on, DSR off")
            assert server.serial.rts and not server.serial.dtr
            assert browser.run("['dtr', 'rts'].map((one) => document.querySelector(`#terminal-${one}`).ariaPressed)") == ["false", "true"]
            browser.click("#terminal-rts")
            browser.shows("#terminal-modem", "CTS off, DSR off")
            # Another client raises it.
            assert ask(gateway, "POST /api/v1/routes/a/line", "Content-Type: application/json", content=b'{"dtr":true}').status == 200
            browser.shows("#terminal-modem", "DSR on")
            browser.until("document.querySelector('#terminal-dtr').ariaPressed === 'true'", "DTR is on")
            for field, value in (("data", "7"), ("parity", "even"), ("stop-bits", "2")):
                choose(browser, f"#terminal-{field}", value)
            browser.click("#terminal-line button")
            browser.shows("#toast", "The line is set.")
            settings = server.serial.get_settings()
            assert (settings["baudrate"], settings["bytesize"], settings["parity"], settings["stopbits"]) == (9600, 7, "E", 2)
            browser.click("#terminal-break")
            browser.shows("#toast", "A break of 250 ms was sent.")
            browser.click("#terminal-reset")
            browser.shows("#confirmation-title", "Reset the device of a?")


def test_what_the_gateway_tells_of_the_line_is_shown(browser):
    """Also what no port and no client of this machine causes, by the texts that tell it."""
    with serving() as gateway:
        host, port = place(gateway)
        browser.open(f"http://{host}:{port}/#/routes/a")
        browser.until("document.querySelector('#route-title')?.innerText === 'a'", "the route")
        browser.run("""
            window.WebSocket = class extends WebSocket { constructor(...words) { super(...words); window.socket = this; } };
            window.say = (text) => socket.dispatchEvent(new MessageEvent('message', { data: JSON.stringify(text) }));
            location.hash = '#/routes/a/terminal'; true""")
        connected(browser)

        def say(**text):
            browser.run(f"say({json.dumps(text)})")
        say(event="errors", breaks=1, framing=2, parity=3, overruns=4, bufferOverruns=5)
        assert browser.text("#terminal-errors") == "breaks 1, framing 2, parity 3, overruns 4, buffer overruns 5"
        say(event="writer", holder=7, mine=False)
        assert browser.text("#terminal-role") == "session 7 has the writer role"
        keys(browser, "x")
        browser.shows("#toast", "Session 7 has the writer role.")
        say(event="writer", holder=None, mine=False)
        assert browser.text("#terminal-role") == "nobody has the writer role"
        say(event="lost", count=2)
        browser.shows("#toast", "2 events of the line were lost.")
        say(event="drops", total=2048)
        assert browser.text("#terminal-drops") == "2.0\u00a0KiB dropped: this browser is slower than the device"
        say(event="queue", place=3)
        assert browser.text("#terminal-state") == "in the queue, place 3"
        say(event="link", state="waiting", reason="open: ENOENT")
        assert browser.text("#terminal-link") == "device waiting: open: ENOENT"
        say(event="hello", role="writer", session=1, banner="Welcome \x1b[31m")
        shows(browser, "Welcome ?[31m")


def test_lines_that_end_with_lf_and_a_cleared_screen(browser):
    with Pty() as port, serving(on(port)) as gateway:
        visit(browser, gateway)
        port.write(b"one\ntwo\r\n")
        shows(browser, "   two")
        browser.click("#terminal-lf")
        port.write(b"three\nfour\r\n")
        until(lambda: "four" in lines(browser), what="a line of its own")
        browser.click("#terminal-clear")
        until(lambda: not any("one" in line for line in lines(browser)), what="nothing of before")
        browser.run("""window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return "#"; }; true""")
        browser.click("#terminal-save")
        assert browser.run("saved[0].size") == 0


def test_bytes_of_a_device_are_text_and_cause_none(browser):
    with Pty() as port, serving(on(port)) as gateway:
        visit(browser, gateway)
        port.write(b"<img src=x onerror=alert(1)><script>alert(2)</script>\r\n\x1b]0;<b>title</b>\x07\x1b]8;;javascript:alert(3)\x07link\x1b]8;;\x07\r\n")
        shows(browser, "<img src=x onerror=alert(1)><script>alert(2)</script>")
        assert browser.run("document.querySelectorAll('#terminal-screen img, #terminal-screen script, #terminal-screen a').length") == 0
        # Questions to a terminal: its kind, its state, the cursor's place, a setting.
        port.write(b"\x1b[c\x1b[>c\x1b[5n\x1b[6n\x1bP$qm\x1b\\asked\r\n")
        shows(browser, "asked")
        keys(browser, "k")
        assert port.read(1) == b"k"
        # Numbers and texts without end, each of which would keep the page busy or fill its memory.
        for final in "LMSTPIZ@":
            port.write(f"\x1b[99999999999999999999{final}".encode())
        port.write(b"\x1b]0;" + b"long" * 50_000 + b"\r\ngiven up\r\n")
        shows(browser, "given up")
        port.write(b"\x1bcread again\r\n")
        shows(browser, "read again")


def test_what_comes_is_shown_as_hex_and_with_times(browser):
    with Pty() as port, serving(on(port)) as gateway:
        visit(browser, gateway)
        browser.click("#terminal-times")
        port.write(b"timed\r\n")
        until(lambda: any(re.fullmatch(r"\[\d\d:\d\d:\d\d\.\d{3}\] timed", line) for line in lines(browser)), what="a time")
        browser.click("#terminal-times")
        browser.click("#terminal-hex")
        port.write(bytes(range(0x3E, 0x50)))
        shows(browser, "00000007  3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d  |>?@ABCDEFGHIJKLM|")
        shows(browser, "00000017  4e 4f")
        shows(browser, "|NO|")
        browser.click("#terminal-times")
        port.write(bytes(range(0x50, 0x5E)) + b"!")
        timed = r"\[\d\d:\d\d:\d\d\.\d{3}\] 00000027  21 +\|!\|"
        until(lambda: any(re.fullmatch(timed, line) for line in lines(browser)), what="a row with its time")
        browser.click("#terminal-times")
        browser.click("#terminal-hex")
        keys(browser, "quiet")
        assert port.read(5) == b"quiet"
        port.write(b"after\r\n")
        shows(browser, "after")
        assert not any("quiet" in line for line in lines(browser))
        browser.click("#terminal-echo")
        keys(browser, "seen")
        shows(browser, "seen")
        assert port.read(4) == b"seen"


def test_line_endings_pasted_lines_and_files(browser, tmp_path):
    with Pty() as port, serving(on(port)) as gateway:
        visit(browser, gateway)
        for word, end in (("lf", b"\n"), ("crlf", b"\r\n"), ("cr", b"\r")):
            choose(browser, "#terminal-end", word)
            keys(browser, "a\r")
            assert port.read(1 + len(end)) == b"a" + end
        choose(browser, "#terminal-delay", "300")
        paste(browser, "one\ntwo\r\nthree")
        began = time.monotonic()
        assert port.read(13) == b"one\rtwo\rthree"
        assert time.monotonic() - began > 0.4  # two pauses
        # A long one can be stopped.
        choose(browser, "#terminal-delay", "60000")
        paste(browser, "first\nnever")
        assert port.read(6) == b"first\r"
        paste(browser, "meanwhile")
        browser.shows("#toast", "Wait until the text or file before is sent")
        browser.click("#terminal-stop")
        browser.shows("#terminal-progress", "Stopped")
        data = os.urandom(50_000)
        file = tmp_path / "firmware.bin"
        file.write_bytes(data)
        browser.run("document.querySelector('#terminal-file').click = () => { window.asksForFile = true; }; true")
        browser.click("#terminal-send-file")
        assert browser.run("asksForFile")
        node = browser.call("Runtime.evaluate", expression="document.querySelector('#terminal-file')")["result"]["objectId"]
        browser.call("DOM.setFileInputFiles", files=[str(file)], objectId=node)
        assert port.read(len(data)) == data
        browser.until("document.querySelector('#terminal-progress').innerText === ''", "all is sent")


def test_the_keyboard_leaves_the_screen(browser):
    with Pty() as port, serving(on(port)) as gateway:
        visit(browser, gateway)
        keys(browser, "a")
        browser.press("Tab")
        assert port.read(2) == b"a\t" and browser.run("document.activeElement.closest('#terminal-screen') !== null")
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="]", code="BracketRight", windowsVirtualKeyCode=221, modifiers=2)
        browser.until("document.activeElement.id === 'terminal-search'", "the focus is elsewhere")


def test_words_are_found_and_the_session_is_saved(browser):
    with Pty() as port, serving(on(port)) as gateway:
        visit(browser, gateway)
        sent = b"Mark\r\nmArk\r\nmaRk\r\n" + b"".join(b"line %d\r\n" % number for number in range(200)) + b"\xff\x00end\r\n"
        port.write(sent)
        shows(browser, "end")
        browser.type("#terminal-search", "LINE 17")
        browser.press("Enter")
        selected = "import('/page/terminal.js').then((terminal) => terminal.selection())"
        browser.until(f"{selected}.then((text) => text === 'line 17')", "what is found is selected")
        # The next ones, and backwards; the last is followed by the first.
        choose(browser, "#terminal-search", "mark")
        for shift, word in ((0, "Mark"), (0, "mArk"), (0, "maRk"), (8, "mArk"), (0, "maRk"), (0, "Mark")):
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, modifiers=shift)
            assert browser.run(selected) == word
        choose(browser, "#terminal-search", "line 999")
        browser.press("Enter")
        browser.until("document.querySelector('#announcement').innerText === 'not found'", "not found")
        # What would be saved: the download itself is the browser's.
        browser.run("""
            window.saved = [];
            URL.createObjectURL = (blob) => { saved.push(blob); return "#"; };
            HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; }; true""")
        browser.click("#terminal-save")
        assert re.fullmatch(r"a-\d{4}-\d\d-\d\dT[\d-]+Z\.bin", browser.run("savedAs"))
        text = browser.run("saved[0].arrayBuffer().then((bytes) => Array.from(new Uint8Array(bytes)))")
        assert bytes(text) == sent


def test_the_writer_role_is_shown_taken_and_given_up(browser):
    routes = {"a": {**ECHO, "clients": {"writers": "one", "takeover": "newest"}}}
    with serving(routes) as gateway, gateway.connect("a") as first:
        gateway.event("session opened")
        first.sendall(b"1")
        assert first.recv(1) == b"1"
        visit(browser, gateway)
        # The newest client has got it.
        browser.shows("#terminal-role", "you have the writer role")
        browser.click("#terminal-writer")
        browser.shows("#terminal-writer", "Take the writer role")
        assert browser.run("document.querySelector('#terminal-break').disabled")
        keys(browser, "x")
        browser.shows("#toast", "writer role")
        browser.click("#terminal-writer")
        browser.shows("#terminal-role", "you have the writer role")
        keys(browser, "mine")
        shows(browser, "mine")


def test_a_user_that_may_only_look_on_sends_nothing(browser):
    with serving({"a": ECHO}, users=USERS) as gateway:
        host, port = place(gateway)
        browser.open(f"http://{host}:{port}/#/routes/a/terminal")
        browser.until("document.activeElement?.id === 'log-in-user'", "the form")
        browser.type("#log-in-token", TOKENS["bob"])
        browser.press("Enter")
        connected(browser)
        browser.shows("#terminal-role", "you may only look on")
        keys(browser, "x")
        browser.shows("#toast", "You may only look on.")
        assert browser.run("document.querySelector('#terminal-send-file').disabled") and browser.text("#terminal-reset") == ""
        with gateway.connect("a") as other:
            other.sendall(b"heard")
            shows(browser, "heard")


def test_it_connects_again_by_itself_but_not_after_a_kick(browser):
    port = free_port()
    with serving(port=port) as gateway:
        visit(browser, gateway)
        keys(browser, "before")
        shows(browser, "before")
        gateway.signal(signal.SIGKILL)
        gateway.process.wait()
        browser.shows("#terminal-state", "Connecting again")
        gateway.stopping = False
    with serving(port=port) as gateway:
        connected(browser)
        shows(browser, "connected again")
        keys(browser, "after")
        shows(browser, "after")
        kicked = ask(gateway, "POST /api/v1/routes/a/kick", "Content-Type: application/json", content=b'{"all":true}')
        assert len(kicked.json["kicked"]) == 1
        browser.shows("#terminal-again", "Connect again")
        assert browser.text("#terminal-state") == "disconnected: kicked"
        browser.click("#terminal-again")
        connected(browser)


def test_a_build_without_the_terminal_says_so(browser):
    with serving() as gateway:
        host, port = place(gateway)
        browser.call("Network.setBlockedURLs", urls=["*/page/xterm.js"])
        browser.open(f"http://{host}:{port}/#/routes/a/terminal")
        browser.shows("#terminal-missing", "This build has no terminal")
        assert browser.text("#terminal-content") == ""


def test_a_screen_that_is_shown_before_its_letters_are_measured_waits_for_that(browser):
    """It took itself for infinitely wide."""
    with serving() as gateway:
        visit(browser, gateway)
        assert browser.run("""Promise.all([import("/page/xterm.js"), import("/page/screen.js")]).then(([{ Terminal }, { Screen }]) => {
            const parent = document.createElement("div");
            parent.hidden = true;
            document.body.append(parent);
            const screen = new Screen(Terminal, parent, () => {}, () => {});
            parent.hidden = false;
            parent.style.height = "10rem";
            screen.fit();
            screen.dispose();
            return true;
        })""")


def test_what_a_browser_is_too_slow_to_draw_is_skipped_and_counted(browser):
    """The oldest MiBs; and of the session the last eight are kept."""
    with serving() as gateway:
        visit(browser, gateway)
        told = browser.run("""Promise.all([import("/page/xterm.js"), import("/page/screen.js")]).then(([{ Terminal }, { Screen }]) => {
            const parent = document.createElement("div");
            document.body.append(parent);
            const screen = new Screen(Terminal, parent, () => {}, () => {});
            const piece = new Uint8Array(16 << 10).fill(65);
            let dropped = 0;
            for (let count = 0; count < 640; count += 1) dropped += screen.write(piece);
            const told = [screen.skipped, dropped, screen.session.size];
            screen.dispose();
            return told;
        })""")
        assert told == [9 << 20, 9 << 20, 8 << 20]


def test_a_flood_leaves_the_page_usable_and_is_counted(browser):
    routes = {"a": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://flood"}, "b": ECHO}
    with serving(routes) as gateway:
        visit(browser, gateway)
        browser.shows("#terminal-drops", "dropped")
        began = time.monotonic()
        browser.click("#terminal-hex")
        browser.until("document.querySelector('#terminal-hex').checked", "the click")
        assert time.monotonic() - began < 1
        with gateway.connect("a") as other:
            left = 8 << 20
            while left > 0:
                left -= len(other.recv(1 << 20))


@pytest.mark.skipif(not AXE.exists(), reason="Tests/EndToEnd/axe.sh was not run")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_it_is_accessible(browser, scheme, width):
    with Pty() as port, serving(on(port, clients={"writers": "one"})) as gateway:
        browser.scheme(scheme)
        browser.resize(width, 800)
        visit(browser, gateway)
        port.write(b"text\r\n")
        shows(browser, "text")
        browser.until("document.querySelector('#terminal-line').checkVisibility()", "the line")
        assert browser.violations() == []
        assert browser.run("[...document.querySelectorAll('#terminal-view :is(input, select)')].every((one) => one.labels.length || one.ariaLabel)")
        assert browser.call("Page.getLayoutMetrics")["cssContentSize"]["width"] <= width, "nothing is wider than the window"
        if folder := os.environ.get("PICTURES"):
            browser.picture(f"{folder}/terminal-{scheme}.png", whole=True)
