"""The log: text and JSON contain the same, one line per event, never a byte of payload."""
import collections
import datetime
import json
import os
import re

import pytest
from certificates import Authority
from kit import Gateway, connect, parse_json, parse_text, reset, round_trip

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
PROXY = {**ECHO, "link": "per-client"}
SUMMARY = {"repeats": "summary"}
STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")


@pytest.mark.parametrize("text", [True, False])
def test_the_log_shows_the_life_of_a_session(text):
    # A per-client link, so that the client's end is the echo's too.
    with Gateway({"routes": {"echo": {**ECHO, "link": "per-client"}}}, text=text) as gateway:
        with gateway.connect("echo") as client:
            round_trip(client, b"payload-payload-payload")
            name = "%s:%d" % client.getsockname()
        gateway.event("session ended")
        listen = "tcp://%s:%d" % gateway.address("echo")
        opened, ended = gateway.event("session opened"), gateway.event("session ended")
        gateway.stop()
        parse = parse_text if text else parse_json
        assert all(parse(line) for line in gateway.lines), gateway.lines
        for entry in gateway.entries:
            assert STAMP.match(entry["time"]), entry
            assert entry["level"] in ("info", "warning", "error", "notice", "debug"), entry
        told = [(e["event"], e.get("route")) for e in gateway.entries]
        for event in (("listening", "echo"), ("started", None), ("session opened", "echo"),
                      ("session ended", "echo"), ("stopping", None), ("stopped", None)):
            assert told.count(event) == 1, (event, told)
        for entry in (opened, ended):
            assert (entry["client"], entry["route"]) == (name, "echo")
        assert opened["session"] == ended["session"]
        assert opened["listen"] == listen
        assert (ended["reason"], int(ended["up"]), int(ended["down"]), int(ended["dropped"])) == ("client-left", 23, 23, 0)
        assert 0 <= float(ended["seconds"]) < 10
        assert not any("payload" in line for line in gateway.lines)


def test_a_closed_log_pipe_ends_no_session():
    read, write = os.pipe()
    gateway = Gateway({"routes": {"echo": ECHO}}, stderr=write, stopping=False)
    with open(read, "rb") as pipe:
        gateway.start()
        os.close(write)
        port = None
        for line in pipe:
            entry = parse_json(line.decode())
            if entry["event"] == "listening":
                port = int(entry["listen"].rpartition(":")[2])
                break
    try:
        for _ in range(3):
            with connect(("127.0.0.1", port)) as client:
                round_trip(client)
                reset(client)
        gateway.stop()
    finally:
        gateway.__exit__(None, None, None)


def test_numbers_are_numbers_in_json():
    with Gateway({"routes": {"echo": ECHO}}) as gateway:
        client = gateway.connect("echo")
        round_trip(client)
        reset(client)
        ended = gateway.event("session ended")
        for key in ("session", "up", "down", "dropped", "seconds"):
            assert isinstance(ended[key], (int, float)), (key, ended)


def test_the_log_shows_the_life_of_a_link():
    """A shared link is opened by the first client and closed after the last."""
    with Gateway({"routes": {"echo": ECHO}}) as gateway:
        client = gateway.connect("echo")
        round_trip(client)
        reset(client)
        gateway.event("link closed")
        assert [e["event"] for e in gateway.entries if e["event"].startswith("link")] == ["link open", "link closed"]
        assert gateway.event("link open")["endpoint"] == "sim://echo"


# --- what is counted instead of repeated -------------------------------------------------------------------------------


def refuse(gateway, route: str, count: int):
    """Connects `count` times; each connection is refused, and read to its end."""
    address = gateway.address(route)
    for _ in range(count):
        with connect(address) as client:
            while client.recv(100):
                pass


def most_each_second(entries: list[dict]):
    """Asserts that no second of the log has more than 10 of these lines, whatever the speed of the machine. The gateway counts
    its seconds from the first of them, so the log's own seconds may each have parts of two."""
    times = [datetime.datetime.fromisoformat(entry["time"]) for entry in entries]
    second = datetime.timedelta(seconds=0.9)
    most = max(sum(start <= time < start + second for time in times) for start in times)
    assert most <= 20, f"{most} lines within a second: {entries[:30]}"


@pytest.mark.parametrize("repeats", ["summary", "all"])
def test_five_thousand_refused_connections_are_logged_in_few_lines(repeats):
    """By default there are some lines and counts; `repeats: all` writes each. `status` counts all of them either
    way."""
    closed = {**ECHO, "clients": {"deny": ["127.0.0.0/8"]}}
    with Gateway({"log": {"repeats": repeats}, "routes": {"closed": closed}}, text=True) as gateway:
        refuse(gateway, "closed", 5000)
        shown = json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)
        assert [route["totals"]["ended"] for route in shown["routes"]] == [{"denied": 5000}]
        gateway.stop()
        ended = gateway.events("session ended", reason="denied")
        counted = gateway.events("connections not served")
        assert len(ended) + sum(int(entry["denied"]) for entry in counted) == 5000
        if repeats == "all":
            assert len(ended) == 5000 and not counted
        else:
            most_each_second(ended)
            assert len(gateway.lines) < 1000, f"{len(gateway.lines)} lines of log: {gateway.lines[:30]}"
            assert {(entry["client"], entry["route"]) for entry in counted} == {("127.0.0.1", "closed")}
            assert all(entry["count"] == entry["denied"] for entry in counted)


