"""The API of the admin listener: what it answers, who may change what, and that its description is true."""
import json
import termios
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from admin import ask, curl, place
from kit import Gateway, Pty, connect, receive_all, receive_until, round_trip, until

# A client that closes its socket may still read, as far as the gateway can tell: it does not wait long for that here.
ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": {"half-close": "100ms"}}
TOKENS = {"ada": "4f2d8c0a9b7e6d5c", "bob": "0b1c2d3e4f506172", "cyd": "c1d2c3d4c5d6c7d8"}
USERS = {
    "ada": {"token": TOKENS["ada"], "roles": {"*": "admin"}},
    "bob": {"token": TOKENS["bob"], "roles": {"a": "admin", "b": "monitor"}},
    "cyd": {"token": TOKENS["cyd"], "roles": {"*": "writer"}},
}
JSON = "Content-Type: application/json"


def serving(routes=None, **more) -> Gateway:
    gateway = Gateway({"admin": {"listen": "http://127.0.0.1:0"}, "routes": routes or {"a": ECHO, "b": ECHO}, **more})
    gateway.expected += 1
    return gateway


def bearer(user: str) -> list[str]:
    return [f"Authorization: Bearer {TOKENS[user]}"] if user else []


def post(gateway: Gateway, path: str, content=None, *fields: str, user: str = ""):
    content = b"" if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
    return ask(gateway, f"POST {path}", *([JSON] if content else []), *bearer(user), *fields, content=content)


def get(gateway: Gateway, path: str, user: str = ""):
    return curl(gateway, path, *(w for field in bearer(user) for w in ("-H", field)))


class Description:
    """The served description; checks answers against it."""

    def __init__(self, gateway: Gateway, user: str = ""):
        self.whole = get(gateway, "/api/v1/openapi.json", user).json
        jsonschema.Draft202012Validator.check_schema({"$defs": self.whole["components"]["schemas"]})

    def check(self, method: str, path: str, answer):
        responses = self.whole["paths"][path][method]["responses"]
        assert str(answer.status) in responses, f"{method} {path}: {answer}"
        content = responses[str(answer.status)]["content"]
        kind = answer.fields["content-type"]
        assert kind in content, f"{method} {path}: {kind} is not in {list(content)}"
        if kind.endswith("json"):
            schema = {**content[kind]["schema"], "components": self.whole["components"]}
            jsonschema.Draft202012Validator(schema).validate(answer.json)
        return answer

    def accepts(self, path: str, content) -> bool:
        schema = self.whole["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return jsonschema.Draft202012Validator({**schema, "components": self.whole["components"]}).is_valid(content)


def test_the_state_is_that_of_status():
    with serving() as gateway, gateway.connect("a") as client:
        round_trip(client)
        own = json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)
        told = get(gateway, "/api/v1/routes").json

        def still(value):
            """Without times."""
            if isinstance(value, dict):
                return {k: still(v) for k, v in value.items() if k != "seconds"}
            return [still(v) for v in value] if isinstance(value, list) else value
        assert still(told) == still(own)
        one = get(gateway, "/api/v1/routes/a").json
        assert still(one) == still(told["routes"][0]) and one["clients"][0]["up"] == 1
        assert still(get(gateway, "/api/v1/clients").json) == {"clients": [{"route": "a", **still(one["clients"][0])}]}
        assert get(gateway, "/api/v1/routes/nobody").status == 404
        assert set(get(gateway, "/api/v1/devices").json) >= {"serial", "bluetooth"}


def test_the_clients_of_all_routes_are_listed_in_pages():
    """More than a page of 256."""
    routes = {"a": {**ECHO, "clients": {"max": 400}}, "b": ECHO, "c": {**ECHO, "clients": {}, "link": "per-client", "endpoint": "tcp://127.0.0.1:9"}}
    with serving(routes) as gateway:
        clients = [gateway.connect("a") for _ in range(300)] + [gateway.connect("b")]
        until(lambda: len(get(gateway, "/api/v1/clients").json["clients"]) == 301, 60, "all clients")
        listed = get(gateway, "/api/v1/clients").json["clients"]
        assert [c["route"] for c in listed] == ["a"] * 300 + ["b"] and len({c["session"] for c in listed}) == 301
        for client in clients:
            client.close()


