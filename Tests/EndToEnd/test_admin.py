"""The admin listener: who reaches it, health checks, and what a reload does to it."""
import json
import socket
import subprocess

import pytest
from admin import Answer, ask, curl, parse, place
from certificates import Authority
from kit import Gateway, binary, connect, receive_all, round_trip, until
from listener_clients import WebSocket, finish

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
TOKENS = {"ada": "4f2d8c0a9b7e6d5c", "bob": "0b1c2d3e4f506172"}
USERS = {
    "ada": {"token": TOKENS["ada"], "roles": {"*": "admin"}},
    "bob": {"token": TOKENS["bob"], "roles": {"echo": "monitor"}},
}


def config(**more) -> dict:
    admin = {"listen": "http://127.0.0.1:0"}
    return {"admin": admin, "routes": {"echo": ECHO}, **more}


def serving(config: dict) -> Gateway:
    gateway = Gateway(config)
    gateway.expected += 1
    return gateway


def bearer(user: str) -> str:
    return f"Authorization: Bearer {TOKENS[user]}"


def test_health_and_readiness_are_told_to_probes():
    with serving(config(users=USERS)) as gateway:
        for path, content in (("/healthz", "ok\n"), ("/readyz", "ready\n"), ("/readyz?route=echo", "ready\n")):
            answer = curl(gateway, path)
            assert (answer.status, answer.text) == (200, content)
            assert answer.fields["content-length"] == str(len(content))
            head = ask(gateway, f"HEAD {path}")
            assert (head.status, head.content, head.fields) == (200, b"", answer.fields)
        # As a probe of HAProxy: HTTP/1.0, without Host.
        assert ask(gateway, b"GET /healthz HTTP/1.0\r\n\r\n").text == "ok\n"
        assert ask(gateway, "GET /readyz?route=nobody").status == 404


def test_a_gateway_is_not_ready_while_a_listener_has_no_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        routes = {"echo": ECHO, "late": {"listen": f"tcp://127.0.0.1:{port}", "endpoint": "sim://echo"}}
        gateway = Gateway(config(routes=routes), ready=2)
        with gateway:
            answer = ask(gateway, "GET /readyz")
            assert answer.status == 503 and "listener" in answer.text
            assert ask(gateway, "GET /healthz").status == 200
            taken.close()
            until(lambda: ask(gateway, "GET /readyz").status == 200, 60, "ready")


def test_a_route_is_ready_when_its_device_is_there(tmp_path):
    """Or when it opens on demand and has no client: nobody misses it yet."""
    there = {"url": f"unix://{tmp_path}/device"}
    routes = {
        "always": {"listen": "tcp://127.0.0.1:0", "endpoint": there, "link": "shared", "device": {"open": "always", "retry": "100ms..100ms"}},
        "demand": {"listen": "tcp://127.0.0.1:0", "endpoint": {"url": f"unix://{tmp_path}/other"}, "link": "shared"},
        "own": {"listen": "tcp://127.0.0.1:0", "endpoint": "tcp://127.0.0.1:9", "link": "per-client"},
    }
    with serving(config(routes=routes)) as gateway:
        def ready(route):
            return ask(gateway, f"GET /readyz?route={route}").status
        assert (ready("always"), ready("demand"), ready("own")) == (503, 200, 200)
        with gateway.connect("demand"):
            until(lambda: ready("demand") == 503, 60, "the link is missed")
        with socket.socket(socket.AF_UNIX) as device:
            device.bind(f"{tmp_path}/device")
            device.listen()
            until(lambda: ready("always") == 200, 60, "the link is open")


def test_a_name_of_somebody_else_is_refused_and_can_be_added():
    """DNS rebinding: a web page lets its own name lead to this address."""
    with serving(config()) as gateway:
        answer = ask(gateway, "GET /", host="evil.example")
        assert answer.status == 403 and answer.fields["content-type"] == "application/problem+json"
        assert "admin.hosts" in answer.json["detail"]
        assert ask(gateway, "GET /healthz", host="evil.example").status == 200
        assert ask(gateway, "GET /", host="localhost:1").status == 200
        ended = gateway.event("session ended", reason="denied")
        assert "evil.example" in ended["error"]
        status = json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)
        assert status["refused"] == {"web-host": 1}
        assert [one["bound"] for one in status["admin"]] == [f"http://127.0.0.1:{place(gateway)[1]}"]
        assert f"admin: http://127.0.0.1:{place(gateway)[1]}" in gateway.command("status", str(gateway.path)).stdout
        gateway.configure(config(admin={"listen": "http://127.0.0.1:0", "hosts": ["evil.example"]}))
        gateway.signal(1)
        assert gateway.event("reloaded")["changes"] == "admin.hosts"
        assert ask(gateway, "GET /", host="evil.example").status == 200


def test_users_log_in_with_curl():
    with serving(config(users=USERS)) as gateway:
        answer = curl(gateway, "/metrics")
        assert answer.status == 401 and answer.json["title"] == "Unauthorized"
        assert answer.fields["www-authenticate"].startswith("Basic ") and "Bearer" in answer.fields["www-authenticate"]
        assert curl(gateway, "/metrics", "-H", "Authorization: Bearer 0123456789abcdef").status == 401
        assert curl(gateway, "/metrics", "-H", bearer("bob")).text.startswith("# HELP ")
        # A name of somebody else is no danger with credentials: the page has none for its own name.
        assert curl(gateway, "/metrics", "-H", bearer("bob"), "-H", "Host: proxy.example").status == 200
        # A reload takes the user away.
        gateway.configure(config(users={"ada": USERS["ada"]}))
        gateway.signal(1)
        gateway.event("reloaded")
        assert curl(gateway, "/metrics", "-H", bearer("bob")).status == 401
        assert curl(gateway, "/metrics", "-H", bearer("ada")).status == 200


