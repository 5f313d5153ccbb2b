"""Ordinary clients on ordinary routes: listeners, limits, pyserial, proxying, the device's output to all."""
import random
import socket

import pytest
import serial
from kit import GUARD, Gateway, Pty, Server, connect, receive, receive_all, receive_until, round_trip, run_all

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}


def test_pyserial_talks_to_an_echo():
    with Gateway({"routes": {"echo": ECHO}}) as gateway:
        host, port = gateway.address("echo")
        with serial.serial_for_url(f"socket://{host}:{port}", timeout=GUARD) as line:
            for size in (1, 64, 4096, 100_000):
                data = random.Random(size).randbytes(size)
                sent, heard = run_all(lambda: line.write(data), lambda: line.read(size))
                assert (sent, heard) == (size, data)
        gateway.stop()
        ended = gateway.event("session ended")
        assert (ended["up"], ended["down"], ended["dropped"]) == (104_161, 104_161, 0)


def test_two_listeners_lead_to_one_device():
    with Pty() as device:
        route = {"listen": ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0"], "endpoint": device.url}
        with Gateway({"routes": {"port": route}}) as gateway, gateway.connect("port", 0) as one, \
                gateway.connect("port", 1) as two:
            assert gateway.address("port", 0) != gateway.address("port", 1)
            gateway.event("link open")
            gateway.event("session opened", count=2)
            device.write(b"to both")
            assert receive(one, 7) == receive(two, 7) == b"to both"
            one.sendall(b"1")
            assert device.read(1) == b"1"
            two.sendall(b"2")
            assert device.read(1) == b"2"


def test_ipv6():
    with Gateway({"routes": {"echo": {**ECHO, "listen": "tcp://[::1]:0"}}}) as gateway:
        assert gateway.address("echo")[0] == "::1"
        with gateway.connect("echo") as client:
            round_trip(client, b"six")
        assert gateway.event("session opened")["client"].startswith("[::1]:")


@pytest.mark.parametrize("listen", ["tcp://:0", "tcp://*:0"])
def test_an_empty_host_listens_on_both_families(listen):
    with Gateway({"routes": {"echo": {**ECHO, "listen": listen}}}, ready=1) as gateway:
        ports = {e["listen"].rsplit(":", 1)[1] for e in gateway.events("listening")}
        served = 0
        for host in ("127.0.0.1", "::1"):
            for port in ports:
                try:
                    with connect((host, int(port))) as client:
                        round_trip(client)
                        served += 1
                except ConnectionRefusedError:
                    continue
        assert served >= 2


def test_a_full_route_refuses_clients_until_one_disconnects():
    with Gateway({"routes": {"echo": {**ECHO, "clients": {"max": 2}}}}) as gateway:
        first, second = gateway.connect("echo"), gateway.connect("echo")
        round_trip(first)
        round_trip(second)
        with gateway.connect("echo") as third:
            receive_all(third)  # a notice at most, then the end
        assert gateway.event("session ended")["reason"] == "full"
        # Its FIN is the only sign, but a client that has left must not cause a refusal.
        first.close()
        with gateway.connect("echo") as fourth:
            round_trip(fourth)
        second.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_tcp_endpoint_is_a_plain_proxy(family):
    def serve(connection):
        while piece := connection.recv(65536):
            connection.sendall(piece)

    with Server(serve, family) as server, \
            Gateway({"routes": {"proxy": {"listen": "tcp://127.0.0.1:0", "endpoint": server.url}}}) as gateway:
        clients = [gateway.connect("proxy") for _ in range(10)]
        for number, client in enumerate(clients):
            round_trip(client, b"%d" % number)
        data = random.Random(7).randbytes(4 << 20)
        for client in clients[:2]:
            _, heard = run_all(lambda: client.sendall(data), lambda: receive(client, len(data)))
            assert heard == data
        for client in clients:
            client.shutdown(socket.SHUT_WR)
            assert receive_all(client) == b""
            client.close()
        gateway.event("session ended", count=10)


def test_a_slow_client_that_delays_others_is_disconnected():
    route = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://flood", "clients": {"slow": "disconnect"}}
    with Gateway({"routes": {"flood": route}}) as gateway:
        stuck = gateway.connect("flood", receive_buffer=4096)
        with gateway.connect("flood") as reader:
            total = 0
            while not gateway.events("session ended"):
                piece = reader.recv(1 << 18)
                assert piece
                total += len(piece)
                assert total < 4 << 30, "never thrown out"
            ended = gateway.event("session ended")
            assert ended["reason"] == "too-slow"
            assert receive(reader, 1 << 20)
        with pytest.raises(ConnectionResetError):
            receive_all(stuck)
        stuck.close()


def test_the_console_answers():
    with Gateway({"routes": {"console": {**ECHO, "endpoint": "sim://console"}}}) as gateway, \
            gateway.connect("console") as client:
        client.sendall(b"help\r")
        assert receive_until(client, b"\n")


def test_a_sink_accepts_every_byte():
    with Gateway({"routes": {"sink": {**ECHO, "endpoint": "sim://sink", "link": "per-client"}}}) as gateway:
        with gateway.connect("sink") as client:
            client.sendall(bytes(8 << 20))
        ended = gateway.event("session ended")
        assert (ended["up"], ended["down"], ended["dropped"]) == (8 << 20, 0, 0)
