"""`baudway connect`: a terminal on an endpoint, always restored; elsewhere a clean pipe."""
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import termios
import threading
import time

import pytest

from kit import GUARD, Gateway, Pty, Server, binary, receive_all, until

LEAVE = b"\x1d"  # Ctrl-]
USAGE, UNAVAILABLE, IOERR, TEMPFAIL = 64, 69, 74, 75


def pipe(url, data=b"", *options, seconds=GUARD) -> subprocess.CompletedProcess:
    return subprocess.run([binary(), "connect", url, *options], input=data, capture_output=True, timeout=seconds)


# --- a pipe ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_connect_forwards_input_and_output_unchanged(size):
    data = random.Random(size).randbytes(size)
    done = pipe("exec:/bin/cat", data)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"", 0)


def test_input_may_come_from_a_file(folder):
    path = os.path.join(folder, "data")
    data = random.Random(1).randbytes(200_000)
    with open(path, "wb") as file:
        file.write(data)
    with open(path, "rb") as file:
        done = subprocess.run([binary(), "connect", "exec:/bin/cat"], stdin=file, capture_output=True, timeout=GUARD)
    assert (done.stdout, done.returncode) == (data, 0)


def test_a_path_that_is_ignored_is_a_warning_with_a_mark_below_it():
    with Server(lambda client: client.sendall(b"hello")) as server:
        url = server.url
        done = pipe(url + "/foo")
    assert (done.stdout, done.returncode) == (b"hello", 0)
    assert done.stderr.decode().splitlines() == [
        f"baudway: warning: tcp takes no path: '/foo' is ignored; write {url}", f"  {url}/foo", " " * (2 + len(url)) + "^"]


def test_end_of_input_is_forwarded_and_the_reply_is_awaited():
    def answer(client):
        heard = receive_all(client)
        client.sendall(heard[::-1])

    with Server(answer) as server:
        done = pipe(server.url, b"stressed")
    assert (done.stdout, done.returncode) == (b"desserts", 0)


@pytest.mark.timed
def test_connect_ends_when_a_serial_port_is_silent():
    with Pty() as device:
        heard = []

        def modem():
            heard.append(device.read(3))
            for piece in (b"O", b"K", b"\r\n"):
                device.write(piece)

        answering = threading.Thread(target=modem, daemon=True)
        answering.start()
        done = pipe(device.url, b"AT\r", "--silence", "1s")
        answering.join(GUARD)
    assert heard == [b"AT\r"]
    assert (done.stdout, done.stderr, done.returncode) == (b"OK\r\n", b"", 0)


def test_connect_waits_for_a_slow_answer():
    with Pty() as device:

        def modem():
            assert device.read(3) == b"AT\r"
            time.sleep(0.8)
            device.write(b"OK\r\n")

        answering = threading.Thread(target=modem, daemon=True)
        answering.start()
        done = pipe(device.url, b"AT\r", "--answer", "60s")
        answering.join(5)
    assert (done.stdout, done.stderr, done.returncode) == (b"OK\r\n", b"", 0)


def test_connect_waits_for_the_answers_of_a_modem_that_echoes():
    """Two commands; the modem returns each, and answers 0.8 s later."""
    with Pty() as device:

        def modem():
            for command, answer in ((b"AT\r", b"\r\nOK\r\n"), (b"ATI\r", b"\r\nModel 5\r\n\r\nOK\r\n")):
                assert device.read(len(command)) == command
                device.write(command)
                time.sleep(0.8)
                device.write(answer)

        answering = threading.Thread(target=modem, daemon=True)
        answering.start()
        done = pipe(device.url, b"AT\rATI\r", "--answer", "60s")
        answering.join(5)
    assert (done.stdout, done.stderr, done.returncode) == (
        b"AT\r\r\nOK\r\nATI\r\r\nModel 5\r\n\r\nOK\r\n", b"", 0)


def test_connect_says_that_only_an_echo_came():
    with Pty() as device:
        echo = threading.Thread(target=lambda: device.write(device.read(3)), daemon=True)
        echo.start()
        done = pipe(device.url, b"AT\r", "--answer", "700ms")
        echo.join(5)
    assert (done.stdout, done.returncode) == (b"AT\r", 0) and b"only what was sent came back" in done.stderr


