"""Start, stop, reload: what signals do to a running gateway and its clients."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest
from kit import GUARD, Gateway, Pty, binary, connect, free_port, open_files, receive_all, reset, round_trip, until

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}


def busy_and_stuck(gateway) -> socket.socket:
    """A client of a busy route that never reads."""
    client = gateway.connect("flood", receive_buffer=4096)
    gateway.event("session opened", route="flood")
    return client


FLOOD = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://flood", "clients": {"slow": "block"}}


def test_sigterm_with_idle_clients_is_quick(quick):
    with Gateway({"routes": {"echo": ECHO}}, stopping=False) as gateway:
        with gateway.connect("echo") as client:
            round_trip(client)
            took = gateway.stop()
            assert receive_all(client) == b""
        quick(took, 4, "it did not wait for its limit of 5 s")
        assert [e["reason"] for e in gateway.events("session ended")] == ["shutdown"]
        assert gateway.events("stopping") and gateway.events("stopped")


def test_sigterm_delivers_what_was_sent():
    """A slow device still gets what a client sent before the end."""
    size = 20_000
    with Pty() as device, \
            Gateway({"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": device.url}}}, stopping=False) as gateway:
        with gateway.connect("port") as client:
            gateway.event("link open")
            client.sendall(b"x" * size)
            assert device.read(1) == b"x"
            gateway.signal(signal.SIGTERM)
            gateway.event("stopping")
            assert device.read(size - 1) == b"x" * (size - 1)
            assert gateway.wait() == 0


@pytest.mark.waits
def test_sigterm_with_a_stuck_client_ends_within_the_drain_limit(figure):
    with Gateway({"routes": {"flood": FLOOD}}, stopping=False) as gateway:
        client = busy_and_stuck(gateway)
        took = gateway.stop()
        figure("stop with a stuck client", took, "s", aim=5.5)
        assert took < 10, took
        gateway.check_sessions()
        client.close()


def test_no_new_clients_while_stopping():
    with Gateway({"routes": {"flood": FLOOD, "echo": ECHO}}, stopping=False) as gateway:
        client = busy_and_stuck(gateway)
        gateway.signal(signal.SIGTERM)
        gateway.event("stopping")

        def refused():
            try:
                connect(gateway.address("echo")).close()
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:
                return False  # it came while the socket was being closed

        until(refused, what="refused while draining")
        assert not gateway.events("stopped"), "the stuck client has 5 s"
        gateway.signal(signal.SIGTERM)
        gateway.wait()
        client.close()


@pytest.mark.timed
def test_a_second_sigterm_exits_at_once():
    with Gateway({"routes": {"flood": FLOOD}}, stopping=False) as gateway:
        client = busy_and_stuck(gateway)
        gateway.signal(signal.SIGTERM)
        gateway.event("stopping")
        gateway.signal(signal.SIGTERM)
        gateway.wait(4)  # the client has 5 s after the first
        client.close()


@pytest.mark.timed
def test_a_second_sigterm_kills_programs_that_ignored_the_first():
    stubborn = "exec:/bin/sh?arg=-c&arg=trap%20''%20TERM%3Becho%20$$%3Bwhile%20%3A%3Bdo%20sleep%201%3Bdone"
    routes = {"sh": {"listen": "tcp://127.0.0.1:0", "endpoint": stubborn}}
    with Gateway({"routes": routes}, stopping=False) as gateway, gateway.connect("sh") as client:
        program = int(client.makefile().readline())
        gateway.signal(signal.SIGTERM)
        gateway.event("stopping")
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(4) == 0

        def is_gone():
            try:
                os.kill(program, 0)
            except ProcessLookupError:
                return True
            # The process that inherits it may not reap it.
            return pathlib.Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

        until(is_gone, what="the program is killed")


def test_sighup_adds_and_removes_routes_without_affecting_others():
    with Gateway({"routes": {"stays": ECHO, "goes": ECHO}}) as gateway, gateway.connect("stays") as stays:
        goes = gateway.connect("goes")
        old = gateway.address("goes")
        round_trip(stays)
        round_trip(goes)
        gateway.configure({"routes": {"stays": ECHO, "comes": ECHO}})
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded")
        with gateway.connect("comes") as comes:
            round_trip(comes)
        round_trip(stays)
        assert receive_all(goes) == b""
        goes.close()
        assert gateway.event("session ended", route="goes")["reason"] == "route-removed"

        def closed():
            with socket.socket() as probe:
                return probe.connect_ex(old) != 0

        until(closed, what="the removed route's address is closed")


def test_a_broken_file_at_sighup_changes_nothing():
    with Gateway({"routes": {"echo": ECHO}}) as gateway, gateway.connect("echo") as client:
        gateway.path.write_text("version: 1\nroutes: {echo: {listne: x}}\n")
        before = len(gateway.lines)
        gateway.signal(signal.SIGHUP)
        until(lambda: any("listne" in line for line in gateway.lines[before:]), what="the mistake in the log")
        round_trip(client)
        with gateway.connect("echo") as another:
            round_trip(another)


def test_a_configuration_that_hangs_at_sighup_does_not_prevent_a_stop():
    reading, writing = os.pipe()
    pipe = f"/proc/{os.getpid()}/fd/{reading}"
    try:
        with Gateway({"routes": {"echo": ECHO}}) as gateway:
            gateway.path.unlink()
            gateway.path.symlink_to(pipe)
            gateway.signal(signal.SIGHUP)
            until(lambda: os.readlink(pipe) in open_files(gateway.pid).values(), what="the gateway reads the file")
            gateway.stop()
    finally:
        os.close(reading)
        os.close(writing)


def test_health_reports_whether_the_gateway_serves(folder):
    gateway = Gateway({"routes": {"echo": ECHO}})
    assert gateway.command("health", str(gateway.path)).returncode == 1
    with gateway:
        done = gateway.command("health", str(gateway.path))
        assert done.returncode == 0, done.stderr
        # A gateway that does not answer is not healthy, and `health` reports that soon.
        gateway.signal(signal.SIGSTOP)
        try:
            assert gateway.command("health", str(gateway.path)).returncode == 1
        finally:
            gateway.signal(signal.SIGCONT)
        assert gateway.command("health", str(gateway.path)).returncode == 0


def test_health_restores_removed_files_of_listeners(folder):
    door, port = pathlib.Path(folder, "door"), pathlib.Path(folder, "port")
    routes = {"door": {**ECHO, "listen": f"unix://{door}"}, "port": {**ECHO, "listen": f"pty://{port}"}}
    with Gateway({"routes": routes}) as gateway:
        def healthy():
            return gateway.command("health", str(gateway.path)).returncode == 0

        door.unlink()
        port.unlink()
        until(lambda: healthy() and door.is_socket() and port.is_symlink())
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(door))
            client.settimeout(GUARD)
            round_trip(client)
        door.unlink()
        door.write_text("somebody else's")
        until(lambda: not healthy())
        assert door.read_text() == "somebody else's"
        door.unlink()
        until(healthy)


@pytest.mark.root("listens as another user")
def test_health_refuses_answers_of_another_user_at_an_abstract_address(folder):
    if os.access("/run/baudway", os.W_OK):
        pytest.skip("auto means /run/baudway here")
    path = f"{folder}/config.yaml"
    with open(path, "w") as file:
        file.write("version: 1\nroutes: { echo: { listen: 'tcp://127.0.0.1:0', endpoint: 'sim://echo' } }\n")
    other = f"""
