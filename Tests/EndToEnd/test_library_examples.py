"""The example programs of the libraries (Sources/Examples), each with a device that behaves as in its description."""
import os
import pathlib
import select
import signal
import socket
import subprocess
import threading

import pytest
from kit import GUARD, ROOT, Deadline, Pty, noise, receive, receive_until, until


def program(name: str) -> str:
    """In $BAUDWAY_EXAMPLES, else in the debug build."""
    path = pathlib.Path(os.environ.get("BAUDWAY_EXAMPLES", ROOT / ".build/debug"), name)
    assert path.is_file(), f"no {path}: run 'swift build --product {name}'"
    return str(path)


def environment() -> dict:
    """Of the examples: with what ThreadSanitizer needs, if they are built with it."""
    preload = os.environ.get("BAUDWAY_EXAMPLES_PRELOAD")
    return os.environ | ({"LD_PRELOAD": preload} if preload else {})


class Example:
    """A running example: its output in lines."""

    def __init__(self, name, *words):
        self.process = subprocess.Popen([program(name), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())
        self.text = ""

    def expect(self, mark: str, seconds: float = GUARD) -> str:
        """Reads until `mark`, and returns all output so far."""
        deadline = Deadline(seconds)
        while mark not in self.text:
            ready, _, _ = select.select([self.process.stdout], [], [], deadline.left)
            more = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert more, f"no {mark!r} within {seconds} s in:\n{self.text}"
            self.text += more.decode()
        return self.text

    def end(self, seconds: float = GUARD) -> str:
        """All output; the program must end by itself, without an error."""
        rest, _ = self.process.communicate(timeout=seconds)
        self.text += rest.decode()
        assert self.process.returncode == 0, self.text
        return self.text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


class Port:
    """A serial port by a name that stays the same when it is pulled and put back."""

    def __init__(self, folder):
        self.path = f"{folder}/port"
        self.put()

    def put(self):
        self.pty = Pty()
        os.symlink(self.pty.path, self.path)

    def pull(self):
        os.unlink(self.path)
        self.pty.close()


@pytest.fixture
def port(folder):
    port = Port(folder)
    yield port
    port.pty.close()


def test_logger_survives_a_replug(port, folder):
    log = pathlib.Path(folder, "log")
    with Example("serial-logger", f"tty://{port.path}?exclusive=no", str(log)) as logger:
        logger.expect(": open\n")
        port.pty.write(b"first\r\nsecond\ncut sho")
        until(lambda: "second" in log.read_text(), what="two lines")
        port.pull()
        logger.expect("waits")
        port.put()
        logger.text = logger.text.replace("open", "", 1)
        logger.expect(": open\n")
        port.pty.write(b"third\n")
        until(lambda: "third" in log.read_text(), what="a line after the replug")
        logger.process.send_signal(signal.SIGINT)
        assert "lines: 4, bytes: 23, losses: 1" in logger.end()
    lines = log.read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["first", "second", "cut sho", "third"]
    assert lines == sorted(lines), "the lines have their times"


def test_logger_says_what_is_wrong_with_a_url():
    with Example("serial-logger", "tyy:///dev/ttyUSB0") as logger:
        assert "did you mean 'tty'?" in logger.expect("\n")
        assert logger.process.wait(GUARD) == 1


def elm327(connection: socket.socket, ignores=()):
    """Answers as an ELM327 does: echoes until AT E0, and ends each answer with a prompt."""
    answers = {"AT Z": "\r\rELM327 v1.5\r\r", "AT E0": "OK\r\r", "01 0C": "41 0C 1A F8 \r\r", "01 0D": "41 0D 32 \r\r", "01 05": "NO DATA\r\r"}
    echoes = True
    while command := receive_line(connection):
        if command in ignores:
            continue
        text = (f"{command}\r" if echoes else "") + answers.get(command, "?\r\r") + ">"
        for start in range(0, len(text), 5):  # in pieces, as over a slow line
            connection.sendall(text[start:start + 5].encode())
        echoes &= command != "AT E0"


def receive_line(connection) -> str:
    data = b""
    while not data.endswith(b"\r"):
        more = connection.recv(1)
        if not more:
            return ""
        data += more
    return data.decode().strip()


@pytest.mark.parametrize("ignores", [(), ("01 0D",)], ids=["answers", "silent"])
def test_obd2_reader(ignores):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            connection, _ = server.accept()
            with connection:
                elm327(connection, ignores)

        threading.Thread(target=serve, daemon=True).start()
        with Example("obd2-reader", f"tcp://127.0.0.1:{server.getsockname()[1]}", "1") as reader:
            text = reader.end()
    assert "adapter: ELM327 v1.5" in text
    assert "engine speed: 1726.0 rpm" in text
    assert ("vehicle speed: no value" if ignores else "vehicle speed: 50.0 km/h") in text
    assert "coolant: no value" in text and "NO DATA" in text


def test_obd2_reader_over_a_serial_port(port):
    def serve():
        ends = socket.socketpair()
        threading.Thread(target=elm327, args=(ends[1],), daemon=True).start()
        while True:
            ready, _, _ = select.select([port.pty.master, ends[0]], [], [])
            try:
                if port.pty.master in ready:
                    ends[0].sendall(os.read(port.pty.master, 4096))
                if ends[0] in ready:
                    os.write(port.pty.master, ends[0].recv(4096))
            except OSError:  # the port is closed
                return

    threading.Thread(target=serve, daemon=True).start()
    with Example("obd2-reader", f"tty://{port.path}?baud=38400&exclusive=no", "1") as reader:
        assert "vehicle speed: 50.0 km/h" in reader.end()


@pytest.mark.waits
def test_join_of_a_serial_port_and_a_server(port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        with Example("join", f"tty://{port.path}?exclusive=no", f"tcp://127.0.0.1:{server.getsockname()[1]}") as join:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(GUARD)
                connection.sendall(b"to the port")
                assert port.pty.read(11) == b"to the port"
                port.pty.write(b"to the server")
                assert receive(connection, 13) == b"to the server"
                large = noise(300_000)
                connection.sendall(b"x" * 1000)
                assert port.pty.read(1000) == b"x" * 1000
                writing = threading.Thread(target=port.pty.write, args=(large,), daemon=True)
                writing.start()
                assert receive(connection, len(large)) == large
                writing.join()
                connection.shutdown(socket.SHUT_WR)
                # A serial port has no end, so the rest has five seconds.
                assert "300013 bytes there, 1011 bytes back" in join.end()


def test_join_ends_with_both_servers():
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        urls = [f"tcp://127.0.0.1:{server.getsockname()[1]}" for server in (one, other)]
        with Example("join", *urls) as join:
            (first, _), (second, _) = one.accept(), other.accept()
            first.sendall(b"question\n")
            first.shutdown(socket.SHUT_WR)
            assert receive_until(second, b"\n") == b"question\n"
            assert second.recv(1) == b"", "the end of input is passed on"
            second.sendall(b"answer\n")
            second.close()
            assert receive_until(first, b"\n") == b"answer\n"
            assert "9 bytes there, 7 bytes back" in join.end(4)
            first.close()
