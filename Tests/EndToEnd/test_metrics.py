"""What /metrics says, read by a parser that is not ours."""
import os
import re
import socket

import pytest
from admin import ask, curl, place
from kit import Gateway, connect, receive, receive_all, until


# A client that closes its socket may still read, as far as the gateway can tell: it does not wait long for that here.
ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": {"half-close": "100ms"}}


def parse(text: str, is_open: bool = False) -> dict:
    """The samples by name and labels; strict about what Prometheus' parsers are strict about."""
    samples, kinds, helps, current = {}, {}, set(), None
    assert text.endswith("\n")
    lines = text.splitlines()
    if is_open:
        assert lines.pop() == "# EOF"
    for line in lines:
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            assert what in ("HELP", "TYPE", "UNIT") and rest
            if what == "TYPE":
                assert name not in kinds, f"{name} twice"
                kinds[name] = rest
            elif what == "HELP":
                assert name not in helps
                helps.add(name)
            if name != current:
                assert not any(key[0] == name for key in samples)
            current = name
            continue
        name, labels, value = re.fullmatch(r'([a-zA-Z_][a-zA-Z0-9_]*)(?:\{(.*)\})? (\S+)', line).groups()
        suffix = {"counter": "_total", "info": "_info"}.get(kinds[current], "") if is_open else ""
        assert name == current + suffix, line
        if kinds[current] == "counter":
            assert name.endswith("_total")
        pairs = re.findall(r'([a-z]+)="((?:[^"\\\n]|\\["\\n])*)"', labels or "")
        assert ",".join(f'{k}="{v}"' for k, v in pairs) == (labels or "")
        key = (name, frozenset(pairs))
        assert key not in samples, f"{line} twice"
        samples[key] = float(value)
    assert set(kinds) == helps
    return samples


def value(samples: dict, name: str, **labels):
    return samples.get((name, frozenset(labels.items())))


def metrics(gateway: Gateway) -> dict:
    return parse(curl(gateway, "/metrics").text)


def serving(routes: dict, **more) -> Gateway:
    gateway = Gateway({"admin": {"listen": "http://127.0.0.1:0"}, "routes": routes, **more})
    gateway.expected += 1
    return gateway


def test_bytes_clients_and_endings_are_counted():
    with serving({"echo": {**ECHO, "clients": {**ECHO["clients"], "max": 1}}}) as gateway:
        with gateway.connect("echo") as client:
            client.sendall(b"x" * 1000)
            assert receive(client, 1000) == b"x" * 1000
            with gateway.connect("echo") as other:
                assert b"full" in receive_all(other)
            now = metrics(gateway)
            assert value(now, "baudway_clients", route="echo") == 1
            assert value(now, "baudway_clients_limit", route="echo") == 1
            for way in ("up", "down"):
                assert value(now, "baudway_forwarded_bytes_total", route="echo", direction=way) == 1000
            assert value(now, "baudway_links", route="echo", state="open") == 1
            assert value(now, "baudway_link_opens_total", route="echo") == 1
            assert value(now, "baudway_sessions_ended_total", route="echo", ending="full") == 1
            assert value(now, "baudway_sessions_ended_total", route="echo", ending="client-left") is None
        gateway.event("session ended", count=2)
        now = metrics(gateway)
        assert value(now, "baudway_clients", route="echo") == 0
        assert value(now, "baudway_sessions_ended_total", route="echo", ending="client-left") == 1
        assert value(now, "baudway_forwarded_bytes_total", route="echo", direction="up") == 1000
        assert value(now, "baudway_build_info", version=gateway.event("started")["version"]) == 1
        assert value(now, "baudway_ready") == value(now, "baudway_last_reload_successful") == 1
        assert 1 << 20 < value(now, "process_resident_memory_bytes") < 1 << 30
        # The answer's own connection is among them.
        assert abs(value(now, "process_open_fds") - len(os.listdir(f"/proc/{gateway.pid}/fd"))) <= 2