def test_roles_hide_routes_and_refuse_changes():
    with serving({"a": ECHO, "b": ECHO, "c": ECHO}, users=USERS) as gateway:
        def routes(user):
            return [r["route"] for r in get(gateway, "/api/v1/routes", user).json["routes"]]
        assert routes("ada") == routes("cyd") == ["a", "b", "c"] and routes("bob") == ["a", "b"]
        assert get(gateway, "/api/v1/routes/c", "bob").json["detail"] == 'There is no route \'c\'.'
        assert get(gateway, "/api/v1/devices", "bob").status == 403 and get(gateway, "/api/v1/devices", "cyd").status == 200
        with gateway.connect("a"), gateway.connect("c"):
            gateway.event("session opened", count=2)
            for user, seen in (("ada", ["a", "c"]), ("cyd", ["a", "c"]), ("bob", ["a"])):
                assert [c["route"] for c in get(gateway, "/api/v1/clients", user).json["clients"]] == seen, user
        everything = {"all": True}
        for user, route, status in (
            ("ada", "a", 200), ("bob", "a", 200), ("bob", "b", 403), ("bob", "c", 404), ("cyd", "a", 403), ("", "a", 401),
        ):
            assert post(gateway, f"/api/v1/routes/{route}/kick", everything, user=user).status == status, (user, route)
        assert [post(gateway, "/api/v1/reload", user=user).status for user in ("ada", "bob", "cyd", "")] == [200, 403, 403, 401]


def test_sessions_are_ended_and_the_log_says_by_whom():
    with serving(users=USERS) as gateway:
        clients = [gateway.connect("a") for _ in range(3)]
        numbers = [gateway.event("session opened", count=n + 1, route="a")["session"] for n in range(3)]
        answer = post(gateway, "/api/v1/routes/a/kick", {"sessions": [numbers[1], 99_999]}, user="bob")
        assert answer.json == {"kicked": [numbers[1]]}
        assert gateway.event("session ended")["reason"] == "kicked"
        audit = gateway.event("admin kick")
        assert audit["user"] == "bob" and audit["route"] == "a" and audit["client"].startswith("127.0.0.1:")
        assert audit["detail"] == f"sessions {numbers[1]} 99999" and audit["level"] == "notice" and "error" not in audit
        assert sorted(post(gateway, "/api/v1/routes/a/kick", {"all": True}, user="ada").json["kicked"]) == sorted(numbers[::2])
        gateway.event("session ended", count=3)
        for client in clients:
            client.close()


def test_a_reload_tells_what_changed_or_what_is_wrong():
    with serving() as gateway:
        gateway.configure({"admin": {"listen": "http://127.0.0.1:0"}, "routes": {"a": {**ECHO, "clients": {"max": 3}}, "c": ECHO}})
        answer = post(gateway, "/api/v1/reload")
        assert answer.json["added"] == ["c"] and answer.json["removed"] == ["b"]
        assert answer.json["changed"][0]["route"] == "a"
        gateway.path.write_text("routes: { a: { listn: x } }")
        answer = Description(gateway).check("post", "/api/v1/reload", post(gateway, "/api/v1/reload", {}))
        assert answer.status == 422 and any("listn" in problem for problem in answer.json["problems"])
        assert ["error" in gateway.event("admin reload", count=n) for n in (1, 2)] == [False, True]


def test_a_reset_says_why_it_is_not_done():
    with Pty() as port:
        routes = {"p": {"listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{port.path}", "device": {"open": "always"}}}
        with serving(routes) as gateway:
            description = Description(gateway)
            gateway.event("link open")
            path = "/api/v1/routes/{name}/reset"
            answer = description.check("post", path, post(gateway, "/api/v1/routes/p/reset"))
            assert answer.status == 409 and "recipe" in answer.json["detail"]
            answer = description.check("post", path, post(gateway, "/api/v1/routes/p/reset", {"recipe": "esp32"}))
            assert answer.status == 409 and "DTR" in answer.json["detail"]
            assert gateway.event("admin reset", count=2)["detail"] == "esp32"
            assert post(gateway, "/api/v1/routes/p/reset", {"recipe": "esp"}).status == 422


