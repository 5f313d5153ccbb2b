"""Bytes sent before a close arrive before that close, in both directions, however slow the other side is."""
import errno
import fcntl
import hashlib
import json
import os
import random
import re
import select
import socket
import time

import pytest
from kit import GUARD, Gateway, Pty, Server, connect, receive, receive_all, receive_until, reset, run_all, until

SMALL = 128 << 10
BIG = 8 << 20


def paced(read, size: int, rate: int, seconds: float = GUARD) -> bytes:
    """Reads `size` bytes at no more than `rate` bytes a second."""
    data, start = bytearray(), time.monotonic()
    while len(data) < size and time.monotonic() - start < seconds:
        due = start + len(data) / rate - time.monotonic()
        if due > 0:
            time.sleep(min(due, 0.1))
            continue
        piece = read(rate // 20)
        if not piece:
            break
        data += piece
    return bytes(data)


def tcp_route(endpoint: str, **more) -> dict:
    return {"listen": "tcp://127.0.0.1:0", "endpoint": endpoint, **more}


@pytest.mark.waits
def test_a_slow_device_gets_everything_from_a_client_that_left_at_once():
    sent = random.Random(1).randbytes(SMALL)
    with Pty() as device, Gateway({"routes": {"port": tcp_route(device.url)}}) as gateway:
        with gateway.connect("port") as client:
            client.sendall(sent)

        def read(count):
            ready, _, _ = select.select([device.master], [], [], GUARD)
            return os.read(device.master, count) if ready else b""

        assert paced(read, SMALL, 32_000) == sent
        # The client might still be reading: only the reset of the device's next output shows that it is gone.
        device.write(b"anybody?")
        ended = gateway.event("session ended")
        assert (ended["reason"], ended["up"], ended["dropped"]) == ("client-left", SMALL, 0)


@pytest.mark.waits
def test_a_slow_client_gets_everything_from_an_endpoint_that_left_at_once():
    sent = random.Random(2).randbytes(SMALL)
    with Server(lambda connection: connection.sendall(sent)) as server, \
            Gateway({"routes": {"proxy": tcp_route(server.url)}}) as gateway, \
            gateway.connect("proxy", receive_buffer=4096) as client:
        assert paced(client.recv, SMALL, 32_000) == sent
        assert client.recv(1) == b""
        client.close()
        ended = gateway.event("session ended")
        assert (ended["reason"], ended["down"]) == ("endpoint-left", SMALL)


@pytest.mark.waits
def test_a_slow_endpoint_gets_everything_from_a_client_that_left_at_once():
    sent, heard = random.Random(3).randbytes(SMALL), []

    def serve(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        heard.append(paced(connection.recv, SMALL, 32_000) + connection.recv(1))

    with Server(serve) as server, Gateway({"routes": {"proxy": tcp_route(server.url)}}) as gateway:
        with gateway.connect("proxy") as client:
            client.sendall(sent)
        ended = gateway.event("session ended")
        assert ended["up"] == SMALL
    assert heard == [sent]


@pytest.mark.waits
def test_a_slow_endpoint_that_answers_gets_everything_from_a_client_that_left_at_once():
    """Its answers can no longer be delivered; resetting it for them would destroy what it has not read yet."""
    sent, heard = random.Random(3).randbytes(SMALL), []

    def serve(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

        def read(count):
            piece = connection.recv(count)
            if piece:
                connection.sendall(piece)
            return piece

        heard.append(paced(read, SMALL, 32_000))

    with Server(serve) as server, Gateway({"routes": {"proxy": tcp_route(server.url)}}) as gateway:
        with gateway.connect("proxy") as client:
            client.sendall(sent)
        gateway.event("session ended")
        until(lambda: heard or server.errors)
    assert heard == [sent]


def test_a_reply_after_the_clients_fin_arrives_whole_at_a_slow_reader():
    reply = random.Random(4).randbytes(BIG)

    def serve(connection):
        assert receive_all(connection) == b"request"
        connection.sendall(reply)

    with Server(serve) as server, Gateway({"routes": {"proxy": tcp_route(server.url)}}) as gateway, \
            gateway.connect("proxy", receive_buffer=16384) as client:
        client.sendall(b"request")
        client.shutdown(socket.SHUT_WR)
        heard = bytearray()
        while piece := client.recv(1 << 16):
            heard += piece
            time.sleep(0.003)
        assert hashlib.sha256(heard).digest() == hashlib.sha256(reply).digest()
        ended = gateway.event("session ended")
        assert (ended["up"], ended["down"]) == (7, BIG)


@pytest.mark.waits
def test_a_stopped_client_under_block_loses_nothing_and_stays(long):
    pause = 60 if long else 12
    size = 16 << 20
    sent = random.Random(5).randbytes(size)
    route = tcp_route("", clients={"slow": "block"}, device={"flush": "none"})
    with Pty() as device, Gateway({"routes": {"port": {**route, "endpoint": device.url}}}) as gateway, \
            gateway.connect("port", receive_buffer=16384) as client:
        gateway.event("link open")

        def client_hears():
            first = receive(client, 1 << 20)
            time.sleep(pause)
            return first + receive(client, size - len(first))

        heard, _ = run_all(client_hears, lambda: device.write(sent), seconds=pause + GUARD)
        assert hashlib.sha256(heard).digest() == hashlib.sha256(sent).digest()
        assert not gateway.events("session ended")
        # Still connected, in both directions.
        client.sendall(b"here")
        assert device.read(4) == b"here"


def test_a_half_closed_client_of_a_shared_link_still_receives():
    with Pty() as device, Gateway({"routes": {"port": tcp_route(device.url)}}) as gateway, \
            gateway.connect("port") as client:
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        assert device.read(8) == b"question"
        device.write(b"answer\n")
        assert receive_until(client, b"answer\n")


@pytest.mark.waits
def test_a_port_is_free_for_local_programs_five_seconds_after_its_only_client_closed(quick):
    with Pty() as device, Gateway({"routes": {"port": tcp_route(device.url)}}) as gateway:
        def local_program():
            try:
                return os.open(device.path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            except OSError as error:
                # The gateway opens ports exclusively. Root can open them all the same, so its lock is checked too.
                assert error.errno == errno.EBUSY, error
                return None

        def is_free():
            port = local_program()
            if port is None:
                return False
            try:
                fcntl.flock(port, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return False
            finally:
                os.close(port)

        client = gateway.connect("port")
        gateway.event("link open")
        client.sendall(b"bye")
        assert device.read(3) == b"bye"
        assert not is_free()
        before = time.monotonic()
        client.close()
        until(is_free, every=0.05, what="the port is free")
        length = time.monotonic() - before
        assert length > 4.9, length
        quick(length, 9)  # 5 s are promised; the rest is for a busy machine
        ended = gateway.event("session ended")
        assert ended["reason"] == "no-answer" and ended["dropped"] == 0


@pytest.mark.parametrize("half_close", ["off", "1s"])
def test_half_close_sets_how_long_a_client_receives_after_its_fin(half_close, quick):
    route = tcp_route("sim://echo", clients={"half-close": half_close})
    with Gateway({"routes": {"echo": route}}) as gateway, gateway.connect("echo") as client:
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        before = time.monotonic()
        if half_close != "off":
            assert receive(client, 8) == b"question"
        assert receive_all(client) in (b"", b"question")
        length = time.monotonic() - before
        assert half_close == "off" or length > 0.9, length
        quick(length, 4 if half_close == "off" else 5)
        assert gateway.event("session ended")["up"] == 8


# More than the gateway's ring: the FIN waits in the kernel after unread bytes, or at first even in the client's kernel. The
# device takes as much as its own buffer holds, and no more.
@pytest.mark.parametrize("count", [90_000, pytest.param(300_000, marks=pytest.mark.waits)])
def test_a_client_that_left_is_listed_as_closing_with_its_age_until_drain_ends_it(quick, count):
    route = tcp_route("%s", device={"drain": "2s"})
    with Pty() as device:
        route["endpoint"] = device.url
        with Gateway({"routes": {"port": route}}) as gateway:
            client = gateway.connect("port")
            gateway.event("link open")
            client.sendall(bytes(count))
            client.close()

            def listed():
                clients = json.loads(gateway.command("status", "--json").stdout)["routes"][0]["clients"]
                return clients and clients[0]["state"] == "closing" and clients[0]
            found = until(listed, every=0.2, what="it is closing")
            assert found["queued-up"] > 0
            quick(found["closing-seconds"], 6)
            table = gateway.command("status").stdout
            assert re.search(r" closing \d+(\.\d)?s$", table, re.M), table
            ended = gateway.event("session ended")
            assert ended["reason"] == "client-left" and ended["dropped"] > 0
            quick(float(ended["seconds"]), 10)  # 2 s without progress, a check interval and a busy machine


def test_a_refused_endpoint_ends_the_session_with_its_reason():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = "tcp://%s:%d" % taken.getsockname()
    with Gateway({"routes": {"proxy": tcp_route(url)}}) as gateway:
        with gateway.connect("proxy") as client:
            assert receive_all(client) == b""
        ended = gateway.event("session ended")
        assert ended["reason"] == "open-failed"
        assert "refused" in ended["error"].lower(), ended


def test_a_reset_ends_one_client_and_the_others_stay():
    with Gateway({"routes": {"echo": tcp_route("sim://echo")}}) as gateway, gateway.connect("echo") as stays:
        leaves = connect(gateway.address("echo"))
        gateway.event("session opened", count=2)
        reset(leaves)
        assert gateway.event("session ended")["reason"] == "client-lost"
        stays.sendall(b"still here")
        assert receive(stays, 10) == b"still here"