def test_both_formats_have_the_same_samples():
    with serving({"echo": ECHO}) as gateway:
        first = curl(gateway, "/metrics")
        assert first.fields["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
        second = curl(gateway, "/metrics", "-H", accept)
        assert second.fields["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert set(parse(first.text)) == set(parse(second.text, is_open=True))
        head = ask(gateway, "HEAD /metrics", accept)
        assert head.content == b"" and head.fields["content-type"] == second.fields["content-type"]
        old = ask(gateway, b"GET /metrics HTTP/1.0\r\n\r\n")
        assert "transfer-encoding" not in old.fields and set(parse(old.text)) == set(parse(first.text))
        assert ask(gateway, "POST /metrics").status == 405


def test_an_absent_device_and_refusals_are_counted(tmp_path):
    routes = {
        "away": {"listen": "tcp://127.0.0.1:0", "endpoint": f"unix://{tmp_path}/device", "link": "shared",
                 "device": {"open": "always", "retry": "50ms..50ms"}},
        "web": {"listen": "ws://127.0.0.1:0/web", "endpoint": "sim://echo"},
    }
    with serving(routes) as gateway:
        until(lambda: value(metrics(gateway), "baudway_link_open_failures_total", route="away") >= 2, 60, "failures")
        now = metrics(gateway)
        assert value(now, "baudway_link_opens_total", route="away") == 0
        with socket.socket(socket.AF_UNIX) as device:
            device.bind(f"{tmp_path}/device")
            device.listen()
            until(lambda: value(metrics(gateway), "baudway_links", route="away", state="open") == 1, 60, "open")
            device.accept()[0].close()
            until(lambda: value(metrics(gateway), "baudway_link_losses_total", route="away") >= 1, 60, "lost")
        with gateway.connect("away") as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            receive_all(client)
        with gateway.connect("web") as client:
            client.sendall(b"\0\1\2")
            receive_all(client)
        until(lambda: value(metrics(gateway), "baudway_handshake_failures_total", reason="protocol-error") == 1, 60)
        assert value(metrics(gateway), "baudway_refusals_total", reason="http-request") == 1


def test_a_user_sees_the_figures_of_its_routes():
    users = {
        "all": {"token": "4f2d8c0a9b7e6d5c", "roles": {"*": "monitor"}},
        "one": {"token": "0b1c2d3e4f506172", "roles": {"a": "monitor"}},
    }
    with serving({"a": ECHO, "b": ECHO}, users=users) as gateway:
        def seen(token):
            samples = parse(curl(gateway, "/metrics", "-H", f"Authorization: Bearer {token}").text)
            return {dict(labels)["route"] for _, labels in samples if "route" in dict(labels)}
        assert seen(users["all"]["token"]) == {"a", "b"} and seen(users["one"]["token"]) == {"a"}
        assert curl(gateway, "/metrics").status == 401


def test_a_client_that_reads_nothing_delays_nobody_and_few_are_served_at_a_time():
    routes = {f"r{n}": {"listen": f"unix://{{}}/r{n}", "endpoint": "sim://echo"} for n in range(400)}
    gateway = serving({})
    for name, route in routes.items():
        route["listen"] = f"unix://{gateway.folder}/{name}"
    gateway.configure({"admin": {"listen": "http://127.0.0.1:0"}, "routes": routes})
    gateway.expected += 1
    with gateway:
        stuck = []
        for _ in range(4):
            client = connect(place(gateway), receive_buffer=4096)
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            stuck.append(client)
        until(lambda: ask(gateway, "GET /metrics").status == 503, 60, "too many")
        assert ask(gateway, "GET /readyz").status == 200
        for client in stuck:
            client.close()
        until(lambda: ask(gateway, "GET /metrics").status == 200, 60, "the next one")
        assert len({dict(labels).get("route") for _, labels in metrics(gateway)} - {None}) == 400
