"""The sub-protocol `baudway.v1` on a real tty: what a client may request next to its bytes, and which events it
gets."""
import asyncio
import json
import os
import re
import socket
import termios

import control_channel
import jsonschema
import pytest
import websockets
from kit import ROOT, Gateway, Pty, connect
from listener_clients import finish

RATES = {9600: termios.B9600, 115200: termios.B115200}


def ControlChannel(gateway: Gateway, **fields) -> control_channel.ControlChannel:
    client = control_channel.ControlChannel(gateway.connect("lab"), **fields)
    assert client.event("hello")["route"] == "lab"
    return client


def lab(device: Pty | None, **more) -> dict:
    endpoint = device.url if device else "sim://echo"
    return {"routes": {"lab": {"listen": "ws://127.0.0.1:0/lab", "endpoint": endpoint, **more}}}


def rate(device: Pty) -> int:
    return termios.tcgetattr(device.master)[5]


def test_line_settings_apply_between_bytes_and_other_clients_are_notified():
    with Pty() as device, Gateway(lab(device)) as gateway:
        one, other = ControlChannel(gateway), ControlChannel(gateway)
        one.event("link", state="open")
        assert one.event("line")["baud"] == 115200
        one.send(b"before")
        one.ask({"request": "line", "id": 7, "baud": 9600})
        one.send(b"behind")
        reply = one.reply(7)
        assert reply["ok"] and reply["line"] == {"baud": 9600, "data": 8, "parity": "none", "stop": "1", "flow": "none"}
        assert device.read(12) == b"beforebehind" and rate(device) == RATES[9600]
        other.event("line", baud=9600)
        # The first client to set the line holds it.
        other.ask({"request": "line", "id": "x", "baud": 115200})
        assert not (refusal := other.reply("x"))["ok"] and "holds the line settings" in refusal["error"]
        device.write(b"down")
        assert one.read(4) == other.read(4) == b"down"
        # Until it leaves, also by a FIN without a close frame: WebSocket has no half-close.
        one.client.shutdown(socket.SHUT_WR)
        assert gateway.event("session ended")["reason"] == "client-left"
        other.ask({"request": "line", "id": 2, "baud": 115200})
        assert other.reply(2)["ok"] and rate(device) == RATES[115200]
        finish(other.client)


def test_an_unsupported_request_is_refused_and_bytes_continue():
    with Pty() as device, Gateway(lab(device)) as gateway:
        client = ControlChannel(gateway)
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


def test_a_simulated_device_refuses_line_requests_and_bytes_continue():
    with Gateway(lab(None)) as gateway:
        client = ControlChannel(gateway)
        client.event("link", state="open")
        client.send(b"a")
        client.ask({"request": "rts", "id": 1, "on": False})
        client.send(b"b")
        assert client.reply(1)["error"] == "not supported by this endpoint" and client.read(2) == b"ab"
        finish(client.client)


def test_only_the_holder_of_the_writer_role_may_change_the_line():
    config = lab(None, clients={"writers": "one"})
    with Pty() as device:
        config["routes"]["lab"] |= {"endpoint": device.url, "listen": "ws://127.0.0.1:0/lab"}
        with Gateway(config) as gateway:
            holder, second = ControlChannel(gateway), ControlChannel(gateway)
            holder.event("link", state="open")
            assert holder.event("writer")["mine"] and not second.event("writer")["mine"]
            second.ask({"request": "line", "id": 1, "baud": 9600})
            assert second.reply(1)["error"] == "another client has the writer role"
            holder.ask({"request": "writer", "id": 2, "wish": "leave"})
            assert holder.reply(2)["ok"] and second.event("writer", mine=True)
            second.ask({"request": "line", "id": 3, "baud": 9600})
            assert second.reply(3)["ok"] and rate(device) == RATES[9600]
            finish(holder.client)
            finish(second.client)
    with Pty() as device:
        config = lab(device)
        config["routes"]["lab"]["listen"] += "?role=monitor"
        with Gateway(config) as gateway:
            client = ControlChannel(gateway)
            client.event("link", state="open")
            for request in ({"request": "line", "baud": 9600}, {"request": "purge", "what": "both"}, {"request": "break", "on": True}):
                client.ask({**request, "id": 1})
                assert client.reply(1)["error"] == "a monitor may only read"
            assert rate(device) == RATES[115200]
            finish(client.client)


