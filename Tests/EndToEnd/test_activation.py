"""Inherited sockets, bound by the program that starts the gateway: sd_listen_fds(3), with a launcher in systemd's
place. unit.sh tests the real systemd."""
import json
import os
import pathlib
import re
import signal
import socket
import sys

import pytest
from kit import GUARD, Gateway, open_files, receive_all, round_trip, until

# Moves the given descriptors to 3, 4 … and execs the program after them, with a starter's environment.
LAUNCHER = """
import json, os, sys
descriptors, settings = json.loads(sys.argv[1])
high = [os.dup2(raw, 100 + number) for number, raw in enumerate(descriptors)]
for number, raw in enumerate(high):
    os.dup2(raw, 3 + number)
os.closerange(3 + len(high), 200)
os.environ.update({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(high)), **settings})
os.execv(sys.argv[2], sys.argv[2:])
"""
PLAIN = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}


class Activated(Gateway):
    """A gateway that is started with these sockets, or other objects that have a descriptor."""

    def __init__(self, config, things, **settings):
        super().__init__(config)
        self.things, self.settings = things, settings

    def start(self, command="serve"):
        self.descriptors_passed = [thing.fileno() for thing in self.things]
        self.prefix = [sys.executable, "-c", LAUNCHER, json.dumps([self.descriptors_passed, self.settings])]
        try:
            return super().start(command)
        finally:
            self.prefix = []

    def has(self, thing) -> bool:
        """Whether it holds this socket, under any number."""
        return open_files(os.getpid())[thing.fileno()] in open_files(self.pid).values()


def listening(path=None) -> socket.socket:
    if path:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
    else:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    return listener


def url(listener) -> str:
    name = listener.getsockname()
    return f"unix://{name}" if isinstance(name, str) else f"tcp://{name[0]}:{name[1]}"


def connect_to(listener) -> socket.socket:
    """A client; the kernel connects it, accepted or not."""
    client = socket.socket(listener.family)
    client.settimeout(GUARD)
    client.connect(listener.getsockname())
    return client


def echo(*listeners, **more) -> dict:
    return {"routes": {"x": {"listen": [url(l) for l in listeners], "endpoint": "sim://echo"}, **more}}


@pytest.fixture
def tcp():
    with listening() as listener:
        yield listener


@pytest.fixture
def unix(folder):
    with listening(f"{folder}/x.sock") as listener:
        yield listener


def test_listeners_use_inherited_sockets_and_do_not_change_them(tcp, unix):
    config = echo(tcp, unix)
    waiting = [connect_to(tcp), connect_to(unix)]  # before any gateway runs
    for _ in range(2):
        with Activated(config, [unix, tcp], LISTEN_FDNAMES="a:b") as gateway:
            assert {e["listen"] for e in gateway.events("listening")} == {url(tcp), url(unix)}
            for client in [*waiting, connect_to(tcp), connect_to(unix)]:
                with client:
                    round_trip(client)
            for number in (3, 4):
                flags = int(re.search(r"flags:\s+(\d+)", pathlib.Path(f"/proc/{gateway.pid}/fdinfo/{number}").read_text())[1], 8)
                assert flags & os.O_NONBLOCK and flags & os.O_CLOEXEC, oct(flags)
            assert gateway.command("health", str(gateway.path)).returncode == 0
            idle = connect_to(tcp)
            round_trip(idle)
        assert receive_all(idle) == b""
        # No gateway accepts now, and no client is refused.
        waiting = [connect_to(tcp), connect_to(unix)]
    assert not gateway.events("inherited socket closed")


def timer(client) -> str:
    """The timer of the other end of this connection (proc(5)): "02" for keepalive, "00" for none."""
    here, there = client.getsockname()[1], client.getpeername()[1]
    ends = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()]
    return next(e[5][:2] for e in ends if e[1].endswith(f":{there:04X}") and e[2].endswith(f":{here:04X}"))


def test_clients_that_connected_before_the_start_get_all_socket_options(tcp):
    early = connect_to(tcp)
    with early, Activated(echo(tcp), [tcp]), connect_to(tcp) as late:
        for client in (early, late):
            round_trip(client)
            until(lambda: timer(client) == "02", what=f"keepalive, not {timer(client)}")