def test_a_port_is_released_and_reopened():
    with Pty() as port:
        routes = {"p": {"listen": "tcp://127.0.0.1:0", "endpoint": port.url, "device": {"open": "always"}},
                  "own": {"listen": "tcp://127.0.0.1:0", "endpoint": "tcp://127.0.0.1:9"}}
        users = {**USERS, "bob": {**USERS["bob"], "roles": {"own": "admin"}}}
        with serving(routes, users=users) as gateway:
            description = Description(gateway, "ada")

            def ask(what, user="ada", route="p"):
                return description.check("post", f"/api/v1/routes/{{name}}/{what}", post(gateway, f"/api/v1/routes/{route}/{what}", user=user))

            gateway.event("link open")
            assert [ask("release", user).status for user in ("cyd", "bob")] == [403, 404]
            assert ask("release").json == {"released": True, "route": "p"}
            assert get(gateway, "/api/v1/routes/p", "ada").json["state"]["released"] is True
            assert ask("reopen").json["reopened"] is True
            gateway.event("link open", count=2)
            answer = ask("release", route="own")
            assert answer.status == 409 and "a link of its own" in answer.json["detail"]
            assert gateway.event("admin release", user="ada", route="p") and gateway.event("admin reopen")["user"] == "ada"


def test_the_line_of_an_open_port_is_changed():
    with Pty() as port:
        routes = {"p": {**ECHO, "endpoint": port.url + "?baud=9600"}, "sim": {**ECHO, "device": {"open": "always"}}}
        with serving(routes) as gateway:
            description = Description(gateway)

            def ask(content, route="p", what="line"):
                return description.check("post", f"/api/v1/routes/{{name}}/{what}", post(gateway, f"/api/v1/routes/{route}/{what}", content))

            answer = ask({"baud": 19200})
            assert answer.status == 409 and "the link is closed" in answer.json["detail"]
            with gateway.connect("p") as client:
                gateway.event("link open", route="p")
                assert ask({"baud": 19200, "stop": 2}).json == {"changed": True, "route": "p", "line": "19200 8N2"}
                assert termios.tcgetattr(port.slave)[4] == termios.B19200
                assert get(gateway, "/api/v1/routes/p").json["state"]["line"] == "19200 8N2"
                audit = gateway.event("admin line", detail="baud 19200, stop 2")
                assert audit["route"] == "p" and "error" not in audit
                client.sendall(b"x")
                assert port.read(1) == b"x"
                # A pty has no modem lines.
                answer = ask({"dtr": False})
                assert answer.status == 409 and gateway.event("admin line", detail="dtr off")["error"]
            answer = ask({"baud": 9600}, route="sim")
            assert answer.status == 409 and "no serial line" in answer.json["detail"]
            path = "/api/v1/routes/{name}/line"
            assert ask({"break": "x"}).json["detail"].startswith("'break' must be") and ask({"dtr": 1}).json["detail"].startswith("'dtr'")
            for content in ({}, {"baud": 0}, {"parity": "evn"}, {"break": True}, {"bauds": 1}, {"baud": 9600.5}):
                assert ask(content).status == 422 and not description.accepts(path, content), content
            for content in ({"baud": 300, "stop": 2}, {"stop": "1.5", "data": 5}, {"dtr": True, "rts": False, "break": 10}):
                assert description.accepts(path, content), content