def test_a_client_gets_events_when_the_device_is_lost_and_returns(tmp_path):
    link = tmp_path / "port"
    config = lab(None)
    first = Pty()
    os.symlink(first.url.removeprefix("tty://").split("?")[0], link)
    config["routes"]["lab"]["endpoint"] = f"tty://{link}?baud=115200"
    with Gateway(config) as gateway:
        client = ControlChannel(gateway)
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


def test_line_changes_are_all_or_nothing_and_are_reverted_at_disconnect():
    with Pty() as device, Gateway(lab(device)) as gateway:
        one, other = ControlChannel(gateway), ControlChannel(gateway)
        one.event("link", state="open")
        other.event("line", baud=115200)
        reply = one.answer("line", baud=9600, parity="even")  # a pty takes any rate, and no parity
        assert not reply["ok"] and reply["error"] == "the port does not support parity even"
        assert reply["line"]["baud"] == 115200 and rate(device) == RATES[115200]
        assert one.answer("line", baud=9600)["ok"] and rate(device) == RATES[9600]
        other.event("line", baud=9600)
        finish(one.client)
        other.event("line", baud=115200)
        assert rate(device) == RATES[115200]
        finish(other.client)


def test_a_pty_reports_no_modem_lines():
    with Pty() as device, Gateway(lab(device)) as gateway:
        client = ControlChannel(gateway)
        # The request may come while the port is being opened; the port answers it.
        assert client.answer("watch", on=True)["error"] == "not supported by this endpoint"
        assert client.answer("watch", on=False)["ok"]
        finish(client.client)


def test_a_request_before_the_link_is_open_waits_for_it(tmp_path):
    with Pty() as device, Gateway(lab(device)) as gateway:
        client = control_channel.ControlChannel(gateway.connect("lab"))
        client.ask({"request": "line", "id": 1, "baud": 9600})
        client.send(b"behind")
        assert client.reply(1)["ok"] and device.read(6) == b"behind" and rate(device) == RATES[9600]
        finish(client.client)
    config = lab(None)
    config["routes"]["lab"]["endpoint"] = f"tty://{tmp_path}/none"
    with Gateway(config) as gateway:
        client = control_channel.ControlChannel(gateway.connect("lab"))
        client.ask({"request": "line", "id": 1, "baud": 9600})
        assert client.reply(1)["error"] == "the link is waiting"
        finish(client.client)


def test_the_last_event_has_the_reason_of_the_ending():
    config = lab(None, clients={"max": 1, "when-full": "replace-oldest", "banner": "{route}, be kind"})
    with Gateway(config) as gateway:
        client = control_channel.ControlChannel(gateway.connect("lab"))
        assert client.event("hello")["banner"] == "lab, be kind"
        client.event("link", state="open")
        newer = ControlChannel(gateway)
        assert client.event("end")["word"] == "replaced"
        assert client.close_code() == (1008, "replaced")
        finish(newer.client)


def test_a_queued_client_gets_its_place_as_an_event():
    with Gateway(lab(None, clients={"max": 1, "when-full": "queue"})) as gateway:
        first = ControlChannel(gateway)
        # It has no session yet, and so no line in the log.
        second = control_channel.ControlChannel(connect(gateway.address("lab")))
        assert second.event("queue")["place"] == 1
        third = control_channel.ControlChannel(connect(gateway.address("lab")))
        assert third.event("queue")["place"] == 2
        finish(first.client)
        assert second.event("hello")["session"] and third.event("queue")["place"] == 1
        finish(third.client)
        finish(second.client)


class PythonWebSocket:
    """The same with Python's websockets."""

    def __init__(self, client):
        self.client, self.count, self.texts, self.bytes = client, 0, [], b""

    async def text(self, **fields) -> dict:
        """The next text with these fields."""
        while True:
            for text in self.texts:
                if fields.items() <= text.items():
                    self.texts.remove(text)
                    return text
            message = await asyncio.wait_for(self.client.recv(), 10)
            if isinstance(message, bytes):
                self.bytes += message
            else:
                self.texts.append(json.loads(message))

    async def ask(self, request: str, **keys) -> dict:
        self.count += 1
        await self.client.send(json.dumps({"request": request, "id": self.count, **keys}))
        return await self.text(reply=self.count)


