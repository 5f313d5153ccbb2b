"""Admission as a user with a plain socket sees it: networks, full routes, queues, banners, idle clients, and stops."""
import os
import signal
import socket
import time

import pytest
from kit import GUARD, Deadline, Gateway, Pty, connect, receive, receive_all, reset, round_trip

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}


def route(**clients) -> dict:
    return {**ECHO, "clients": {key.replace("_", "-"): value for key, value in clients.items()}}


def line(client: socket.socket) -> str:
    """The next line of text."""
    data = b""
    while not data.endswith(b"\r\n"):
        data += receive(client, 1)
    return data[:-2].decode()


@pytest.mark.parametrize("clients", [{"deny": ["127.0.0.0/8"]}, {"allow": ["::1"]}])
def test_allow_and_deny_decide_which_clients_are_accepted(clients):
    config = {"routes": {"lab": {**route(**clients), "listen": "tcp://*:0"}}}
    with Gateway(config) as gateway:
        port = gateway.address("lab")[1]
        with connect(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"let me in")
            assert receive_all(stranger) == b"baudway: lab is not open to 127.0.0.1\r\n"
        assert gateway.event("session ended")["reason"] == "denied"
        with connect(("::1", port)) as friend:
            round_trip(friend)
        gateway.event("session opened")
        assert len(gateway.events("session opened")) == 1


def test_a_reload_disconnects_clients_it_denies():
    config = {"routes": {"lab": {**ECHO, "listen": "tcp://*:0"}}}
    with Gateway(config) as gateway:
        port = gateway.address("lab")[1]
        with connect(("127.0.0.1", port)) as stranger, connect(("::1", port)) as friend:
            gateway.event("session opened", count=2)
            config["routes"]["lab"]["clients"] = {"deny": ["127.0.0.1"]}
            gateway.configure(config)
            gateway.signal(signal.SIGHUP)
            gateway.event("reloaded")
            assert receive_all(stranger) == b""
            assert gateway.event("session ended")["reason"] == "denied"
            round_trip(friend)  # on the same port, which stayed open
            with connect(("127.0.0.1", port)) as again:
                assert receive_all(again) == b"baudway: lab is not open to 127.0.0.1\r\n"
        assert len(gateway.events("listening")) == 1 and len(gateway.events("link open")) == 1


def test_a_monitor_receives_output_but_cannot_write():
    listen = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0?role=monitor"]
    with Gateway({"routes": {"lab": {**ECHO, "listen": listen}}}) as gateway:
        with gateway.connect("lab", 0) as writer, gateway.connect("lab", 1) as monitor:
            gateway.event("session opened", count=2)
            writer.sendall(b"w")
            assert receive(writer, 1) == receive(monitor, 1) == b"w"
            monitor.sendall(b"not for the device")
        roles = sorted(e.get("role", "writer") for e in gateway.events("session opened"))
        assert roles == ["monitor", "writer"]


def test_replace_oldest_disconnects_the_oldest_client():
    with Gateway({"routes": {"lab": route(max=2, when_full="replace-oldest")}}) as gateway:
        first, second = gateway.connect("lab"), gateway.connect("lab")
        gateway.event("session opened", count=2)
        third = gateway.connect("lab")
        assert receive_all(first) == b""  # in order, and at once
        third.sendall(b"3")
        assert receive(third, 1) == receive(second, 1) == b"3"
        ended = gateway.event("session ended")
        assert ended["reason"] == "replaced" and ended["session"] == gateway.event("session opened")["session"]
        for client in (first, second, third):
            client.close()


@pytest.mark.parametrize("most", [1, 2])
def test_a_port_check_does_not_disconnect_a_client(most):
    """A connection without a byte that closes takes no slot of a full route; one that sends, or stays, takes the oldest."""
    with Gateway({"routes": {"lab": route(max=most, when_full="replace-oldest")}}) as gateway:
        clients = [gateway.connect("lab") for _ in range(most)]
        for client in clients:
            round_trip(client)
        for check in range(3):
            gateway.connect("lab").close()
            gateway.event("session ended", count=check + 1)
        assert {end["reason"] for end in gateway.events("session ended")} == {"queue-left"}
        for client in clients:
            round_trip(client)
        with gateway.connect("lab") as sender:
            round_trip(sender)
            oldest = gateway.event("session opened")["session"]
            assert gateway.event("session ended", reason="replaced")["session"] == oldest
            with gateway.connect("lab"):
                gateway.event("session ended", reason="replaced", count=2)  # it has stayed for a second
        for client in clients:
            client.close()


