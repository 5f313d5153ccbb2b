"""Local endpoints: ports by USB identity, lock files, RS-485, unix sockets, ptys, programs."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest
import serial

from kit import GUARD, Gateway, Pty, lock_file, receive, receive_all, receive_until, reset, until

LIMIT = 0.5  # seconds from the node's return to bytes


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="bw-endpoint-") as path:
        yield pathlib.Path(path)


def route(endpoint, **more) -> dict:
    return {"listen": "tcp://127.0.0.1:0", "endpoint": endpoint, **more}


def escape(text: str) -> str:
    return "".join(f"%{ord(c):02x}" if c in " #%&?\n" else c for c in text)


def shell(script: str, query: str = "") -> str:
    return f"exec:/bin/sh?arg=-c&arg={escape(script)}{query}"


# --- USB identity ----------------------------------------------------------------------------------------------------


class Adapters:
    """A test sysfs that the gateway sees instead of /sys/class/tty; the nodes are links under /dev."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.ttys = folder / "class"
        self.ttys.mkdir()
        self.nodes = []

    @property
    def prefix(self):
        return ("unshare", "-m", "sh", "-c", f'mount --bind {self.ttys} /sys/class/tty && exec "$@"', "sh")

    def plug(self, number: int, serial_number: str) -> Pty:
        device, name = Pty(), f"ttyUSB{number}"
        usb = self.folder / f"devices/1-{number}"
        tty = usb / f"1-{number}:1.0" / name / "tty" / name
        tty.mkdir(parents=True, exist_ok=True)
        for attribute, text in (("idVendor", "0403"), ("idProduct", "6001"), ("serial", serial_number)):
            (usb / attribute).write_text(text + "\n")
        if not (tty / "device").is_symlink():
            (tty / "device").symlink_to("../../../" + name)
        (self.ttys / name).symlink_to(tty)
        node = pathlib.Path("/dev") / name
        node.symlink_to(device.path)
        self.nodes.append(node)
        return device

    def pull(self, device: Pty, number: int):
        device.close()
        (self.ttys / f"ttyUSB{number}").unlink()
        self.nodes.pop().unlink()

    def clear(self):
        for node in self.nodes:
            with contextlib.suppress(FileNotFoundError):
                node.unlink()


SYS = pytest.mark.root("mounts a /sys/class/tty of its own")


@pytest.fixture
def adapters(folder):
    adapters = Adapters(folder)
    yield adapters
    adapters.clear()


@SYS
def test_a_port_is_found_by_identity_after_its_number_changes(adapters, figure):
    config = {"routes": {"board": route("tty://usb/0403:6001/LAB%201?baud=9600", device={"retry": "10m..10m"})}}
    with Gateway(config, prefix=adapters.prefix) as gateway, gateway.connect("board") as client:
        assert "not plugged in" in gateway.event("link waiting")["error"]
        took = []
        for round, number in enumerate((990, 991, 990)):
            client.sendall(b"kept %d" % round)
            start = time.monotonic()
            device = adapters.plug(number, "LAB 1")
            assert device.read(6) == b"kept %d" % round
            took.append(time.monotonic() - start)
            device.write(b"hello %d." % round)
            receive_until(client, b"hello %d." % round)
            adapters.pull(device, number)
            gateway.event("link lost", count=round + 1)
        figure("by identity, from node to bytes, longest of three", 1000 * max(took), "ms", aim=1000 * LIMIT)
        reset(client)


@SYS
def test_two_routes_to_one_adapter_and_an_ambiguous_identity_are_reported(adapters):
    adapters.plug(992, "ONE")
    adapters.plug(993, "TWO")
    config = {"routes": {"a": route("tty://usb/0403:6001/ONE"), "b": route("tty:///dev/ttyUSB992")}}
    gateway = Gateway(config, prefix=adapters.prefix)
    answer = gateway.command("check", str(gateway.path))
    assert answer.returncode == 78 and "is taken by routes.a.endpoint" in answer.stderr, answer
    config = {"routes": {"any": route("tty://usb/0403:6001")}}
    with Gateway(config, prefix=adapters.prefix) as gateway, gateway.connect("any") as client:
        error = gateway.event("link waiting")["error"]
        assert "use tty://usb/0403:6001/ONE or tty://usb/0403:6001/TWO" in error, error
        reset(client)