def test_bytes_are_sent_to_the_device():
    """As a client that comes, sends them and leaves; the device opens for it, and others see the answer."""
    with Pty() as port:
        routes = {
            "a": {**ECHO, "endpoint": port.url}, "one": {**ECHO, "clients": {"writers": "one"}},
            "b": {**ECHO, "clients": {"writers": "none"}}, "own": {"listen": ECHO["listen"], "endpoint": "tcp://127.0.0.1:9"},
            "gone": {**ECHO, "endpoint": "tty:///dev/baudway-not-there", "device": {"drain": "200ms"}},
        }
        with serving(routes, users=USERS) as gateway:
            description = Description(gateway, "ada")

            def send(content, route="a", user="ada"):
                path = f"/api/v1/routes/{route}/send"
                return description.check("post", "/api/v1/routes/{name}/send", post(gateway, path, content, user=user))

            assert send({"text": "caf\u00e9\r\n"}).json == {"sent": True, "route": "a", "bytes": 7}
            assert port.read(7) == "caf\u00e9\r\n".encode()
            assert send({"hex": "00 ff0D"}).json["bytes"] == 3 and port.read(3) == b"\x00\xff\r"
            # A browser that comes to a raw port is refused by what it sends; here the caller means these bytes.
            assert send({"text": "GET / HTTP/1.1\r\n"}).json["bytes"] == 16 and port.read(16) == b"GET / HTTP/1.1\r\n"
            audit = gateway.event("admin send", detail="7 bytes")
            assert audit["user"] == "ada" and audit["route"] == "a" and "error" not in audit
            ended = gateway.event("session ended", route="a", up=7)
            assert ended["reason"] == "client-left" and gateway.event("session opened", session=ended["session"])["user"] == "ada"
            with gateway.connect("one") as client:
                gateway.event("session opened", route="one")
                answer = send({"text": "x"}, "one")
                assert answer.status == 409 and answer.json["detail"] == "0 of 1 byte were sent: another client has the writer role."
                round_trip(client)
            until(lambda: send({"text": "x"}, "one").status == 200, what="the writer role is free")
            assert send({"text": "xy"}, "b").json["detail"] == "0 of 2 bytes were sent: no client may write on this route."
            detail = send({"text": "x"}, "gone").json["detail"]
            assert "the link is waiting" in detail and "baudway-not-there" in detail, detail
            assert "a link of its own" in send({"text": "x"}, "own").json["detail"]
            assert [send({"text": "x"}, route, user).status for route, user in (("a", "cyd"), ("b", "bob"), ("one", "bob"))] == [403, 403, 404]
            path = "/api/v1/routes/{name}/send"
            for content in ({}, {"text": ""}, {"hex": "0"}, {"hex": " "}, {"hex": "+1"}, {"text": "x", "hex": "00"}, {"text": 1}):
                assert send(content).status == 422 and not description.accepts(path, content), content
            for content in ({"text": "x"}, {"hex": " 00 0aFF "}):
                assert description.accepts(path, content), content
            # More than the port and the client's buffer hold: the answer comes when the port has taken the last byte.
            many = bytes(range(1, 256)) * 100
            with ThreadPoolExecutor(1) as pool:
                reader = pool.submit(port.read, len(many))
                assert send({"hex": many.hex()}).json["bytes"] == len(many) and reader.result() == many


def test_the_writer_role_is_given_and_taken():
    routes = {"a": {**ECHO, "clients": {**ECHO["clients"], "writers": "one"}}, "b": ECHO}
    with serving(routes) as gateway, gateway.connect("a") as first, gateway.connect("a") as second:
        description = Description(gateway)

        def ask(content, route="a"):
            return description.check("post", "/api/v1/routes/{name}/writer", post(gateway, f"/api/v1/routes/{route}/writer", content))

        numbers = [gateway.event("session opened", count=n, route="a")["session"] for n in (1, 2)]
        by_port = {e["client"]: e["session"] for e in gateway.events("session opened")}
        mine = by_port["%s:%d" % second.getsockname()]
        assert ask({"session": mine}).json == {"moved": True, "route": "a", "writer": mine} and mine in numbers
        second.sendall(b"hello")
        assert receive_until(first, b"hello") and receive_until(second, b"hello")
        assert ask({"session": None}).json["writer"] is None
        until(lambda: not any(c["writer"] for c in get(gateway, "/api/v1/routes/a").json["clients"]), what="no writer")
        assert ask({"session": 99_999}).json["detail"] == "there is no session 99999."
        assert ask({"session": 1}, route="b").status == 409 and ask({"session": "1"}).status == 422 and ask(None).status == 422
        assert [gateway.event("admin writer", count=n)["detail"] for n in (1, 2)] == [f"session {mine}", "no session"]


def test_a_web_page_of_somebody_else_changes_nothing():
    """A browser adds the credentials that its user gave for our address to the requests of any page."""
    with serving(users=USERS) as gateway:
        path = "/api/v1/routes/a/kick"
        host, port = place(gateway)
        own = f"{host}:{port}"
        for fields, status in (
            (["Origin: https://evil.example"], 403), (["Origin: null"], 403), (["Sec-Fetch-Site: cross-site"], 403),
            (["Sec-Fetch-Site: same-site"], 403), ([f"Origin: http://{own}"], 200), (["Sec-Fetch-Site: same-origin"], 200),
        ):
            lines = [f"POST {path} HTTP/1.1", f"Host: {own}", JSON, *bearer("ada"), "Content-Length: 12", *fields, "", ""]
            answer = ask(gateway, "\r\n".join(lines).encode() + b'{"all":true}')
            assert answer.status == status, fields
        # The page's own name, with credentials: it may look, as any program, but not change.
        lines = [f"POST {path} HTTP/1.1", "Host: evil.example", "Origin: http://evil.example", JSON, *bearer("ada"), "Content-Length: 12", "", ""]
        assert ask(gateway, "\r\n".join(lines).encode() + b'{"all":true}').status == 403
        # A form can't send JSON.
        form = ask(gateway, f"POST {path}", *bearer("ada"), "Content-Type: text/plain", content=b'{"all":true}')
        assert form.status == 415


