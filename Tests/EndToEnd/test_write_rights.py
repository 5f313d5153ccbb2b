"""The right to write through every kind of listener: a monitor never has it, and with one writer role only its
holder."""
import json
import os
import select
import signal
import socket

import pytest
from certificates import Authority
from kit import GUARD, Gateway, Pty, connect, receive, until
from listener_clients import WebSocket, finish, trusting


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


class ListenerClient:
    """A client of one kind of listener, which sends and receives bytes."""

    def __init__(self, kind: str, where, authority, pair=None, fields=None):
        self.kind, self.web = kind, None
        if kind == "pty":
            self.raw = os.open(where, os.O_RDWR | os.O_NOCTTY)
            return
        if kind == "unix":
            self.client = socket.socket(socket.AF_UNIX)
            self.client.settimeout(GUARD)
            self.client.connect(where)
        else:
            self.client = connect(where)
        if kind == "proxied":
            self.client.sendall(b"PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n")
        if kind in ("tls", "wss"):
            self.client = trusting(authority, pair).wrap_socket(self.client, server_hostname="gw.test")
        if kind == "control-channel":
            fields = {**(fields or {}), "Sec-WebSocket-Protocol": "baudway.v1"}
        if kind in ("ws", "wss", "control-channel"):
            self.web = WebSocket(self.client, "/port", fields)

    def send(self, data: bytes):
        if self.kind == "pty":
            os.write(self.raw, data)
        elif self.web:
            self.web.send(data)
        else:
            self.client.sendall(data)

    def hears(self, data: bytes):
        if self.kind == "pty":
            heard = b""
            while len(heard) < len(data):
                assert select.select([self.raw], [], [], 20)[0]
                heard += os.read(self.raw, len(data) - len(heard))
            assert heard == data
        elif self.kind == "control-channel":  # events come in between
            heard = b""
            while len(heard) < len(data):
                opcode, payload = self.web.frame()
                heard += payload if opcode == 2 else b""
            assert heard == data
        elif self.web:
            assert self.web.receive(len(data)) == data
        else:
            assert receive(self.client, len(data)) == data

    def close(self):
        if self.kind == "pty":
            os.close(self.raw)
        elif self.kind == "unix":
            self.client.close()
        else:
            finish(self.client)


KINDS = ["tcp", "proxied", "tls", "ws", "wss", "control-channel", "unix", "pty"]


def config(kind: str, device, folder, authority, query="", **more) -> dict:
    """One listener of the kind, and a unix socket next to it."""
    url = {
        "tcp": "tcp://127.0.0.1:0", "proxied": "tcp://127.0.0.1:0?proxy-protocol=required", "tls": "tls://127.0.0.1:0",
        "ws": "ws://127.0.0.1:0/port", "control-channel": "ws://127.0.0.1:0/port", "wss": "wss://127.0.0.1:0/port", "unix": f"unix://{folder}/s",
        "pty": f"pty://{folder}/p",
    }[kind]
    url += query and ("&" if "?" in url else "?") + query
    route = {"listen": [url, f"unix://{folder}/other"], "endpoint": device.url, "device": {"open": "always"}, **more}
    if kind in ("tls", "wss"):
        pair = authority.issue("gw.test", "gw.test")
        route["tls"] = {"certificate": str(pair.certificate), "key": str(pair.key)}
    return {"proxies": ["127.0.0.1"], "routes": {"port": route}}


def address_of(gateway, kind: str, folder):
    if kind in ("unix", "pty"):
        return f"{folder}/{'s' if kind == 'unix' else 'p'}"
    scheme = {"proxied": "tcp", "control-channel": "ws"}.get(kind, kind)
    url = next(e["listen"] for e in gateway.events("listening") if e["listen"].startswith(f"{scheme}://"))
    host, port = url.split("://")[1].rsplit(":", 1)
    return host, int(port.split("/")[0])


def dropped(gateway) -> int:
    """Dropped bytes of the connected clients."""
    status = json.loads(gateway.command("status", "--json").stdout)
    return sum(client["dropped"] for route in status["routes"] for client in route["clients"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_monitor_writes_through_no_listener(authority, folder, kind):
    with Pty() as device, Gateway(config(kind, device, folder, authority, "role=monitor")) as gateway:
        gateway.event("link open")
        monitor = ListenerClient(kind, address_of(gateway, kind, folder), authority)
        assert gateway.event("session opened")["role"] == "monitor"
        monitor.send(b"not heard")
        until(lambda: dropped(gateway) == 9, what="the monitor's bytes are dropped", every=0.05)
        writer = ListenerClient("unix", f"{folder}/other", authority)
        writer.send(b"heard")
        assert device.read(5) == b"heard"
        device.write(b"to both")
        monitor.hears(b"to both")
        writer.hears(b"to both")
        monitor.close()
        writer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_without_the_writer_role_writes_through_no_listener(authority, folder, kind):
    more = {"clients": {"writers": "one"}}
    with Pty() as device, Gateway(config(kind, device, folder, authority, **more)) as gateway:
        gateway.event("link open")
        holder = ListenerClient("unix", f"{folder}/other", authority)
        gateway.event("writer changed")
        other = ListenerClient(kind, address_of(gateway, kind, folder), authority)
        gateway.event("session opened", count=2)
        other.send(b"not heard")
        until(lambda: dropped(gateway) == 9, what="the bytes of the one without the writer role are dropped", every=0.05)
        holder.send(b"heard")
        assert device.read(5) == b"heard"
        holder.close()
        gateway.event("writer changed", count=2)
        other.send(b"now")
        assert device.read(3) == b"now"
        other.close()


@pytest.mark.parametrize("kind", ["tls", "wss"])
def test_a_user_of_a_certificate_has_the_role_from_the_configuration(authority, folder, kind):
    with Pty() as device:
        settings = config(kind, device, folder, authority)
        settings["routes"]["port"]["tls"]["client-ca"] = str(authority.certificate)
        settings["users"] = {"ada": {"certificate": "CN=ada", "roles": {"port": "monitor"}}}
        with Gateway(settings) as gateway:
            gateway.event("link open")
            ada = ListenerClient(kind, address_of(gateway, kind, folder), authority, authority.issue("ada"))
            opened = gateway.event("session opened")
            assert (opened["user"], opened["role"]) == ("ada", "monitor")
            ada.send(b"not heard")
            until(lambda: dropped(gateway) == 9, what="the monitor's bytes are dropped", every=0.05)
            # A client that has no role here any more is disconnected.
            settings["users"]["ada"]["roles"] = {"elsewhere*": "writer"}
            gateway.configure(settings)
            gateway.signal(signal.SIGHUP)
            assert gateway.event("session ended")["reason"] == "denied"
            ada.close()