# --- lock files and RS-485 -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.access("/var/lock", os.W_OK), reason="/var/lock can't be written to")
def test_lock_files_are_honoured_and_written():
    with Pty() as device:
        lock = lock_file(device.path)
        lock.write_text(f"{os.getpid():10d}\n")
        try:
            with Gateway({"routes": {"port": route(device.url)}}) as gateway, gateway.connect("port") as client:
                error = gateway.event("link waiting")["error"]
                name = pathlib.Path("/proc/self/comm").read_text().strip()
                assert f"in use by {name} (pid {os.getpid()}), according to {lock}" in error, error
                lock.unlink()
                gateway.event("link open")
                assert lock.read_text() == f"{gateway.pid:10d}\n"
                reset(client)
                gateway.event("link closed")
                until(lambda: not lock.exists(), what="the lock is gone")
                dead = subprocess.Popen(["true"])
                dead.wait()
                lock.write_text(f"{dead.pid:10d}\n")
                client = gateway.connect("port")
                gateway.event("link open", count=2)
                assert lock.read_text() == f"{gateway.pid:10d}\n"
                reset(client)
        finally:
            lock.unlink(missing_ok=True)


def test_rs485_on_a_port_without_it_is_reported():
    with Pty() as device, Gateway({"routes": {"port": route(f"{device.url}?rs485=rts-on-send")}}) as gateway, \
            gateway.connect("port") as client:
        error = gateway.event("link waiting")["error"]
        assert "TIOCSRS485" in error and "rs485=off" in error, error
        reset(client)


# --- unix sockets ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unix_echo(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=echo, args=(connection,), daemon=True).start()

    def echo(connection):
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        os.unlink(path)


def test_a_unix_socket_is_proxied_with_half_close_and_without_loss(folder):
    data = os.urandom(1 << 20)
    with unix_echo(folder / "echo.sock"), Gateway({"routes": {"proxy": route(f"unix://{folder}/echo.sock")}}) as gateway:
        def send(client):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        with gateway.connect("proxy") as client:
            sender = threading.Thread(target=send, args=(client,), daemon=True)
            sender.start()
            assert receive_all(client) == data
            sender.join(GUARD)
        gateway.event("session ended", reason="client-left")


def test_an_absent_unix_socket_fails_a_client_link_and_a_shared_link_waits(folder):
    path = folder / "late.sock"
    config = {"routes": {
        "alone": route(f"unix://{path}"), "shared": route(f"unix://{path}", link="shared", device={"retry": "10m..10m"})}}
    with Gateway(config) as gateway:
        with gateway.connect("alone") as client:
            assert receive_all(client) == b""
        assert "ENOENT" in gateway.event("session ended", reason="open-failed")["error"]
        with gateway.connect("shared") as client:
            client.sendall(b"kept")
            gateway.event("link waiting")
            with unix_echo(path):
                assert receive(client, 4) == b"kept"
            reset(client)


# --- ptys ------------------------------------------------------------------------------------------------------------


def test_programs_open_and_close_a_pty_while_clients_stay(folder):
    link = folder / "modem0"
    config = {"routes": {"modem": route(f"pty://{link}?mode=0600&baud=19200", device={"open": "always"})}}
    with Gateway(config) as gateway, gateway.connect("modem") as client:
        until(link.is_symlink, what="the link")
        assert os.stat(link).st_mode & 0o777 == 0o600
        for turn in range(10):
            with serial.Serial(str(link), 115200, timeout=GUARD, exclusive=True) as program:
                program.write(b"ATZ%d\r" % turn)
                receive_until(client, b"ATZ%d\r" % turn)
                client.sendall(b"OK%d\r\n" % turn)
                assert program.read(5) == b"OK%d\r\n" % turn
        assert not gateway.events("link lost")
        client.sendall(b"nobody is there")

        def up() -> int:
            return json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)["routes"][0]["clients"][0]["up"]

        until(lambda: up() == 10 * len("OK0\r\n") + len("nobody is there"), what="the gateway has written it")
        with open(link, "rb", buffering=0) as program:  # pyserial would flush
            assert program.read(15) == b"nobody is there"
        reset(client)
        gateway.stop()
        assert not link.is_symlink()


@pytest.mark.measured
@pytest.mark.waits
def test_bytes_for_a_pty_that_no_program_opens_cause_no_context_switches(folder):
    config = {"routes": {"modem": route(f"pty://{folder}/modem0", device={"open": "always"})}}
    with Gateway(config) as gateway, gateway.connect("modem") as client:
        gateway.event("link open")
        client.sendall(b"nobody is there")
        gateway.falls_asleep(3)
        reset(client)


def test_bytes_written_to_a_pty_are_read_before_it_closes(folder):
    link = folder / "modem0"
    with Gateway({"routes": {"modem": route(f"pty://{link}")}}) as gateway:
        client = gateway.connect("modem")
        gateway.event("link open")
        with serial.Serial(str(link), timeout=GUARD) as program:
            client.sendall(b"last words")
            client.close()  # and leaves; the link closes after it
            time.sleep(0.3)  # the program is slow
            assert program.read(10) == b"last words"