def test_content_is_checked_and_bounded():
    with serving() as gateway:
        description, path = Description(gateway), "/api/v1/routes/a/kick"
        for content, status in (
            (b"", 422), (b"{", 400), (b"[]", 422), (b'{"all":true,"all":true}', 422), (b"\xff", 400),
            ({"all": False}, 422), ({"sessions": []}, 422), ({"sessions": ["1"]}, 422), ({"sessions": [-1]}, 422),
            ({"sessions": [1], "all": True}, 422), ({"session": [1]}, 422), ({"sessions": list(range(1001))}, 422),
            ({"all": True}, 200), ({"sessions": [1]}, 200), ({"sessions": [2**63]}, 200), ({"sessions": [17.0]}, 200),
            ({"sessions": [2**64]}, 422), ({"sessions": [17.5]}, 422),
        ):
            answer = description.check("post", "/api/v1/routes/{name}/kick", post(gateway, path, content))
            assert answer.status == status, (content, answer)
            if not isinstance(content, bytes):
                assert description.accepts("/api/v1/routes/{name}/kick", content) == (status == 200)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n"
        assert ask(gateway, f"{head}Content-Length: 65537\r\n\r\n".encode()).status == 413
        assert ask(gateway, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()).status == 411
        # curl waits for a word before it sends much.
        answer = curl(gateway, path, "-H", JSON, "-H", "Expect: 100-continue", "-d", '{"all":true}' + " " * 60_000)
        assert answer.status == 200
        with connect(place(gateway)) as client:
            client.sendall(f"{head}Content-Length: 12\r\nExpect: 100-continue\r\n\r\n".encode())
            assert receive_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
            client.sendall(b'{"all":true}')
            assert b" 200 " in receive_all(client)
        assert ask(gateway, "GET /api/v1/reload").fields["allow"] == "POST"
        assert ask(gateway, "PUT /api/v1/routes/a").fields["allow"] == "GET, HEAD"
        assert ask(gateway, "GET /api/v1/").status == ask(gateway, "GET /api/v1/routes//kick").status == 404


@pytest.mark.waits
def test_content_that_does_not_come_ends_the_request():
    with serving() as gateway, connect(place(gateway)) as client:
        client.sendall(f"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 12\r\n\r\n{{".encode())
        assert receive_all(client).startswith(b"HTTP/1.1 408 ")


def test_every_answer_is_as_the_description_says():
    with serving(users=USERS) as gateway, gateway.connect("a") as client:
        round_trip(client)
        admin = Description.__new__(Description)
        admin.whole = get(gateway, "/api/v1/openapi.json", "ada").json
        assert admin.whole["openapi"] == "3.1.0"
        for path, operations in admin.whole["paths"].items():
            real = path.replace("{name}", "a")
            for method in operations:
                if path == "/api/v1/events":
                    assert admin.check(method, path, ask(gateway, f"HEAD {real}", *bearer("ada"))).status == 200
                    continue
                for user in ("ada", "cyd", ""):
                    content = b'{"sessions":[9]}' if path.endswith("kick") else b""
                    fields = [*bearer(user), *([JSON] if content else [])]
                    answer = ask(gateway, f"{method.upper()} {real}", *fields, content=content)
                    if answer.fields.get("transfer-encoding") == "chunked":
                        answer = get(gateway, real, user)
                    admin.check(method, path, answer)
                    admin.check(method, path, ask(gateway, f"PUT {real}", *bearer(user)))
                if "{name}" in path:
                    admin.check(method, path, ask(gateway, f"{method.upper()} {path.replace('{name}', 'nobody')}", *bearer("ada")))


