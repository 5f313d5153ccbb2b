"""Terminals at the admin listener: `baudway.v1` on any route by a WebSocket, as a page opens it and as programs do."""
import asyncio
import json
import signal

import jsonschema
import pytest
import websockets
from admin import ask, curl, place
from control_channel import SCHEMA, ControlChannel
from kit import Gateway, Pty, connect, reset, round_trip, until
from listener_clients import Status, WebSocket

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
TOKENS = {"ada": "4f2d8c0a9b7e6d5c", "bob": "0b1c2d3e4f506172"}
USERS = {"ada": {"token": TOKENS["ada"], "roles": {"*": "admin"}}, "bob": {"token": TOKENS["bob"], "roles": {"a": "monitor"}}}


def serving(routes=None, **more) -> Gateway:
    gateway = Gateway({"admin": {"listen": "http://127.0.0.1:0"}, "routes": routes or {"a": ECHO, "b": ECHO}, **more})
    gateway.expected += 1
    return gateway


def path(route: str = "a") -> str:
    return f"/api/v1/routes/{route}/terminal"


def ticket(gateway: Gateway, route: str = "a", user: str = "") -> str:
    fields = [f"Authorization: Bearer {TOKENS[user]}"] if user else []
    answer = ask(gateway, f"POST {path(route)}", *fields)
    assert answer.status == 200, answer
    return answer.json["ticket"]


def own(gateway: Gateway) -> str:
    host, port = place(gateway)
    return f"{host}:{port}"


def open_by(gateway: Gateway, name: str, route: str = "a", **fields) -> ControlChannel:
    """As a browser does it: with the page's origin, and without Authorization."""
    return ControlChannel(
        connect(place(gateway)), path(route),
        **{"Host": own(gateway), "Origin": f"http://{own(gateway)}", "Sec-WebSocket-Protocol": f"baudway.v1, ticket.{name}", **fields})


def refused(gateway: Gateway, name: str | None = None, route: str = "a", **fields) -> int:
    shown = {"Sec-WebSocket-Protocol": "baudway.v1" if name is None else f"baudway.v1, ticket.{name}", **fields}
    with pytest.raises(Status) as caught:
        WebSocket(connect(place(gateway)), path(route), {"Host": own(gateway), **shown})
    return caught.value.status


def clients(gateway: Gateway, user: str = "") -> list[dict]:
    return curl(gateway, "/api/v1/routes/a", *(["-H", f"Authorization: Bearer {TOKENS[user]}"] if user else [])).json["clients"]


def test_a_terminal_is_a_client_of_its_route_like_any_other():
    with serving(users=USERS, log={"level": "trace"}) as gateway:
        name = ticket(gateway, user="ada")
        terminal = open_by(gateway, name)
        hello = terminal.event("hello")
        assert (hello["route"], hello["role"], hello["user"]) == ("a", "writer", "ada")
        terminal.event("link", state="open")
        terminal.send(b"to the device")
        assert terminal.read(13) == b"to the device"
        listed = clients(gateway, "ada")
        assert [(c["session"], c["user"], c["role"], c["up"], c["down"]) for c in listed] == [(hello["session"], "ada", "writer", 13, 13)]
        assert listed[0]["listen"].startswith("http://127.0.0.1:")
        opened = gateway.event("session opened")
        assert opened["session"] == hello["session"] and opened["user"] == "ada"
        # It sees what other clients of a shared link cause, and they see what it sends.
        with gateway.connect("a") as other:
            other.sendall(b"both")
            assert terminal.read(4) == b"both"
        kick = ask(gateway, "POST /api/v1/routes/a/kick", "Content-Type: application/json", f"Authorization: Bearer {TOKENS['ada']}", content=b'{"all":true}')
        assert hello["session"] in kick.json["kicked"]
        assert terminal.event("end")["word"] == "kicked"
        # Nothing of the credentials is in the log, at any level.
        assert not any(name in line or TOKENS["ada"] in line for line in gateway.lines)


def test_a_ticket_is_for_one_connection_to_one_route():
    with serving(users=USERS) as gateway:
        name = ticket(gateway, user="ada")
        open_by(gateway, name).event("hello")
        assert refused(gateway, name) == 401
        assert refused(gateway, ticket(gateway, "b", "ada")) == 401
        assert refused(gateway, "f" * 64) == 401
        assert refused(gateway) == 401
        # Two of them are none.
        both = f"baudway.v1, ticket.{ticket(gateway, user='ada')}, ticket.{ticket(gateway, user='ada')}"
        assert refused(gateway, **{"Sec-WebSocket-Protocol": both}) == 401


def test_the_role_is_that_of_the_user_and_hidden_routes_do_not_exist():
    with serving(users=USERS) as gateway:
        terminal = open_by(gateway, ticket(gateway, user="bob"))
        assert terminal.event("hello")["role"] == "monitor"
        assert not terminal.answer("dtr", on=True)["ok"]
        terminal.send(b"x")
        with gateway.connect("a") as other:
            other.sendall(b"heard")
            assert terminal.read(5) == b"heard"
        bob = f"Authorization: Bearer {TOKENS['bob']}"
        assert ask(gateway, f"POST {path('b')}", bob).status == 404
        assert refused(gateway, route="b", Authorization=f"Bearer {TOKENS['bob']}") == 404
        assert ask(gateway, f"POST {path('a')}").status == 401


