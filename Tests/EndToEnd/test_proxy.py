"""Clients behind a proxy that reports their address: the PROXY protocol, versions 1 and 2."""
import socket
import struct

import pytest
from certificates import Authority
from kit import Gateway, connect, receive, receive_all, round_trip
from listener_clients import WebSocket, finish, trusting

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def v1(source: str, port: int = 51233) -> bytes:
    return f"PROXY TCP4 {source} 127.0.0.1 {port} 4001\r\n".encode()


def v2(source: str, port: int = 51233, more: bytes = b"") -> bytes:
    body = socket.inet_aton(source) + socket.inet_aton("127.0.0.1") + struct.pack("!HH", port, 4001) + more
    return SIGNATURE + bytes([0x21, 0x11]) + struct.pack("!H", len(body)) + body


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("header", [v1, v2])
@pytest.mark.parametrize("kind", ["tcp", "tls", "ws", "wss"])
def test_every_listener_uses_the_address_from_the_proxy_header(authority, kind, header):
    pair = authority.issue("gw.test", "gw.test")
    path = "/lab" if kind in ("ws", "wss") else ""
    lab = {"listen": f"{kind}://127.0.0.1:0{path}?proxy-protocol=required", "endpoint": "sim://echo",
           "clients": {"deny": ["192.0.2.66"]}}
    if kind in ("tls", "wss"):
        lab["tls"] = {"certificate": str(pair.certificate), "key": str(pair.key)}
    with Gateway({"proxies": ["127.0.0.0/8"], "routes": {"lab": lab}}) as gateway:
        client = connect(gateway.address("lab"))
        client.sendall(header("192.0.2.7"))
        if kind in ("tls", "wss"):
            client = trusting(authority).wrap_socket(client, server_hostname="gw.test")
        if path:
            web = WebSocket(client, path)
            web.send(b"?")
            assert web.receive(1) == b"?"
        else:
            round_trip(client)
        assert gateway.event("session opened")["client"] == "192.0.2.7:51233"
        finish(client)
        gateway.event("session ended")
        with connect(gateway.address("lab")) as denied:
            denied.sendall(header("192.0.2.66"))
            if kind == "ws":
                denied.sendall(b"GET /lab HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                               b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
            said = receive_all(denied)
            assert {"tcp": b"not open to 192.0.2.66", "ws": b" 403 "}.get(kind, b"\x15\x03\x03\x00\x02\x02\x31") in said
        assert gateway.event("session ended", count=2)["reason"] == "denied"


def test_a_proxy_header_from_an_unlisted_address_is_refused():
    lab = {"listen": "tcp://127.0.0.1:0?proxy-protocol=required", "endpoint": "sim://echo"}
    with Gateway({"proxies": ["192.0.2.1"], "routes": {"lab": lab}}) as gateway:
        with connect(gateway.address("lab")) as liar:
            liar.sendall(v1("192.0.2.7"))
            with pytest.raises((ConnectionError, AssertionError)):
                receive(liar, 1)
        ended = gateway.event("session ended")
        assert ended["reason"] == "denied" and ended["client"].startswith("127.0.0.1:")


def test_a_proxys_own_check_opens_no_device_and_uses_no_slot():
    """As HAProxy's `check-send-proxy` of version 2 does it: LOCAL, and nothing more."""
    lab = {"listen": "tcp://127.0.0.1:0?proxy-protocol=required", "endpoint": "sim://echo", "clients": {"max": 1}}
    with Gateway({"proxies": ["127.0.0.1"], "log": {"level": "debug", "format": "json"}, "routes": {"lab": lab}}) as gateway:
        for _ in range(3):
            with connect(gateway.address("lab")) as check:
                check.sendall(SIGNATURE + b"\x20\x00\x00\x00" + b"GET /health HTTP/1.0\r\n\r\n")
                assert receive_all(check) == b""  # an orderly close, not a reset
        assert not gateway.events("session ended") and not gateway.events("link open")
        with connect(gateway.address("lab")) as client:
            client.sendall(v2("192.0.2.7"))
            round_trip(client)
            finish(client)
        assert gateway.event("session ended")["client"] == "192.0.2.7:51233"
        assert len(gateway.events("session opened")) == 1


def test_a_broken_header_is_refused_and_reported():
    lab = {"listen": "tcp://127.0.0.1:0?proxy-protocol=required", "endpoint": "sim://echo"}
    with Gateway({"proxies": ["127.0.0.1"], "routes": {"lab": lab}}) as gateway:
        broken = [b"GET / HTTP/1.0\r\n\r\n", v1("192.0.2.700"), SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12), b"PROXY " + b"x" * 200]
        for number, header in enumerate(broken, 1):
            with connect(gateway.address("lab")) as client:
                client.sendall(header)
                with pytest.raises((ConnectionError, AssertionError)):
                    receive(client, 1)
            ended = gateway.event("session ended", count=number)
            assert ended["reason"] == "protocol-error" and "PROXY" in ended["error"]