def test_connect_reports_that_no_answer_came():
    with Pty() as device:
        done = pipe(device.url, b"AT\r", "--answer", "700ms")
        assert (done.stdout, done.returncode) == (b"", TEMPFAIL) and b"no answer came" in done.stderr
        done = pipe(device.url, b"AT\r", "--silence", "0", "--answer", "60s")
        assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0)
        assert device.read(6) == b"AT\rAT\r"
        assert pipe(device.url, b"", "--answer", "soon").returncode == USAGE


def test_connect_ends_when_a_half_open_route_is_silent():
    route = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": {"half-close": "10m"}}
    with Gateway({"routes": {"echo": route}}) as gateway:
        url = "tcp://%s:%d" % gateway.address("echo")
        start = time.monotonic()
        done = pipe(url, b"hello\n", "--silence", "2s")
        assert (done.stdout, done.stderr, done.returncode) == (b"hello\n", b"", 0)
        assert time.monotonic() - start >= 2


@pytest.mark.timed
def test_a_shared_route_ends_connect_without_the_silence_option():
    """The route half-closes: its own device never ends."""
    for half_close, least in ("1s", 1), (None, 5):
        route = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": {"half-close": half_close} if half_close else {}}
        with Gateway({"routes": {"echo": route}}) as gateway:
            start = time.monotonic()
            done = pipe("tcp://%s:%d" % gateway.address("echo"), b"hello\n")
            assert (done.stdout, done.stderr, done.returncode) == (b"hello\n", b"", 0)
            assert least <= time.monotonic() - start < least + 4


@pytest.mark.timed
def test_silence_is_measured_from_the_last_byte():
    def answer(client):
        receive_all(client)
        for piece in (b"a", b"b", b"c", b"d"):
            time.sleep(0.8)
            client.sendall(piece)
        with contextlib.suppress(OSError):
            client.recv(1)
        time.sleep(8)

    with Server(answer) as server:
        done = pipe(server.url, b"x", "--silence", "1500ms", seconds=7)
    assert (done.stdout, done.returncode) == (b"abcd", 0)


