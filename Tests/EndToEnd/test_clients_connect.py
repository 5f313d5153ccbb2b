"""README's section "How clients connect": each of its commands and programs runs as it is printed there, against its configuration.

Only ports and paths are replaced, so that tests can run side by side. A program that is not installed is skipped by name.
"""
import contextlib
import http.server
import os
import pathlib
import re
import shlex
import shutil
import signal
import struct
import subprocess
import threading

import pytest
import yaml
from kit import GUARD, ROOT, Deadline, Gateway, Pty, binary, free_port, until
from terminals import Program, Terminal

SECTION = re.search(r"^## How clients connect\n(.*?)^## ", (ROOT / "README.md").read_text(), re.S | re.M)[1]
BLOCKS = {kind: text for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", SECTION, re.S | re.M)}
COMMANDS = dict(re.findall(r"^\| ([^|]+?) \| `([^`]+)`", SECTION, re.M))
GREETING = b"Baudway simulated console"

# What a program shows when it is ready, the keys that end it, and what it asks for between two of them. A program without keys is
# ended with SIGTERM: SIGINT is ignored where a shell started the tests in the background.
WAYS = {
    "baudway": (b"Ctrl-]", (b"\x1d",), ()),
    "netcat": (b"sim> ", (), ()),
    "picocom": (b"Terminal ready", (b"\x01\x18",), ()),
    "minicom": (b"CTRL-A Z for help", (b"\x01x", b"\r"), (b"Leave",)),
    "PuTTY": (b"sim> ", (), ()),
}


class Place:
    """README's configuration, served: its ports and paths are replaced by free ones, and so they are in its commands."""

    def __init__(self, folder: str, chip: Pty):
        self.page = free_port()
        self.bin = pathlib.Path(folder, "bin")
        self.bin.mkdir()
        (self.bin / "baudway").symlink_to(binary())
        self._instead = {
            "4003": str(free_port()), "4004": str(free_port()), "8080": str(free_port()), "4010": str(free_port()), "8000": str(self.page),
            "/tmp/console": f"{folder}/console", "/dev/ttyUSB0": chip.path}
        self._pattern = re.compile("|".join(re.escape(text) for text in self._instead))
        self.gateway = Gateway(yaml.safe_load(self.here(BLOCKS["yaml"])))

    def here(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._instead[match[0]], text)

    @property
    def environment(self) -> dict:
        # Debian's Python, which has Debian's modules; esptool is installed by esptool.sh.
        path = [self.bin, "/usr/bin", "/bin", ROOT / ".build/esptool/venv/bin", os.environ["PATH"]]
        return {**os.environ, "PATH": ":".join(str(part) for part in path)}

    def words(self, client: str) -> list[str]:
        """The command of this client; skipped if its program is not installed."""
        words = shlex.split(self.here(COMMANDS[client]))
        words[0] = self.program(words[0])
        if words[1:2] == ["-m"] and subprocess.run([words[0], "-c", f"import {words[2]}"], capture_output=True).returncode:
            pytest.skip(f"the module {words[2]} is not installed")
        return words

    def program(self, name: str) -> str:
        if not (path := shutil.which(name, path=self.environment["PATH"])):
            pytest.skip(f"{name} is not installed")
        return path


@pytest.fixture
def chip():
    with Pty() as pty:
        yield pty


@pytest.fixture
def place(folder, chip):
    place = Place(folder, chip)
    with place.gateway:
        yield place


def test_each_row_of_the_section_has_a_test():
    assert set(COMMANDS) == {*WAYS, "esptool", "WebSocket command line"}
    assert set(BLOCKS) == {"yaml", "python", "js"}


@pytest.mark.parametrize("client", WAYS)
def test_a_terminal_program_talks_with_the_console(place, client):
    words = place.words(client)
    ready, leave, asks = WAYS[client]
    program = Program(client, tuple(words[:-1]), ready, leave, asks)
    with Terminal(program, words[-1], place.gateway.folder).start() as terminal:
        terminal.type(b"uptime\r")
        terminal.expect(b" seconds")
        if leave:
            assert terminal.leave() == 0
        else:
            terminal.process.send_signal(signal.SIGTERM)
            terminal.wait()


def test_the_websocket_command_line_shows_bytes_as_hexadecimal(place):
    words = place.words("WebSocket command line")
    program = Program("websockets", tuple(words[:-1]), b"Connected to", ())
    with Terminal(program, words[-1], place.gateway.folder).start() as terminal:
        terminal.expect(GREETING.hex().encode())
        terminal.type(b"uptime\r")
        terminal.expect(b"uptime".hex().encode())  # the console's echo
        # The program loses what is typed while it changes the terminal's mode for the next line.
        deadline = Deadline(GUARD)
        while terminal.process.poll() is None and not deadline.passed:
            terminal.type(b"\x04")
            terminal.watch(0.2)
        assert terminal.wait() == 0


def test_python_with_pyserial(place):
    python = place.program("python3")
    done = subprocess.run([python, "-c", place.here(BLOCKS["python"])], capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 0, done.stderr
    assert "uptime" in done.stdout and "seconds" in done.stdout


class Page(http.server.BaseHTTPRequestHandler):
    """README's lines in a page, and what the page logs."""

    script: str
    logged: list[str]

    def do_GET(self):
        report = 'console.log = (text) => fetch("/log", { method: "POST", body: text });'
        body = f"<!doctype html><script>{report}\n{self.script}</script>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.logged.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.heavy
def test_a_page_in_a_browser(place, folder):
    chromium = place.program("chromium")
    page = type("ReadmePage", (Page,), {"script": place.here(BLOCKS["js"]), "logged": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", place.page), page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = subprocess.Popen(
        [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", f"--user-data-dir={folder}/profile", f"http://localhost:{place.page}/"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: re.search(r"up \d+ seconds", "".join(page.logged)), what="what the page logs")
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
        server.shutdown()
        server.server_close()


class Chip(threading.Thread):
    """The boot loader in the ROM of an ESP32, as far as esptool asks it: SLIP frames with a command each (Espressif's "Serial
    Protocol"). It has three registers: the one that tells the kinds of chip apart, and two with the MAC address."""

    SYNC, READ_REGISTER, SECURITY = 0x08, 0x0A, 0x14
    REGISTERS = {0x40001000: 0x00F01D83, 0x3FF5A004: 0x22334455, 0x3FF5A008: 0x0011}
    MAC = "00:11:22:33:44:55"

    def __init__(self, pty: Pty):
        super().__init__(daemon=True)
        self.pty = pty

    def run(self):
        frame = bytearray()
        with contextlib.suppress(OSError):  # the pty was closed
            while data := os.read(self.pty.master, 4096):
                frame += data
                while (end := frame.find(b"\xc0")) >= 0:
                    content = bytes(frame[:end]).replace(b"\xdb\xdc", b"\xc0").replace(b"\xdb\xdd", b"\xdb")
                    del frame[: end + 1]
                    if len(content) >= 8:
                        self.answer(content)

    def answer(self, frame: bytes):
        _, command, _, _ = struct.unpack("<BBHI", frame[:8])
        value, status = 0, b"\0\0\0\0"
        if command == self.READ_REGISTER:
            value = self.REGISTERS.get(struct.unpack("<I", frame[8:12])[0], 0)
        elif command == self.SECURITY:
            status = b"\1\5\0\0"  # an ESP32 does not know this command
        reply = struct.pack("<BBHI", 1, command, len(status), value) + status
        reply = reply.replace(b"\xdb", b"\xdb\xdd").replace(b"\xc0", b"\xdb\xdc")
        for _ in range(8 if command == self.SYNC else 1):
            self.pty.write(b"\xc0" + reply + b"\xc0")


def test_esptool_talks_with_a_chip(place, chip):
    words = place.words("esptool")
    Chip(chip).start()
    done = subprocess.run(words, capture_output=True, text=True, timeout=GUARD, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Chip.MAC in done.stdout.lower()