def test_a_queued_client_learns_its_place_and_its_input_is_kept():
    with Gateway({"routes": {"lab": route(max=1, when_full="queue")}}) as gateway:
        first = gateway.connect("lab")
        round_trip(first)
        second, third, fourth = (gateway.connect("lab") for _ in range(3))
        for place, client in enumerate((second, third, fourth), 1):
            assert line(client) == f"baudway: lab is full; you are number {place} in the queue"
            client.sendall(b"%d" % place)
        third.close()  # stops waiting
        assert gateway.event("session ended")["reason"] == "queue-left"
        assert line(fourth) == "baudway: lab is full; you are number 2 in the queue"
        reset(first)
        assert receive(second, 1) == b"1"
        assert line(fourth) == "baudway: lab is full; you are number 1 in the queue"
        second.close()  # only a FIN: it could still read, but another client waits for its slot
        assert receive(fourth, 1) == b"3"
        gateway.event("session opened", count=3)
        assert [e["dropped"] for e in gateway.events("session ended", reason="queue-left")] == [1]
        fourth.close()


def test_a_stop_disconnects_queued_clients():
    with Gateway({"routes": {"lab": route(max=1, when_full="queue")}}, stopping=False) as gateway:
        first = gateway.connect("lab")
        round_trip(first)
        second = gateway.connect("lab")
        line(second)
        second.sendall(b"never read")
        gateway.signal(signal.SIGTERM)
        assert receive_all(second) == b"baudway: shutting down\r\n"
        assert receive_all(first) == b""
        first.close()
        second.close()
        assert gateway.wait() == 0
        gateway.check_sessions()
        assert {e["reason"] for e in gateway.events("session ended")} == {"shutdown"}


def test_a_stop_resets_no_connected_client():
    """Clients that the kernel has accepted and the gateway has not, because it is paused with SIGSTOP meanwhile."""
    with Gateway({"routes": {"lab": {**route(max=200), "link": "per-client"}}}, stopping=False) as gateway:
        address = gateway.address("lab")
        gateway.signal(signal.SIGSTOP)
        clients = [connect(address) for _ in range(100)]
        for client in clients:
            client.sendall(b"hello?")
        gateway.signal(signal.SIGTERM)
        gateway.signal(signal.SIGCONT)
        for client in clients:
            # Some may be accepted before the signal is handled; none of them sees a reset.
            assert receive_all(client).replace(b"hello?", b"") in (b"", b"baudway: shutting down\r\n")
            client.close()
        assert gateway.wait() == 0
        gateway.check_sessions()
        assert len(gateway.events("session ended")) == 100


def test_the_banner_comes_first_even_for_a_slow_reader(folder):
    # Long names expand the 4 KiB that a text may have to 100 KB.
    text = "".join(f"{number} {{endpoint}}\n" for number in range(255)) + "you are {client} of {route}\n"
    with Pty() as device:
        for depth in range(1, 9):
            os.mkdir("/".join([folder, *["x" * 40] * depth]))
        link = "/".join([folder, *["x" * 40] * 8, "device"])
        os.symlink(device.path, link)
        url = f"tty://{link}"
        lab = {"listen": "tcp://127.0.0.1:0", "endpoint": url, "clients": {"banner": text, "backlog": "4KiB"},
               "device": {"open": "always"}}
        with Gateway({"routes": {"lab": lab}}) as gateway:
            gateway.event("link open")
            device.write(b"before")
            time.sleep(0.1)
            client = gateway.connect("lab", receive_buffer=4096)
            expected = text.format(
                route="lab", client="%s:%d" % client.getsockname(), endpoint=url).replace("\n", "\r\n").encode()
            assert len(expected) > 80_000
            gateway.event("session opened")
            device.write(b"after")
            time.sleep(0.1)
            assert receive(client, len(expected)) == expected
            assert receive(client, 11) == b"beforeafter"
            client.sendall(b"?")
            assert device.read(1) == b"?"
            reset(client)
            ended = gateway.event("session ended")
            assert ended["down"] == 11, "the banner is not the device's"


def test_an_idle_client_is_disconnected():
    with Gateway({"routes": {"lab": {**route(idle_timeout="1s"), "link": "per-client"}}}) as gateway:
        with gateway.connect("lab") as idle, gateway.connect("lab") as talker:
            guard, later = Deadline(GUARD), None
            while not later or not later.passed:  # and it goes on for longer than its own timeout
                assert not guard.passed, "nobody was idle"
                round_trip(talker)
                time.sleep(0.05)
                if gateway.events("session ended"):
                    later = later or Deadline(0.5)
            ended = gateway.event("session ended")
            assert ended["reason"] == "idle" and float(ended["seconds"]) >= 1
            assert ended["client"] == "%s:%d" % idle.getsockname(), "not the one that talks"
            assert receive_all(idle) == b""
            round_trip(talker)
            assert receive_all(talker) == b""
            assert gateway.event("session ended", count=2)["reason"] == "idle"