@pytest.mark.waits
def test_a_client_that_connects_during_a_stop_is_served_by_the_next_gateway(tcp):
    # A client that does not read keeps the stopping gateway busy, with its listener already closed.
    flood = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://flood"}
    with Activated(echo(tcp, flood=flood), [tcp]) as gateway:
        stuck = gateway.connect("flood", receive_buffer=4096)
        gateway.event("session opened", route="flood")
        gateway.signal(signal.SIGTERM)
        gateway.event("listener closed", route="x")
        client = connect_to(tcp)
        assert gateway.wait() == 0
        stuck.close()
    with Activated(echo(tcp), [tcp]):
        round_trip(client)


def test_a_reload_keeps_inherited_sockets_and_reuses_them(tcp, unix):
    other = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
    with Activated(echo(tcp, unix, other=other), [tcp, unix]) as gateway:
        stays = connect_to(tcp)
        round_trip(stays)
        # A change that does not concern the listeners.
        config = echo(tcp, unix, other=other)
        config["routes"]["x"]["clients"] = {"max": 5}
        gateway.configure(config)
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded")
        round_trip(stays)
        assert not gateway.events("listener closed")
        # Their route is removed, and comes back under another name.
        gateway.configure({"routes": {"other": other}})
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded", count=2)
        assert stays.recv(1) == b""
        waiting = [connect_to(tcp), connect_to(unix)]
        gateway.configure({"routes": {"other": other, "y": echo(tcp, unix)["routes"]["x"]}})
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded", count=3)
        for client in waiting:
            round_trip(client)
        assert not gateway.events("listener waiting")
    assert os.path.exists(unix.getsockname())


def test_an_inherited_descriptor_without_a_listener_is_reported_and_closed(tcp, unix):
    with listening() as unwanted, socket.socket() as deaf, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        one, two = socket.socketpair()
        with open("/dev/null") as file, one, two:
            things = [unwanted, tcp, deaf, datagrams, file, tcp, one, unix]
            with Activated(echo(tcp, unix), things, LISTEN_FDNAMES="spare::deaf") as gateway:
                told = [(e["socket"], e.get("name"), e["error"]) for e in gateway.events("inherited socket closed")]
                assert told == [
                    (url(unwanted), "spare", "no listener has its address"),
                    ("descriptor 5", "deaf", "it does not listen"),
                    ("descriptor 6", None, "it is neither a TCP socket nor a unix stream socket with a path"),
                    ("descriptor 7", None, "it is not a socket"),
                    (url(tcp), None, "it is the same as descriptor 4"),
                    ("descriptor 9", None, "it is neither a TCP socket nor a unix stream socket with a path"),
                ]
                assert gateway.has(tcp) and gateway.has(unix)
                assert not any(gateway.has(thing) for thing in (unwanted, deaf, datagrams, one))
                for listener in (tcp, unix):
                    with connect_to(listener) as client:
                        round_trip(client)


NONE_TAKEN = "so no socket is inherited"


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"LISTEN_FDS": "99999999"}, NONE_TAKEN),
        ({"LISTEN_FDS": "99999999999999999999"}, NONE_TAKEN),
        ({"LISTEN_FDS": "-1"}, NONE_TAKEN),
        ({"LISTEN_FDS": "two\n\x1b[31m"}, NONE_TAKEN + r": 'two\n\u{1B}[31m'"),
        ({"LISTEN_FDS": ""}, NONE_TAKEN),
        ({"LISTEN_PID": "1"}, "LISTEN_PID is not this process, so no socket is inherited: '1'"),
        ({"LISTEN_PID": "x"}, NONE_TAKEN),
        ({"LISTEN_FDS": "4096"}, "LISTEN_FDS is 4096, but 4095 of these descriptors are not open"),
        ({"LISTEN_FDNAMES": ":" * 100_000}, None),
        ({"LISTEN_FDNAMES": "\x01\xff" * 10_000}, None),
    ])
def test_invalid_listen_fds_variables_are_reported_and_ignored(tcp, settings, problem):
    with Activated({"routes": {"x": PLAIN}}, [tcp], **settings) as gateway:
        with gateway.connect("x") as client:
            round_trip(client)
        said = [line for line in gateway.lines if line.startswith("baudway: ")]
        assert [problem in line for line in said] == ([] if problem is None else [True]), said