class Events:
    """A client of the event stream, as a browser is one."""

    def __init__(self, gateway: Gateway, *fields: str):
        self.socket = connect(place(gateway))
        lines = ["GET /api/v1/events HTTP/1.0", "Host: localhost", *fields, "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        self.rest, self.last = b"", None
        head = self.take(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and b"\r\nContent-Type: text/event-stream\r\n" in head
        assert self.block() == {"retry": "3000"}  # the pause before it reconnects

    def take(self, end: bytes) -> bytes:
        self.socket.settimeout(60)
        while end not in self.rest:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError
            self.rest += piece
        part, self.rest = self.rest.split(end, 1)
        return part

    def block(self) -> dict:
        block = self.take(b"\n\n").decode()
        return dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)

    def next(self) -> tuple[str, dict]:
        while "data" not in (block := self.block()):
            pass
        self.last = block.get("id", self.last)
        return block["event"], json.loads(block["data"])

    def until(self, event: str) -> dict:
        while (found := self.next())[0] != event:
            pass
        return found[1]

    def close(self):
        self.socket.close()


def test_events_are_the_lines_of_the_log():
    with serving() as gateway:
        events = Events(gateway)
        with gateway.connect("a") as client:
            round_trip(client)
        told = [events.next() for _ in range(4)]
        gateway.event("link closed")
        logged = [e for e in gateway.entries if e.get("route") == "a" and e["event"] != "listening"]
        assert [kind for kind, _ in told] == [e["event"] for e in logged]
        assert [{k: v for k, v in data.items() if k != "time"} for _, data in told] == \
            [{k: v for k, v in e.items() if k != "time"} for e in logged]
        events.close()


def test_a_stream_goes_on_where_it_was_lost():
    with serving() as gateway:
        first = Events(gateway)
        with gateway.connect("a") as client:
            round_trip(client)
            first.until("session opened")
        first.close()
        gateway.event("session ended")
        gateway.event("link closed")
        second = Events(gateway, f"Last-Event-ID: {first.last}")
        seen = [second.next()[0] for _ in range(3)]
        assert set(seen) == {"link open", "session ended", "link closed"}
        second.close()
        # Of an earlier gateway: everything that this one still has, from its start on.
        third = Events(gateway, "Last-Event-ID: 1-5")
        assert third.until("session opened")["session"] == 1
        third.close()


def test_a_stream_that_falls_behind_is_told_what_it_lost():
    with serving() as gateway:
        events = Events(gateway)
        events.close()
        with gateway.connect("a") as client:
            round_trip(client)
            for _ in range(700):
                gateway.connect("b").close()
            gateway.event("session ended", count=700, seconds=60)
            late = Events(gateway, "Last-Event-ID: x")
            kind, data = late.next()
            assert kind == "lost" and data["lost"] > 400
            late.close()


def test_a_user_gets_the_events_of_its_routes():
    with serving({"a": ECHO, "b": ECHO, "c": ECHO}, users=USERS) as gateway:
        streams = {user: Events(gateway, *bearer(user)) for user in ("bob", "cyd")}
        for route in "cba":
            with gateway.connect(route) as client:
                round_trip(client)
        assert streams["cyd"].until("session opened")["route"] == "c"
        assert streams["bob"].until("session opened")["route"] == "b"
        # When users change, streams end: each client logs in again.
        gateway.configure({"admin": {"listen": "http://127.0.0.1:0"}, "users": {"ada": USERS["ada"]}, "routes": {"a": ECHO}})
        gateway.signal(1)
        for stream in streams.values():
            with pytest.raises(EOFError):
                while True:
                    stream.next()
            stream.close()
        assert ask(gateway, "GET /api/v1/events", *bearer("bob")).status == 401


def test_many_streams_of_which_one_never_reads_delay_nobody():
    with serving() as gateway:
        before = gateway.descriptors()
        streams = [Events(gateway) for _ in range(100)]
        with gateway.connect("a") as client:
            for _ in range(200):
                gateway.connect("b").close()
                round_trip(client)
            gateway.event("session ended", count=200, seconds=60)
            for stream in streams[1:]:
                assert stream.until("session ended")["route"] == "b"
        for stream in streams:
            stream.close()
        until(lambda: gateway.descriptors() <= before, 60, "descriptors are closed")


def test_streams_are_bounded_in_number_and_in_what_they_are_sent():
    with serving() as gateway:
        endless = Events(gateway)
        with pytest.raises(OSError):  # an event stream takes 64 KiB, and nobody reads them
            for _ in range(1000):
                endless.socket.sendall(bytes(64 << 10))
        streams = [Events(gateway) for _ in range(1000)]
        refused = until(lambda: (answer := get(gateway, "/api/v1/user")).status == 503 and answer, what="the limit")
        assert "too many connections" in refused.json["detail"]
        assert ask(gateway, "GET /healthz").status == 503
        for stream in streams[:10]:
            stream.close()
        with gateway.connect("a") as client:  # so that their ends are noticed
            round_trip(client)
        until(lambda: ask(gateway, "GET /healthz").status == 200, what="room")
        for stream in streams[10:]:
            stream.close()


@pytest.mark.waits
def test_a_quiet_stream_gives_signs_of_life():
    """Proxies end connections on which nothing is sent for a minute or less."""
    with serving() as gateway:
        events = Events(gateway)
        events.take(b":\n\n")
        events.take(b":\n\n")
        events.close()


def test_the_latest_lines_of_a_route_and_of_all_can_be_read():
    with serving({"a": ECHO, "b": ECHO, "c": ECHO}, users=USERS) as gateway:
        description = Description.__new__(Description)
        description.whole = get(gateway, "/api/v1/openapi.json", "ada").json
        events = Events(gateway, *bearer("ada"))
        for route in "abc":
            with gateway.connect(route) as client:
                round_trip(client)
            events.until("session opened")

        def lines(user, path="/api/v1/routes/a/log"):
            name = "/api/v1/routes/{name}/log" if "routes" in path else path
            return description.check("get", name, get(gateway, path, user)).json["lines"]
        own = lines("bob")
        # The same as events of a stream, and by the same numbers.
        opened = [line for line in own if line["event"] == "session opened"]
        assert [line["route"] for line in own] == ["a"] * len(own) and len(opened) == 1
        logged = gateway.event("session opened", route="a")
        assert {k: v for k, v in opened[0].items() if k not in ("id", "time")} == {k: v for k, v in logged.items() if k != "time"}
        late = Events(gateway, *bearer("ada"), f"Last-Event-ID: {opened[0]['id']}")
        seen = late.next()
        following = next(line for line in lines("ada", "/api/v1/log") if line["id"] == late.last)
        assert following["event"] == seen[0]
        # A route on which the user has no role is hidden from it, and so are lines of no route from one without "*".
        assert get(gateway, "/api/v1/routes/c/log", "bob").status == 404 and get(gateway, "/api/v1/routes/x/log", "ada").status == 404
        assert {line["route"] for line in lines("bob", "/api/v1/log")} == {"a", "b"}
        assert {line.get("route") for line in lines("cyd", "/api/v1/log")} >= {None, "a", "b", "c"}
        assert get(gateway, "/api/v1/log").status == 401
        events.close()
        late.close()


def test_the_log_of_a_route_is_bounded():
    with serving() as gateway:
        with gateway.connect("a") as client:
            round_trip(client)
            for _ in range(150):
                gateway.connect("b").close()
            gateway.event("session ended", count=150, seconds=60)
            lines = get(gateway, "/api/v1/routes/b/log").json["lines"]
            assert len(lines) == 200 and lines[-1]["event"] in ("session ended", "link closed")
            numbers = [int(line["id"].partition("-")[2]) for line in lines]
            assert numbers == sorted(numbers)
            # Events of others have not displaced those of a quiet route.
            assert "session opened" in [line["event"] for line in get(gateway, "/api/v1/routes/a/log").json["lines"]]


def test_a_user_learns_its_roles():
    with serving({"a": ECHO, "b": ECHO, "c": ECHO}, users=USERS) as gateway:
        def told(user):
            return get(gateway, "/api/v1/user", user).json
        assert told("ada") == {"user": "ada", "role": "admin", "routes": dict.fromkeys("abc", "admin")}
        assert told("bob") == {"user": "bob", "routes": {"a": "admin", "b": "monitor"}}
        assert told("cyd")["role"] == "writer"
    with serving() as gateway:
        assert get(gateway, "/api/v1/user").json == {"role": "admin", "routes": {"a": "admin", "b": "admin"}}


@pytest.mark.waits
@pytest.mark.measured
def test_a_stream_on_which_nothing_happens_costs_no_wake_up_between_its_signs_of_life():
    with serving() as gateway:
        events = Events(gateway)
        gateway.falls_asleep(3)
        events.close()