import socket
s = socket.socket(socket.AF_UNIX)
s.bind("\\0baudway/0/{path}")
s.listen()
print("bound", flush=True)
c, _ = s.accept()
c.sendall(b'{{"healthy":true}}\\n')
c.recv(1000)
"""
    environment = {k: v for k, v in os.environ.items() if k != "RUNTIME_DIRECTORY"}
    squatter = subprocess.Popen(["/usr/bin/python3", "-c", other], user=65534, stdout=subprocess.PIPE)
    try:
        assert squatter.stdout.readline() == b"bound\n"
        health = subprocess.run([binary(), "health", path], env=environment, capture_output=True, text=True, timeout=GUARD)
        assert (health.returncode, health.stdout) == (1, ""), health
        assert "another user has taken that name" in health.stderr
    finally:
        squatter.kill()
        squatter.wait()
        squatter.stdout.close()


def test_a_busy_port_is_retried_until_it_is_free():
    port = free_port()
    config = {"routes": {"echo": ECHO, "late": {**ECHO, "listen": f"tcp://127.0.0.1:{port}"}}}
    with socket.create_server(("127.0.0.1", port), reuse_port=False) as holder:
        with Gateway(config, ready=1) as gateway:
            waiting = gateway.event("listener waiting", route="late")
            assert "EADDRINUSE" in waiting["error"]
            with gateway.connect("echo") as other:
                round_trip(other)
            holder.close()
            gateway.event("listening", route="late")
            with gateway.connect("late") as client:
                round_trip(client)


def test_it_restarts_on_the_same_port_at_once():
    """Clients of the previous run leave TIME_WAIT."""
    port = free_port()
    config = {"routes": {"echo": {**ECHO, "listen": f"tcp://127.0.0.1:{port}"}}}
    for _ in range(2):
        with Gateway(config) as gateway:
            client = gateway.connect("echo")
            round_trip(client)
            gateway.stop()
            client.close()
            assert not gateway.events("listener waiting")


def test_no_descriptor_is_left_after_many_clients():
    with Gateway({"routes": {"echo": ECHO}}) as gateway:
        client = gateway.connect("echo")
        round_trip(client)
        reset(client)
        gateway.event("session ended")
        before = gateway.descriptors()
        for turn in range(200):
            client = gateway.connect("echo")
            if turn % 2:
                round_trip(client)
            reset(client)
        gateway.event("session ended", count=201)
        until(lambda: gateway.descriptors() <= before, what=f"descriptors back to {before}")


@pytest.mark.measured
@pytest.mark.waits
def test_an_idle_gateway_causes_no_context_switches(long):
    """No thread of an idle gateway wakes up: its context switches do not increase."""
    with Gateway({"routes": {"echo": ECHO}}) as gateway, gateway.connect("echo") as client:
        round_trip(client)
        gateway.falls_asleep(10 if long else 3)


@pytest.mark.measured
def test_an_idle_gateway_uses_little_memory(monkeypatch):
    """The used functions are adjacent in the program (Deploy/release.order): scattered over its file it takes 14.6 MiB,
    not 12.8.

    The program runs from a file system in memory: on a disk, Linux may map 1.5 MiB more of a file that was just
    written.
    """
    if "/debug/" in binary():
        pytest.skip("of the release")
    memory = "/dev/shm"
    if os.statvfs(memory).f_flag & os.ST_NOEXEC:
        pytest.skip(f"no program can run from {memory}")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        monkeypatch.setenv("BAUDWAY", shutil.copy(binary(), folder))
        with Gateway({"routes": {"echo": ECHO}}) as gateway, gateway.connect("echo") as client:
            round_trip(client)
            rollup = pathlib.Path(f"/proc/{gateway.pid}/smaps_rollup").read_text()
            resident = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Rss:"))
    assert resident < 13.5 * 1024, f"{resident} KiB"


def test_the_program_has_at_most_15_mb():
    if "/debug/" in binary():
        pytest.skip("of the release")
    size = os.path.getsize(binary())
    assert size <= 15_000_000, f"{size:,} bytes"