def test_passwords_and_certificates_over_tls(tmp_path):
    authority = Authority(tmp_path)
    pair, ada = authority.issue("gateway", "localhost", "127.0.0.1"), authority.issue("ada")
    tls = {
        "certificate": str(pair.certificate), "key": str(pair.key), "client-ca": str(authority.certificate),
        "client-auth": "optional",
    }
    users = {"ada": {**USERS["ada"], "certificate": "ada"}, "bob": {**USERS["bob"], "password": None}}
    gateway = Gateway(config(admin={"listen": "https://127.0.0.1:0"}, tls=tls, users=users))
    hashed = gateway_hash(b"secret")
    users["bob"]["password"] = hashed
    gateway.configure(config(admin={"listen": "https://127.0.0.1:0"}, tls=tls, users=users))
    gateway.expected += 1
    with gateway:
        trusted = ["--cacert", str(authority.certificate)]
        assert curl(gateway, "/healthz", *trusted, scheme="https").text == "ok\n"
        assert curl(gateway, "/metrics", *trusted, "-u", "bob:secret", scheme="https").status == 200
        assert curl(gateway, "/metrics", *trusted, "-u", "bob:wrong", scheme="https").status == 401
        own = ["--cert", str(ada.certificate), "--key", str(ada.key)]
        assert curl(gateway, "/metrics", *trusted, *own, scheme="https").status == 200
        assert curl(gateway, "/metrics", *trusted, scheme="https").status == 401


def gateway_hash(password: bytes) -> str:
    done = subprocess.run([binary(), "hash-password", "--cost", "1"], input=password + b"\n", capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_it_shares_a_port_with_routes_by_path():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    routes = {"echo": {"listen": f"ws://{address}/echo", "endpoint": "sim://echo"}}
    shared = config(admin={"listen": f"http://{address}"}, routes=routes)
    with serving(shared) as gateway:
        def works():
            client = WebSocket(connect(("127.0.0.1", port)), "/echo")
            client.send(b"hello")
            assert client.receive(5) == b"hello"
            finish(client.client)
        works()
        assert ask(gateway, "GET /healthz").text == "ok\n"
        answer = ask(gateway, "GET /elsewhere")
        assert (answer.status, answer.json["status"]) == (404, 404)
        gateway.event("request refused")
        # The listener goes, the routes stay; then the reverse.
        gateway.configure({"routes": routes})
        gateway.signal(1)
        assert gateway.event("reloaded")["changes"] == "admin.listen"
        works()
        with connect(("127.0.0.1", port)) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert receive_all(client).startswith(b"HTTP/1.1 404 ")
        gateway.configure(config(admin={"listen": f"http://{address}"}))
        gateway.signal(1)
        gateway.event("reloaded", count=2)
        with connect(("127.0.0.1", port)) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert parse(receive_all(client)).text == "ok\n"


@pytest.mark.parametrize("listen, more, missing", [
    ("http://0.0.0.0:0", {"users": USERS}, "TLS"), ("http://:0", {}, "TLS (https) and no 'users'"),
    ("http://192.0.2.1:8080", {}, "TLS"),
])
def test_it_does_not_bind_beyond_this_machine_by_accident(listen, more, missing):
    gateway = Gateway(config(admin={"listen": listen}, **more))
    done = gateway.command("check", str(gateway.path))
    assert done.returncode == 78 and f"has no {missing}" in done.stderr and "insecure: yes" in done.stderr
    gateway.configure(config(admin={"listen": listen, "insecure": True}, **more))
    assert gateway.command("check", str(gateway.path)).returncode == 0


def test_a_reload_adds_moves_and_removes_it():
    with Gateway({"routes": {"echo": ECHO}}) as gateway, gateway.connect("echo") as client:
        gateway.configure(config())
        gateway.signal(1)
        assert gateway.event("reloaded")["changes"] == "admin.listen"
        first = place(gateway)
        assert ask(gateway, "GET /healthz").status == 200
        gateway.configure(config(admin={"listen": ["http://[::1]:0", "http://127.0.0.2:0"]}))
        gateway.signal(1)
        gateway.event("reloaded", count=2)
        gateway.event("listener closed")
        with pytest.raises(ConnectionRefusedError):
            connect(first)
        with connect(place(gateway, index=2)) as other:
            other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert parse(receive_all(other)).text == "ok\n"
        gateway.configure({"routes": {"echo": ECHO}})
        gateway.signal(1)
        gateway.event("reloaded", count=3)
        gateway.event("listener closed", count=3)
        assert json.loads(gateway.command("health", "--json", str(gateway.path)).stdout or "{}").get("routes", 1) == 1
        round_trip(client)  # nobody else noticed


def test_a_request_may_come_in_pieces_and_more_after_it_is_not_answered():
    with serving(config()) as gateway:
        with connect(place(gateway)) as client:
            for byte in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n":
                client.sendall(bytes([byte]))
            assert parse(receive_all(client)).text == "ok\n"
        twice = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2
        assert ask(gateway, twice).text == "ok\n"
        answer: Answer = ask(gateway, b"\x16\x03\x01\x02\x00\x01")
        assert answer.status == 400 and answer.fields["content-type"] == "application/problem+json"
        assert ask(gateway, b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n").status == 505
        assert ask(gateway, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 17_000).status == 431
        assert ask(gateway, "DELETE /healthz").fields["allow"] == "GET, HEAD"


@pytest.mark.waits
@pytest.mark.measured
def test_nobody_asking_costs_no_wake_up(long):
    with serving(config(users=USERS)) as gateway:
        assert ask(gateway, "GET /healthz").status == 200
        gateway.falls_asleep(10 if long else 3)
