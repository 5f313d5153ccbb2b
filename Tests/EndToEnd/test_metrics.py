"""What /metrics says, read by a parser that is not ours."""
import contextlib
import os
import re
import socket

import pytest
from admin import ask, curl, place
from certificates import Authority
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


def test_what_is_wrong_is_told(tmp_path):
    """Listeners, mistakes of the file, certificates, and clients that do not finish their handshake."""
    pair = Authority(tmp_path).issue("gateway", "localhost", "127.0.0.1")
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        routes = {"late": {**ECHO, "listen": f"tcp://127.0.0.1:{taken.getsockname()[1]}"}, "safe": {**ECHO, "listen": "tls://127.0.0.1:0"}}
        gateway = serving(routes, tls=tls)
        gateway.ready = gateway.expected - 1
        with gateway, connect(place(gateway)), connect(place(gateway)):
            # Those two, and the answer's own connection is beyond its handshake.
            until(lambda: value(metrics(gateway), "baudway_handshakes_unfinished") == 2, what="unfinished handshakes")
            now = metrics(gateway)
            assert value(now, "baudway_ready") == 0 and value(now, "baudway_handshakes_limit") > 2
            assert value(now, "baudway_listeners", route="late", state="waiting") == 1
            assert value(now, "baudway_listeners", route="safe", state="listening") == 1
            assert value(now, "baudway_admin_connections") == 1
            up = {dict(labels)["lane"]: value for (name, labels), value in now.items() if name == "baudway_lane_up"}
            assert len(up) >= 2 and set(up.values()) == {1}
            assert all(0 <= value(now, "baudway_lane_answer_seconds", lane=lane) < 1 for lane in up)
            pair.certificate.write_text("not a certificate")
            gateway.signal(1)
            until(lambda: value(metrics(gateway), "baudway_certificate_faults") == 1, what="the fault of the certificate")
            gateway.path.write_text("routes: { a: { listn: x } }")
            gateway.signal(1)
            until(lambda: value(metrics(gateway), "baudway_last_reload_successful") == 0, what="the mistake")


def test_what_is_kept_dropped_and_refused_is_counted():
    device = {"open": "on-demand"}
    routes = {
        "away": {**ECHO, "endpoint": "tty:///dev/baudway-not-there", "device": device},
        "flood": {**ECHO, "endpoint": "sim://flood", "clients": {"slow": "drop-oldest", "buffer": "4KiB"}},
        "queue": {**ECHO, "clients": {"max": 1, "when-full": "queue"}},
    }
    with serving(routes) as gateway, gateway.connect("away") as away, gateway.connect("queue"):
        away.sendall(b"hello")
        with gateway.connect("queue"), gateway.connect("flood", receive_buffer=4096):
            until(lambda: value(metrics(gateway), "baudway_queued_bytes", route="away", direction="up") == 5, what="bytes kept from a client")
            until(lambda: value(metrics(gateway), "baudway_queued_bytes", route="flood", direction="down") > 0, what="bytes kept for a client")
            until(lambda: value(metrics(gateway), "baudway_dropped_bytes_total", route="flood") > 0, what="bytes dropped")
            until(lambda: value(metrics(gateway), "baudway_clients_waiting", route="queue") == 1, what="a client in the queue")
            now = metrics(gateway)
            assert value(now, "baudway_links", route="away", state="waiting") == 1 and value(now, "baudway_clients", route="queue") == 1


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


@contextlib.contextmanager
def read_by_nobody():
    """A gateway with many routes, and four clients that ask for its metrics and read nothing."""
    gateway = serving({})
    routes = {f"r{n}": {"listen": f"unix://{gateway.folder}/r{n}", "endpoint": "sim://echo"} for n in range(400)}
    gateway.configure({"admin": {"listen": "http://127.0.0.1:0"}, "routes": routes})
    gateway.expected += 1
    with gateway:
        stuck = []
        for _ in range(4):
            client = connect(place(gateway), receive_buffer=4096)
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            stuck.append(client)
        yield gateway, stuck


def test_a_client_that_reads_nothing_delays_nobody_and_few_are_served_at_a_time():
    with read_by_nobody() as (gateway, stuck):
        until(lambda: ask(gateway, "GET /metrics").status == 503, 60, "too many")
        for path in ("/api/v1/routes", "/api/v1/clients"):
            answer = ask(gateway, f"GET {path}")
            assert answer.status == 503 and answer.fields["retry-after"] == "5"
        assert ask(gateway, "GET /readyz").status == 200
        for client in stuck:
            client.close()
        until(lambda: ask(gateway, "GET /metrics").status == 200, 60, "the next one")
        assert len({dict(labels).get("route") for _, labels in metrics(gateway)} - {None}) == 400


@pytest.mark.waits
def test_a_client_that_reads_nothing_is_given_up():
    """After half a minute, so that others are served again."""
    with read_by_nobody() as (gateway, _):
        until(lambda: ask(gateway, "GET /metrics").status == 503, 60, "too many")
        until(lambda: ask(gateway, "GET /metrics").status == 200, 60, "the next one", every=0.2)