def test_connections_that_end_before_a_session_are_counted(tmp_path):
    """A TLS handshake that never comes belongs to no session, and counts like a refusal."""
    pair = Authority(tmp_path).issue("localhost", "localhost")
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    config = {"log": SUMMARY, "tls": tls, "routes": {"lab": {**ECHO, "listen": "tls://127.0.0.1:0"}}}
    with Gateway(config) as gateway:
        for _ in range(300):
            connect(gateway.address("lab")).close()
        gateway.event("connections not served")
        gateway.stop()
        words = collections.Counter()
        for entry in gateway.events("session ended"):
            words[entry["reason"]] += 1
        for entry in gateway.events("connections not served"):
            words.update({word: entry[word] for word in ("client-left", "client-lost") if word in entry})
        assert sum(words.values()) == 300 and set(words) <= {"client-left", "client-lost"}, words
        assert len(gateway.events("session ended")) >= 10
        most_each_second(gateway.events("session ended"))


def test_a_session_with_its_own_link_is_logged_once_it_lasts():
    """The line comes once the session is 1 s old, with the time of its opening; a shorter session's end line has its
    fields."""
    with Gateway({"log": SUMMARY, "routes": {"proxy": PROXY}}) as gateway:
        with gateway.connect("proxy") as short:
            round_trip(short)
        first = gateway.event("session ended")
        listen = "tcp://%s:%d" % gateway.address("proxy")
        was_short = float(first["seconds"]) < 0.9  # not so on a machine that stood still
        assert first["listen"] == listen or not was_short
        with gateway.connect("proxy") as client:
            round_trip(client)
            before = datetime.datetime.now(datetime.timezone.utc)
            opened = gateway.event("session opened", client="%s:%d" % client.getsockname())
            waited = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(opened["time"])
            assert opened["listen"] == listen and waited.total_seconds() > 0.9
            assert datetime.datetime.fromisoformat(opened["time"]) < before
        ended = gateway.event("session ended", count=2)
        assert "listen" not in ended and ended["session"] == opened["session"]
        gateway.stop()
        assert len(gateway.events("session opened")) == 1 or not was_short


def test_the_link_of_one_client_is_logged_at_debug():
    with Gateway({"log": {**SUMMARY, "level": "debug"}, "routes": {"proxy": PROXY}}) as gateway:
        with gateway.connect("proxy") as client:
            round_trip(client)
        ended = gateway.event("session ended")
        gateway.event("link closed")
        for event in ("link opening", "link open", "link closed"):
            assert gateway.event(event)["level"] == "debug" and gateway.event(event)["session"] == ended["session"]


def test_an_absent_device_is_logged_once_and_again_when_the_reason_changes():
    path = "tty:///tmp/bw-no-such-device-%d" % os.getpid()
    lab = {"listen": "tcp://127.0.0.1:0", "endpoint": path, "device": {"open": "always", "retry": "10ms..10ms"}}
    with Gateway({"log": {**SUMMARY, "level": "debug"}, "routes": {"lab": lab}}) as gateway:
        gateway.event("link opening", count=20)
        assert len(gateway.events("link waiting")) == 1
        assert "ENOENT" in gateway.event("link waiting")["error"]
        name = path.removeprefix("tty://")
        try:
            with open(name, "w"):
                other = gateway.event("link waiting", count=2)
            assert "ENOENT" not in other["error"]
            gateway.event("link opening", count=len(gateway.events("link opening")) + 20)
            assert len(gateway.events("link waiting")) == 2
        finally:
            os.unlink(name)


def test_repeats_can_be_changed_by_a_reload():
    closed = {**ECHO, "clients": {"deny": ["127.0.0.0/8"]}}
    routes = {"routes": {"closed": closed}}
    with Gateway({"log": SUMMARY, **routes}) as gateway:
        refuse(gateway, "closed", 30)
        gateway.configure({"log": {"repeats": "all"}, **routes})
        assert gateway.command("reload", str(gateway.path)).returncode == 0
        assert "log.repeats" in gateway.event("reloaded")["changes"]
        before = len(gateway.events("session ended"))
        refuse(gateway, "closed", 200)
        gateway.event("session ended", count=before + 200)
        assert sum(entry["count"] for entry in gateway.events("connections not served")) == 30 - before
