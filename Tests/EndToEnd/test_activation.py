"""Sockets that a starter has bound: sd_listen_fds(3), with a launcher in systemd's place. The real one: unit.sh."""
import json
import os
import pathlib
import re
import signal
import socket
import sys

import pytest
from kit import Gateway, receive_all, round_trip

# Puts the descriptors it is told of at 3, 4 … and becomes the program behind them, with a starter's environment.
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
    """A gateway that is started with these sockets, or other things that have a descriptor."""

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
        """Whether it holds this socket, whatever its number."""
        wanted = os.readlink(f"/proc/self/fd/{thing.fileno()}")
        return wanted in [os.readlink(path) for path in pathlib.Path(f"/proc/{self.pid}/fd").iterdir()]


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


def come(listener) -> socket.socket:
    """A client, connected by the kernel whether anybody accepts or not."""
    client = socket.socket(listener.family)
    client.settimeout(10)
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


def test_listeners_use_what_was_bound_for_them_and_leave_it_as_it_was(tcp, unix):
    config = echo(tcp, unix)
    waiting = [come(tcp), come(unix)]  # before there is a gateway at all
    for _ in range(2):
        with Activated(config, [unix, tcp], LISTEN_FDNAMES="a:b") as gateway:
            assert {e["listen"] for e in gateway.events("listening")} == {url(tcp), url(unix)}
            for client in [*waiting, come(tcp), come(unix)]:
                with client:
                    round_trip(client)
            for number in (3, 4):
                flags = int(re.search(r"flags:\s+(\d+)", pathlib.Path(f"/proc/{gateway.pid}/fdinfo/{number}").read_text())[1], 8)
                assert flags & os.O_NONBLOCK and flags & os.O_CLOEXEC, oct(flags)
            assert gateway.command("health", str(gateway.path)).returncode == 0
            idle = come(tcp)
            round_trip(idle)
        assert receive_all(idle) == b""
        # Nobody accepts now, and nobody is refused.
        waiting = [come(tcp), come(unix)]
    assert not gateway.events("inherited socket closed")


@pytest.mark.waits
def test_who_comes_while_it_stops_is_for_the_next_one(tcp):
    # A client who does not read keeps the gateway busy with its end, its listener closed already.
    flood = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://flood"}
    with Activated(echo(tcp, flood=flood), [tcp]) as gateway:
        stuck = gateway.connect("flood", receive_buffer=4096)
        gateway.event("session opened", route="flood")
        gateway.signal(signal.SIGTERM)
        gateway.event("listener closed", route="x")
        client = come(tcp)
        assert gateway.wait(8) == 0
        stuck.close()
    with Activated(echo(tcp), [tcp]):
        round_trip(client)


def test_a_reload_keeps_them_and_finds_them_again(tcp, unix):
    other = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
    with Activated(echo(tcp, unix, other=other), [tcp, unix]) as gateway:
        stays = come(tcp)
        round_trip(stays)
        # A change that leaves the listeners where they are.
        config = echo(tcp, unix, other=other)
        config["routes"]["x"]["clients"] = {"max": 5}
        gateway.configure(config)
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded")
        round_trip(stays)
        assert not gateway.events("listener closed")
        # Their route goes, and comes back by another name.
        gateway.configure({"routes": {"other": other}})
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded", count=2)
        assert stays.recv(1) == b""
        waiting = [come(tcp), come(unix)]
        gateway.configure({"routes": {"other": other, "y": echo(tcp, unix)["routes"]["x"]}})
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded", count=3)
        for client in waiting:
            round_trip(client)
        assert not gateway.events("listener waiting")
    assert os.path.exists(unix.getsockname())


def test_what_nobody_listens_on_is_told_of_and_closed(tcp, unix):
    with listening() as unwanted, socket.socket() as deaf, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        one, two = socket.socketpair()
        with open("/dev/null") as file, one, two:
            things = [unwanted, tcp, deaf, datagrams, file, tcp, one, unix]
            with Activated(echo(tcp, unix), things, LISTEN_FDNAMES="spare::deaf") as gateway:
                told = [(e["socket"], e.get("name"), e["error"]) for e in gateway.events("inherited socket closed")]
                assert told == [
                    (url(unwanted), "spare", "no listener has its address"),
                    ("descriptor 5", "deaf", "it does not listen"),
                    ("descriptor 6", None, "it is no TCP socket and no unix stream socket with a path"),
                    ("descriptor 7", None, "it is no socket"),
                    (url(tcp), None, "it is the same as descriptor 4"),
                    ("descriptor 9", None, "it is no TCP socket and no unix stream socket with a path"),
                ]
                assert gateway.has(tcp) and gateway.has(unix)
                assert not any(gateway.has(thing) for thing in (unwanted, deaf, datagrams, one))
                for listener in (tcp, unix):
                    with come(listener) as client:
                        round_trip(client)


NONE_TAKEN = "so no socket is taken over"


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"LISTEN_FDS": "99999999"}, NONE_TAKEN),
        ({"LISTEN_FDS": "99999999999999999999"}, NONE_TAKEN),
        ({"LISTEN_FDS": "-1"}, NONE_TAKEN),
        ({"LISTEN_FDS": "two\n\x1b[31m"}, NONE_TAKEN + r": 'two\n\u{1B}[31m'"),
        ({"LISTEN_FDS": ""}, NONE_TAKEN),
        ({"LISTEN_PID": "1"}, "LISTEN_PID is not this process, so no socket is taken over: '1'"),
        ({"LISTEN_PID": "x"}, NONE_TAKEN),
        ({"LISTEN_FDS": "4096"}, "LISTEN_FDS says 4096, but 4095 of these descriptors are not open"),
        ({"LISTEN_FDNAMES": ":" * 100_000}, None),
        ({"LISTEN_FDNAMES": "\x01\xff" * 10_000}, None),
    ])
def test_a_hostile_environment_is_told_of_and_left_alone(tcp, settings, problem):
    with Activated({"routes": {"x": PLAIN}}, [tcp], **settings) as gateway:
        with gateway.connect("x") as client:
            round_trip(client)
        said = [line for line in gateway.lines if line.startswith("baudway: ")]
        assert [problem in line for line in said] == ([] if problem is None else [True]), said