def test_the_route_ends_connect_without_the_silence_option():
    config = {"routes": {"cat": {"listen": "tcp://127.0.0.1:0", "endpoint": "exec:/bin/cat"}}}
    with Gateway(config) as gateway:
        done = pipe("tcp://%s:%d" % gateway.address("cat"), b"hello\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"hello\n", b"", 0)


def test_a_reset_endpoint_is_an_error():
    def reset(client):
        client.recv(1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with Server(reset) as server:
        done = pipe(server.url, b"?")
    assert done.returncode == IOERR and b"ECONNRESET" in done.stderr


def test_output_before_an_endpoint_reset_is_printed_first():
    said = random.Random(3).randbytes(20_000)

    def reset(client):
        client.recv(1)
        client.sendall(said)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with Server(reset) as server:
        done = pipe(server.url, b"?" * 3_000_000)
    assert (done.stdout, done.returncode) == (said, IOERR) and b"baudway: " in done.stderr


def test_an_endpoint_that_is_no_websocket_is_reported_at_once():
    def other(client):
        client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        receive_all(client)

    with Server(other) as server:
        done = pipe(server.url.replace("tcp://", "ws://") + "/lab", b"", "--timeout", "60s")
    assert done.returncode == UNAVAILABLE and b"expected an HTTP response, received SSH" in done.stderr


def test_a_closed_output_pipe_ends_connect():
    with subprocess.Popen(
        [binary(), "connect", "sim://flood"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert len(process.stdout.read(100_000)) == 100_000
        process.stdout.close()
        assert process.wait(GUARD) == IOERR
        assert process.stderr.read() == b""


def test_errors_and_absent_devices_have_their_own_exit_codes():
    done = pipe("tty:///dev/ttyS0?bau=9600")
    assert done.returncode == USAGE
    assert done.stderr.decode().splitlines() == [
        "baudway: unknown parameter 'bau'; did you mean 'baud'?", "  tty:///dev/ttyS0?bau=9600", " " * 19 + "^"]  # fmt: skip
    done = pipe("rfcomm://\x1b[31m:3")
    assert done.returncode == USAGE and done.stderr.decode().splitlines()[1:] == [r"  rfcomm://\u{1B}[31m:3", " " * 11 + "^"]
    done = pipe("tty:///dev/nowhere")
    assert done.returncode == UNAVAILABLE and b"ENOENT" in done.stderr
    with socket.socket() as silent:  # listens, with a full backlog
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        with contextlib.ExitStack() as fillers:
            for _ in range(3):
                filler = fillers.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(silent.getsockname())
            done = pipe("tcp://127.0.0.1:%d" % silent.getsockname()[1], b"", "--timeout", "500ms")
    assert done.returncode == UNAVAILABLE and b"no answer within" in done.stderr
    assert pipe("sim://echo", b"", "--timeout", "soon").returncode == USAGE
    done = pipe("ea://com.vendor.protocol/00:0A:3A:22:68:73")
    assert done.returncode == USAGE and b"use rfcomm://00:0A:3A:22:68:73, " in done.stderr


# --- a terminal ------------------------------------------------------------------------------------------------------


class Screen:
    """A user's terminal with `baudway connect URL` in it."""

    def __init__(self, url):
        self.user, self.terminal = os.openpty()
        self.before = termios.tcgetattr(self.terminal)
        self.seen = b""
        self.process = subprocess.Popen(
            [binary(), "connect", url], stdin=self.terminal, stdout=self.terminal, stderr=self.terminal,
            start_new_session=True, preexec_fn=lambda: __import__("fcntl").ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def __enter__(self):
        return self

    def ready(self):
        self.shows(b"Ctrl-] quits.")
        until(lambda: self.is_raw, what="raw")
        return self

    @property
    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.terminal)[3] & termios.ICANON

    def types(self, data: bytes):
        os.write(self.user, data)

    def shows(self, mark: bytes):
        def look():
            if select.select([self.user], [], [], 0)[0]:
                self.seen += os.read(self.user, 4096)
            return mark in self.seen

        until(look, what=f"{mark!r} in {self.seen!r}")

    def ends(self, code: int):
        assert self.process.wait(GUARD) == code
        assert termios.tcgetattr(self.terminal) == self.before, "the terminal is not as it was"

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(GUARD)
        os.close(self.user)
        os.close(self.terminal)


def test_keys_go_to_the_device_until_the_escape_key():
    with Pty() as device, Screen(device.url) as screen:
        screen.ready()
        screen.types(b"AT\r\x03\x04\x1a")  # Ctrl-C, Ctrl-D and Ctrl-Z go to the device too
        assert device.read(6) == b"AT\r\x03\x04\x1a"
        device.write(b"\x1b[1mOK\r\n")
        screen.shows(b"\x1b[1mOK\r\n")
        screen.types(b"bye" + LEAVE)
        assert device.read(3) == b"bye"
        screen.ends(0)


def test_the_escape_key_works_when_the_device_reads_nothing():
    with Server(lambda client: until(lambda: gone.is_set(), 30)) as server:
        gone = threading.Event()
        with Screen(server.url) as screen:
            screen.ready().types(LEAVE)
            screen.ends(0)
        gone.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_restores_the_terminal(number):
    with Pty() as device, Screen(device.url) as screen:
        screen.ready().process.send_signal(number)
        screen.ends(-number)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGTRAP])
def test_a_crash_restores_the_terminal(number):
    with Pty() as device, Screen(device.url) as screen:
        screen.ready().process.send_signal(number)
        screen.ends(-number)


def test_a_lost_link_restores_the_terminal():
    with Pty() as device, Screen(device.url) as screen:
        screen.ready()
        device.close()
        screen.ends(0)
        screen.shows(b"The endpoint has ended")


def test_an_absent_endpoint_does_not_change_the_terminal():
    with Screen("tty:///dev/nowhere") as screen:
        screen.ends(UNAVAILABLE)


def test_the_terminal_is_raw_again_after_stop_and_continue():
    with Pty() as device, Screen(device.url) as screen:
        screen.ready().process.send_signal(signal.SIGSTOP)
        until(lambda: open(f"/proc/{screen.process.pid}/stat").read().split()[2] == "T", what="stopped")
        termios.tcsetattr(screen.terminal, termios.TCSANOW, screen.before)  # as a shell does
        screen.process.send_signal(signal.SIGCONT)
        until(lambda: screen.is_raw, what="raw again")
        screen.types(b"x")
        assert device.read(1) == b"x"
        screen.types(LEAVE)
        screen.ends(0)
