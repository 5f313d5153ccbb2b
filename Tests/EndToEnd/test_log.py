"""The log: text and JSON tell the same, one line per event, never a byte of payload."""
import os
import re

import pytest
from kit import Gateway, connect, parse_json, parse_text, reset, round_trip

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")


@pytest.mark.parametrize("text", [True, False])
def test_a_sessions_story(text):
    # A link of its own, so that the client's end is the echo's too.
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


def test_a_log_that_nobody_reads_any_more_ends_nothing():
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


def test_a_links_story():
    """On a shared link: opened by the first client, closed after the last."""
    with Gateway({"routes": {"echo": ECHO}}) as gateway:
        client = gateway.connect("echo")
        round_trip(client)
        reset(client)
        gateway.event("link closed")
        assert [e["event"] for e in gateway.entries if e["event"].startswith("link")] == ["link open", "link closed"]
        assert gateway.event("link open")["endpoint"] == "sim://echo"
