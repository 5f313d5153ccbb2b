"""The sub-protocol `baudway.v1`: what a client may ask for beside its bytes, and what it is told; on a real tty."""
import json
import os
import termios

import jsonschema
from kit import ROOT, Gateway, Pty
from ways import WebSocket, finish

SCHEMA = json.loads((ROOT / "Deploy/baudway.v1.schema.json").read_text())
RATES = {9600: termios.B9600, 115200: termios.B115200}


class Desk(WebSocket):
    """A client that keeps bytes and texts apart. Every text fits the published schema."""

    def __init__(self, gateway: Gateway, path: str = "/lab", **fields):
        super().__init__(gateway.connect("lab"), path, {"Sec-WebSocket-Protocol": "baudway.v1", **fields})
        assert self.head["sec-websocket-protocol"] == "baudway.v1"
        self.bytes, self.texts = b"", []
        assert self.event("hello")["route"] == "lab"

    def ask(self, request: dict):
        jsonschema.validate(request, SCHEMA)
        self.send(json.dumps(request).encode(), 1)

    def _next(self):
        opcode, payload = self.frame()
        if opcode == 1:
            text = json.loads(payload)
            jsonschema.validate(text, SCHEMA)
            self.texts.append(text)
        elif opcode in (0, 2):
            self.bytes += payload
        elif opcode == 9:
            self.send(payload, 10)
        else:
            raise AssertionError((opcode, payload))

    def _text(self, fits) -> dict:
        while not (found := [text for text in self.texts if fits(text)]):
            self._next()
        self.texts.remove(found[0])
        return found[0]

    def event(self, name: str, **fields) -> dict:
        return self._text(lambda t: t.get("event") == name and all(t.get(k) == v for k, v in fields.items()))

    def reply(self, id) -> dict:
        return self._text(lambda t: "reply" in t and t["reply"] == id)

    def read(self, count: int) -> bytes:
        while len(self.bytes) < count:
            self._next()
        taken, self.bytes = self.bytes[:count], self.bytes[count:]
        return taken


def lab(device: Pty | None, **more) -> dict:
    endpoint = device.url if device else "sim://echo"
    return {"routes": {"lab": {"listen": "ws://127.0.0.1:0/lab", "endpoint": endpoint, **more}}}


def rate(device: Pty) -> int:
    return termios.tcgetattr(device.master)[5]


def test_line_settings_reach_the_port_between_the_bytes_and_are_told_to_the_others():
    with Pty() as device, Gateway(lab(device)) as gateway:
        one, other = Desk(gateway), Desk(gateway)
        one.event("link", state="open")
        assert one.event("line")["baud"] == 115200
        one.send(b"before")
        one.ask({"request": "line", "id": 7, "baud": 9600})
        one.send(b"behind")
        reply = one.reply(7)
        assert reply["ok"] and reply["line"] == {"baud": 9600, "data": 8, "parity": "none", "stop": "1", "flow": "none"}
        assert device.read(12) == b"beforebehind" and rate(device) == RATES[9600]
        other.event("line", baud=9600)
        # The first who sets the line holds it.
        other.ask({"request": "line", "id": "x", "baud": 115200})
        assert not (refusal := other.reply("x"))["ok"] and "holds the line" in refusal["error"]
        device.write(b"down")
        assert one.read(4) == other.read(4) == b"down"
        finish(one.client)
        gateway.event("session ended")
        other.ask({"request": "line", "id": 2, "baud": 115200})
        assert other.reply(2)["ok"] and rate(device) == RATES[115200]
        finish(other.client)


def test_what_the_port_has_not_is_said_and_bytes_go_on():
    with Pty() as device, Gateway(lab(device)) as gateway:
        client = Desk(gateway)
        client.event("link", state="open")
        client.ask({"request": "dtr", "id": 1, "on": True})  # a pty has no such line
        assert not client.reply(1)["ok"]
        client.ask({"request": "break", "id": 2, "ms": 20})
        client.send(b"bytes")
        assert client.reply(2)["ok"] and device.read(5) == b"bytes"
        client.send(b'{"request":"lien"}', 1)
        assert client.reply(None)["suggestion"] == "line"
        client.ask({"request": "purge", "id": 3, "what": "both"})
        assert client.reply(3)["ok"]
        finish(client.client)


def test_a_simulated_device_has_no_line_and_keeps_its_bytes():
    with Gateway(lab(None)) as gateway:
        client = Desk(gateway)
        client.event("link", state="open")
        client.send(b"a")
        client.ask({"request": "rts", "id": 1, "on": False})
        client.send(b"b")
        assert client.reply(1)["error"] == "not supported by this endpoint" and client.read(2) == b"ab"
        finish(client.client)


def test_a_monitor_and_one_without_the_pen_may_not_touch_the_line():
    config = lab(None, clients={"writers": "one"})
    with Pty() as device:
        config["routes"]["lab"] |= {"endpoint": device.url, "listen": "ws://127.0.0.1:0/lab"}
        with Gateway(config) as gateway:
            holder, second = Desk(gateway), Desk(gateway)
            holder.event("link", state="open")
            assert holder.event("pen")["mine"] and not second.event("pen")["mine"]
            second.ask({"request": "line", "id": 1, "baud": 9600})
            assert second.reply(1)["error"] == "another client has the pen"
            holder.ask({"request": "pen", "id": 2, "wish": "leave"})
            assert holder.reply(2)["ok"] and second.event("pen", mine=True)
            second.ask({"request": "line", "id": 3, "baud": 9600})
            assert second.reply(3)["ok"] and rate(device) == RATES[9600]
            finish(holder.client)
            finish(second.client)
    with Pty() as device:
        config = lab(device)
        config["routes"]["lab"]["listen"] += "?role=monitor"
        with Gateway(config) as gateway:
            client = Desk(gateway)
            client.event("link", state="open")
            for request in ({"request": "line", "baud": 9600}, {"request": "purge", "what": "both"}, {"request": "break", "on": True}):
                client.ask({**request, "id": 1})
                assert client.reply(1)["error"] == "a monitor may only listen"
            assert rate(device) == RATES[115200]
            finish(client.client)


def test_it_is_told_when_the_device_goes_and_when_it_is_back(tmp_path):
    link = tmp_path / "port"
    config = lab(None)
    first = Pty()
    os.symlink(first.url.removeprefix("tty://").split("?")[0], link)
    config["routes"]["lab"]["endpoint"] = f"tty://{link}?baud=115200"
    with Gateway(config) as gateway:
        client = Desk(gateway)
        client.event("link", state="open")
        link.unlink()
        first.close()
        assert client.event("link", state="waiting")["reason"]
        client.ask({"request": "status", "id": 1})
        assert client.reply(1)["ok"]
        with Pty() as second:
            os.symlink(second.url.removeprefix("tty://").split("?")[0], link)
            client.event("link", state="open")
            client.send(b"again")
            assert second.read(5) == b"again"
            finish(client.client)