def test_a_stale_link_is_replaced_and_a_file_is_kept(folder):
    stale, file = folder / "stale", folder / "file"
    stale.symlink_to("/dev/pts/4095")
    file.write_text("mine")
    config = {"routes": {
        name: route(f"pty://{folder}/{name}", device={"open": "always"}) for name in ("stale", "file")}}
    with Gateway(config) as gateway:
        gateway.event("link open", route="stale")
        assert os.readlink(stale) != "/dev/pts/4095"
        assert "EEXIST" in gateway.event("link waiting", route="file")["error"]
        assert file.read_text() == "mine"


# --- programs --------------------------------------------------------------------------------------------------------


def all_children(gateway) -> set[int]:
    """Children of all threads, including zombies."""
    found = set()
    for task in os.listdir(f"/proc/{gateway.pid}/task"):
        with contextlib.suppress(FileNotFoundError):
            found |= {int(c) for c in pathlib.Path(f"/proc/{gateway.pid}/task/{task}/children").read_text().split()}
    return found


def test_each_client_has_its_own_program_and_the_exit_is_reported():
    greeter = shell("read name; echo hello $name; echo greeted $name >&2; exit 7")
    with Gateway({"routes": {"greeter": route(greeter), "tee": route("exec:/bin/cat")}}) as gateway:
        with gateway.connect("greeter") as ada, gateway.connect("greeter") as bob:
            bob.sendall(b"bob\n")
            assert receive_all(bob) == b"hello bob\n"
            ada.sendall(b"ada\n")
            assert receive_all(ada) == b"hello ada\n"
        for count in (1, 2):
            ended = gateway.event("session ended", route="greeter", count=count)
            assert ended["reason"] == "device-lost" and ended["error"] == "/bin/sh exited with status 7", ended
        assert {gateway.event("endpoint says", count=count)["text"] for count in (1, 2)} == {"greeted ada", "greeted bob"}
        data = os.urandom(1 << 20)
        with gateway.connect("tee") as client:
            sender = threading.Thread(
                target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR)), daemon=True)
            sender.start()
            assert receive_all(client) == data
            sender.join(GUARD)
        assert gateway.event("session ended", route="tee")["reason"] == "client-left"
        until(lambda: not all_children(gateway), what="no child, and no zombie")


def test_a_shared_program_that_ends_is_a_lost_device_and_is_started_again(folder):
    script = f"echo $$ >>{folder}/starts; echo up; read line; echo got $line; exit 3"
    config = {"routes": {"tool": route(shell(script), link="shared", device={"retry": "50ms..100ms"})}}
    with Gateway(config) as gateway, gateway.connect("tool") as client:
        for turn in range(1, 4):
            receive_until(client, b"up\n")
            client.sendall(b"%d\n" % turn)
            receive_until(client, b"got %d\n" % turn)
            assert gateway.event("link lost", count=turn)["error"] == "/bin/sh exited with status 3"
        assert not gateway.events("session ended")
        receive_until(client, b"up\n")
        assert len((folder / "starts").read_text().split()) >= 4
        assert len(all_children(gateway)) == 1
        last = int((folder / "starts").read_text().split()[-1])
        gateway.stop()
        until(lambda: not pathlib.Path(f"/proc/{last}").exists(), what="the program goes with the gateway")


def test_a_program_has_clean_signals_no_descriptors_and_no_secrets():
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | wc -w; env | grep -c RUNTIME_DIRECTORY; true"
    with Gateway({"routes": {"look": route(shell(script))}}) as gateway, gateway.connect("look") as client:
        words = receive_all(client).decode().split()
        # Signals 32 and 33 are glibc's own; it resets them itself.
        assert words == ["SigBlk:", "0" * 16, "SigIgn:", "0000000180000000", "4", "0"], words


def test_a_program_in_a_terminal_can_be_interrupted():
    with Gateway({"routes": {"shell": route(shell("stty size; exec cat", "&pty=yes"))}}) as gateway:
        with gateway.connect("shell") as client:
            receive_until(client, b"24 80\r\n")
            client.sendall(b"typed\n")
            receive_until(client, b"typed\r\ntyped\r\n")  # the terminal's echo, and the program's
            client.sendall(b"\x03")
            receive_all(client)
        assert gateway.event("session ended")["error"] == "/bin/sh was killed by SIGINT"