def test_pythons_websockets_send_each_request_and_one_client_has_the_writer_role():
    async def talk(device: Pty, gateway: Gateway):
        loop = asyncio.get_running_loop()
        host, port = gateway.address("lab")
        clients = [await websockets.connect(f"ws://{host}:{port}/lab", subprotocols=["baudway.v1"]) for _ in range(2)]
        one, two = map(PythonWebSocket, clients)
        session = (await one.text(event="hello"))["session"]
        other = (await two.text(event="hello"))["session"]
        await one.text(event="writer", holder=session, mine=True)
        await two.text(event="writer", holder=session, mine=False)
        assert (await one.ask("line", baud=9600))["line"]["baud"] == 9600
        assert (await two.text(event="line", baud=9600)) and rate(device) == RATES[9600]
        for request, keys in (("dtr", {"on": True}), ("rts", {"on": False}), ("watch", {"on": True})):
            assert not (await one.ask(request, **keys))["ok"]  # a pty has none
        for request, keys in (("break", {"on": True}), ("break", {"on": False}), ("break", {"ms": 5}),
                              ("purge", {"what": "both"}), ("watch", {"on": False}), ("status", {})):
            assert (await one.ask(request, **keys))["ok"]
        for request, keys in (("line", {"baud": 300}), ("break", {"ms": 5}), ("purge", {"what": "output"})):
            assert (await two.ask(request, **keys))["error"] == "another client has the writer role"
        assert (await two.ask("writer", wish="take"))["error"] == f"session {session} has the writer role"
        assert (await one.ask("writer", wish="leave"))["ok"]
        await two.text(event="writer", holder=other, mine=True)
        await one.client.send(b"lost")
        assert (await one.ask("line", baud=300))["error"] == "another client has the writer role"
        await two.client.send(b"two")
        assert await loop.run_in_executor(None, device.read, 3) == b"two"
        await loop.run_in_executor(None, device.write, b"down")
        assert (await two.ask("status"))["ok"]
        while two.bytes != b"down":
            two.bytes += await asyncio.wait_for(two.client.recv(), 10)
        await loop.run_in_executor(None, gateway.stop)
        for client in (one, two):
            assert (await client.text(event="end"))["word"] == "shutdown"
            await asyncio.wait_for(client.client.wait_closed(), 10)
            assert client.client.close_code == 1001

    config = lab(None, clients={"writers": "one"})
    with Pty() as device:
        config["routes"]["lab"]["endpoint"] = device.url
        with Gateway(config) as gateway:
            asyncio.run(talk(device, gateway))


EXAMPLES = re.findall(r"^    ([<>]) (\{.*\})$", (ROOT / "Docs/websocket.md").read_text(), re.M)


def test_the_document_has_a_valid_example_of_each_message():
    """Each example is valid for its direction; each request and event of the schema has an example."""
    kinds = {"<": ("reply", "event"), ">": ("request",)}
    shown = set()
    for arrow, text in EXAMPLES:
        example = json.loads(text)
        kind = next(kind for kind in kinds[arrow] if kind in example)
        jsonschema.validate(example, {**control_channel.SCHEMA, "anyOf": [{"$ref": f"#/definitions/{kind}"}]})
        shown.add((kind, example[kind]))
    for kind in ("request", "event"):
        for choice in control_channel.SCHEMA["definitions"][kind]["anyOf"]:
            assert (kind, choice["properties"][kind]["const"]) in shown


REQUESTS = [json.loads(text) for arrow, text in EXAMPLES if arrow == ">"]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: " ".join(str(v) for v in r.values()))
def test_the_requests_of_the_document_are_accepted(request_):
    """At a port that supports none of them, each request is refused for that reason only."""
    with Gateway(lab(None)) as gateway:
        client = ControlChannel(gateway)
        client.event("link", state="open")
        client.ask({**request_, "id": 1})
        reply = client.reply(1)
        expected = {"writer": "this route has no writer role; 'clients.writers' is all"}.get(
            request_["request"], "not supported by this endpoint")
        if request_["request"] == "status" or request_.get("on") is False and request_["request"] == "watch":
            assert reply["ok"]
        else:
            assert reply["error"] == expected
        finish(client.client)