def test_a_reload_that_takes_the_role_away_ends_the_terminal():
    with serving(users=USERS) as gateway:
        terminal = open_by(gateway, ticket(gateway, user="bob"))
        terminal.event("hello")
        admin = open_by(gateway, ticket(gateway, user="ada"))
        admin.event("hello")
        host, port = place(gateway)
        changed = {**USERS, "bob": {"token": TOKENS["bob"], "roles": {"b": "monitor"}}}
        gateway.configure({"admin": {"listen": f"http://{host}:{port}"}, "routes": {"a": ECHO, "b": ECHO}, "users": changed})
        gateway.signal(signal.SIGHUP)
        assert terminal.event("end")["word"] == "denied"
        admin.send(b"still here")
        assert admin.read(10) == b"still here"


def test_no_page_of_another_origin_opens_a_terminal():
    with serving() as gateway:
        for fields in (
            {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"http://{own(gateway)}", "Sec-Fetch-Site": "cross-site"},
            # DNS rebinding: the page's own name leads here.
            {"Origin": "http://evil.example", "Host": "evil.example"}, {"Host": "evil.example"},
        ):
            assert refused(gateway, **fields) == 403, fields
            assert ask(gateway, f"POST {path()}", *(f"{k}: {v}" for k, v in fields.items() if k != "Host"), host=fields.get("Host", own(gateway))).status == 403
        open_by(gateway, ticket(gateway)).event("hello")


def test_what_is_no_terminal_is_told_why():
    with serving() as gateway:
        plain = ask(gateway, f"GET {path()}")
        assert plain.status == 426 and plain.fields["upgrade"] == "websocket" and plain.fields["content-type"] == "application/problem+json"
        assert ask(gateway, f"PUT {path()}").fields["allow"] == "GET, POST"
        assert ask(gateway, f"POST {path()}", "Content-Type: application/json", content=b'{"x":1}').status == 422
        assert ask(gateway, f"POST {path('nobody')}").status == 404
        assert refused(gateway, route="nobody") == 404
        assert refused(gateway, **{"Sec-WebSocket-Protocol": "binary"}) == 400
        full = {"a": {**ECHO, "clients": {"max": 1}}}
    with serving(full) as gateway, gateway.connect("a") as client:
        round_trip(client)
        assert refused(gateway) == 503


def test_the_rules_of_the_route_hold_for_its_terminals():
    with serving({"a": {**ECHO, "clients": {"deny": ["127.0.0.0/8"]}}}) as gateway:
        assert refused(gateway) == 403
    only = {"a": {**ECHO, "listen": "ws://127.0.0.1:0/a", "clients": {"users": ["bob"]}}}
    with serving(only, users=USERS) as gateway:
        assert refused(gateway, ticket(gateway, user="ada")) == 403
        assert open_by(gateway, ticket(gateway, user="bob")).event("hello")["role"] == "monitor"


def test_a_terminal_that_does_not_read_delays_nobody_and_is_told_what_it_lost():
    routes = {"a": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://flood", "clients": {"slow": "block"}}}
    with serving(routes) as gateway:
        terminal = open_by(gateway, ticket(gateway))
        terminal.event("hello")
        with gateway.connect("a") as other:
            # Far more than all buffers together: at a policy that delays all, this would end the flow.
            left = 64 << 20
            while left > 0:
                left -= len(other.recv(1 << 20))
        dropped = until(lambda: [c for c in clients(gateway) if c["dropped"]], what="drops")
        assert len(dropped) == 1 and dropped[0]["listen"].startswith("http://")
        assert terminal.event("drops")["total"] > 0
        reset(terminal.client)  # a client that does not read has 5 s at the end


def test_the_websockets_library_uses_a_terminal():
    """A program may send its token with the request."""
    async def use(gateway: Gateway):
        url = f"ws://{own(gateway)}{path()}"
        async with websockets.connect(url, subprotocols=["baudway.v1"], extra_headers={"Authorization": f"Bearer {TOKENS['ada']}"}) as client:
            assert client.subprotocol == "baudway.v1"
            await client.send(b"bytes")
            texts, received = [], b""
            while received != b"bytes":
                message = await client.recv()
                if isinstance(message, bytes):
                    received += message
                else:
                    texts.append(json.loads(message))
            for text in texts:
                jsonschema.validate(text, SCHEMA)
            assert texts[0]["event"] == "hello" and texts[0]["user"] == "ada"
        async with websockets.connect(url, subprotocols=["baudway.v1", f"bearer.{TOKENS['ada']}"]) as client:
            assert json.loads(await client.recv())["user"] == "ada"
        with pytest.raises(websockets.InvalidStatusCode):
            await websockets.connect(url, subprotocols=["baudway.v1"])

    with serving(users=USERS) as gateway:
        asyncio.run(use(gateway))


def test_a_terminal_sets_the_line_of_a_port():
    with Pty() as port:
        routes = {"p": {"listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{port.path}?baud=9600"}}
        with serving(routes) as gateway:
            terminal = open_by(gateway, ticket(gateway, "p"), "p")
            terminal.event("link", state="open")
            answer = terminal.answer("line", baud=19200, data=8, parity="none")
            assert answer["ok"] and answer["line"]["baud"] == 19200
            assert terminal.answer("purge", what="both")["ok"]