@pytest.mark.waits
def test_programs_that_ignore_the_request_to_end_are_killed(folder):
    script = f"trap '' TERM HUP; echo $$ >{folder}/pid; echo up; while :; do sleep 0.2; done"
    with Gateway({"routes": {"stubborn": route(shell(script))}}) as gateway:
        with gateway.connect("stubborn") as client:
            receive_until(client, b"up\n")
            reset(client)
        gateway.event("session ended")
        pid = int((folder / "pid").read_text())
        start = time.monotonic()
        until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), what="killed", every=0.05)
        assert time.monotonic() - start > 4
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timed
@pytest.mark.waits
def test_a_program_that_ignores_signals_ends_with_the_gateway(folder):
    # A child in its own session would be out of reach; this one only ignores signals.
    script = (f"trap '' TERM HUP; (while :; do sleep 0.2; done) & echo $! $$ >{folder}/pids; echo up; "
              "while :; do sleep 0.2; done")
    gateway = Gateway({"routes": {"stubborn": route(shell(script))}})
    with gateway, gateway.connect("stubborn") as client:
        receive_until(client, b"up\n")
        child, program = (folder / "pids").read_text().split()
        reset(client)
        gateway.event("session ended")
        took = gateway.stop()
        assert took > 2, "it had its five seconds"
        assert not pathlib.Path(f"/proc/{program}").exists()
        # The process that adopts it reaps it.
        state = pathlib.Path(f"/proc/{child}/stat")
        until(lambda: not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] in "ZX", what="the child is dead")


def test_a_program_that_exits_normally_with_unread_input_is_endpoint_left(folder):
    with Gateway({"routes": {"head": route("exec:/usr/bin/head?arg=-n1")}}) as gateway:
        for turn in range(20):
            with gateway.connect("head") as client:
                with contextlib.suppress(OSError):
                    client.sendall(b"first\n" + b"x" * 100_000)
                receive_until(client, b"first\n")
            ended = gateway.event("session ended", count=turn + 1)
            assert ended["reason"] in ("endpoint-left", "client-left", "client-lost") and "error" not in ended, ended
        with gateway.connect("head") as client:
            client.sendall(b"first\nsecond\n")
            assert receive_all(client) == b"first\n"
        ended = gateway.event("session ended", count=21)
        assert ended["reason"] == "endpoint-left" and "error" not in ended, ended
        until(lambda: not all_children(gateway), what="no child, and no zombie")


def test_last_output_and_exit_status_are_known_with_sigchld_ignored():
    prefix = ("env", "--ignore-signal=CHLD")  # no shell does that
    with Gateway({"routes": {"tool": route(shell("echo bye; exit 7"))}}, prefix=prefix) as gateway:
        # Checked directly, because newer kernels report the status of most programs even if SIGCHLD is ignored.
        ignored = re.search(r"SigIgn:\s*(\w+)", pathlib.Path(f"/proc/{gateway.pid}/status").read_text())
        assert not int(ignored[1], 16) >> signal.SIGCHLD - 1 & 1
        with gateway.connect("tool") as client:
            assert receive_all(client) == b"bye\n"
        assert gateway.event("session ended")["error"] == "/bin/sh exited with status 7"


def test_a_program_that_cannot_start_is_reported_with_the_reason(folder):
    config = {"routes": {
        "none": route(f"exec:{folder}/none"), "shared": route(f"exec:{folder}/late", link="shared", device={"retry": "10m..10m"})}}
    with Gateway(config) as gateway:
        with gateway.connect("none") as client:
            assert receive_all(client) == b""
        assert "there is no such program" in gateway.event("session ended", reason="open-failed")["error"]
        with gateway.connect("shared") as client:
            client.sendall(b"kept\n")
            gateway.event("link waiting")
            program = folder / "new"
            program.write_text("#!/bin/sh\nread line; echo got $line\n")
            program.chmod(0o755)
            program.rename(folder / "late")
            receive_until(client, b"got kept\n")
            lost = gateway.event("link lost")
            assert lost["error"] == "the endpoint ended", lost
            reset(client)


# --- TCP -------------------------------------------------------------------------------------------------------------


@pytest.mark.root("makes a namespace of the network")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_tcp_connection_to_itself_counts_as_refused(folder, host):
    # With two local ports to choose from, the kernel takes the very port that is dialled.
    ports = "ip link set lo up && echo 40000 40001 >/proc/sys/net/ipv4/ip_local_port_range"
    prefix = ("unshare", "-n", "sh", "-c", ports + ' && exec "$@"', "sh")
    config = {"routes": {"proxy": {"listen": f"unix://{folder}/in.sock", "endpoint": f"tcp://{host}:40000"}}}
    with Gateway(config, prefix=prefix) as gateway, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(GUARD)
        client.connect(f"{folder}/in.sock")
        with contextlib.suppress(OSError):
            client.sendall(b"echo?")
        assert receive_all(client) == b""
        ended = gateway.event("session ended")
        assert ended["reason"] == "open-failed" and "ECONNREFUSED" in ended["error"], ended
