"""Endpoints over the network: one gateway as another's endpoint, and ws endpoints that log in and compress at foreign
servers."""
import asyncio
import base64
import contextlib
import http
import random
import threading

import pytest
import websockets
from certificates import Authority
from kit import GUARD, Gateway, receive, run_all
from listener_clients import finish, own_address
from test_connect import pipe
from test_websocket import TOKEN, hashed, tls

MIB = 1 << 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority):
    return authority.issue("gw.test", "gw.test", "127.0.0.1", "localhost")


class Echo:
    """A server on Python's websockets that echoes, and accepts only clients with `authorization`."""

    def __init__(self, authorization=None):
        self.authorization, self.extensions, self.refused = authorization, [], 0
        self._loop = asyncio.new_event_loop()

    async def _check(self, path, headers):
        if self.authorization and headers.get("Authorization") != self.authorization:
            self.refused += 1
            return http.HTTPStatus.UNAUTHORIZED, [], b"who are you?\n"

    async def _serve(self, client):
        self.extensions.append([extension.name for extension in client.extensions])
        with contextlib.suppress(websockets.ConnectionClosed):
            async for message in client:
                await client.send(message)

    async def _start(self):
        self._server = await websockets.serve(self._serve, "127.0.0.1", 0, process_request=self._check, max_size=None)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self):
        self._server.close()
        await self._server.wait_closed()

    def __enter__(self):
        self._loop.run_until_complete(self._start())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GUARD)
        self._loop.close()


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def both_ways(client, data: bytes):
    """Sends `data` and receives it back, at the same time."""
    heard = []
    run_all(lambda: client.sendall(data), lambda: heard.append(receive(client, len(data))))
    assert heard[0] == data


# --- foreign servers
#   -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compresses", [False, True])
@pytest.mark.parametrize(
    "settings, authorization",
    [({}, None), ({"user": "ada", "password": "geheim:x"}, basic("ada:geheim:x")), ({"token": TOKEN}, f"Bearer {TOKEN}")])
def test_a_ws_endpoint_logs_in_and_compresses(settings, authorization, compresses):
    data = random.Random(5).randbytes(100_000) + b"the same again " * 20_000
    with Echo(authorization) as echo:
        endpoint = {"url": f"ws://127.0.0.1:{echo.port}/lab", "deflate": compresses, **settings}
        config = {"log": {"level": "debug", "format": "json"}, "routes": {"lab": {"listen": "tcp://127.0.0.1:0", "endpoint": endpoint}}}
        with Gateway(config) as gateway:
            with gateway.connect("lab") as client:
                both_ways(client, data)
            gateway.event("session ended")
            shown = "\n".join(gateway.lines) + gateway.command("status", "--json").stdout + gateway.command("check", str(gateway.path)).stdout
        assert echo.extensions == [["permessage-deflate"] if compresses else []]
        assert TOKEN not in shown and "geheim" not in shown and basic("ada:geheim:x").split()[1] not in shown


def test_a_refused_ws_endpoint_reports_the_reason_and_no_secret(folder):
    with Echo(basic("ada:right")) as echo:
        url = f"ws://127.0.0.1:{echo.port}/lab"
        done = pipe(url)
        assert done.returncode == 69 and b"401" in done.stderr and b"user=" in done.stderr
        done = pipe(f"{url}?user=ada&password=geheim")
        assert done.returncode == 69 and b"401" in done.stderr and b"is the password" in done.stderr
        assert b"geheim" not in done.stderr
        done = pipe(f"{url}?user=ada&password=right", b"hello")
        assert (done.stdout, done.stderr, done.returncode) == (b"hello", b"", 0)
        done = pipe(f"ws://ada:geheim@127.0.0.1:{echo.port}/lab")
        assert done.returncode == 64 and "use user=… and password=…".encode() in done.stderr and b"geheim" not in done.stderr


# --- our own
#   ---------------------------------------------------------------------------------------------------------


def chain(scheme, authority, server, address, query="", **more) -> tuple[dict, dict]:
    """The configurations of the far gateway, which has the device, and of the near one, which has the clients."""
    host, port = address
    path = "" if scheme == "tls" else "/port"
    far = {"listen": f"{scheme}://{host}:{port}{path}", "endpoint": "sim://echo", "clients": {"max": 8}}
    secure = "" if scheme == "ws" else f"&ca={authority.certificate}&server-name=gw.test"
    if secure:
        far["tls"] = tls(server)
    near = {
        "listen": "tcp://127.0.0.1:0", "endpoint": f"{scheme}://{host}:{port}{path}?{(query + secure).lstrip('&')}".rstrip("?"),
        "link": "shared", "device": {"absent": "hold", "retry": "50ms..500ms"}, "clients": {"slow": "block", "max": 8}, **more,
    }  # fmt: skip
    return {"routes": {"port": far}}, {"routes": {"port": near}}


@pytest.mark.parametrize(
    "scheme, query",
    [("ws", ""), ("ws", "subprotocol=binary"), ("wss", ""), ("wss", "subprotocol=binary"), ("tls", "")])
def test_a_gateway_reconnects_to_another_that_restarts(authority, server, scheme, query):
    far, near = chain(scheme, authority, server, own_address(), query)
    data = random.Random(scheme + query).randbytes(MIB)
    with Gateway(near) as here:
        with Gateway(far):
            client = here.connect("port")
            both_ways(client, data)
        here.event("link waiting")
        client.sendall(b"said while it was away")
        with Gateway(far):
            assert receive(client, 22) == b"said while it was away"
            both_ways(client, data[::-1])
            with here.connect("port") as other:
                other.sendall(b"another")
                assert receive(other, 7) == receive(client, 7) == b"another"
            finish(client)
        assert not here.events("session ended", reason="device-lost")


@pytest.mark.parametrize("asks", [{"user": "ada", "password": "geheim"}, {"token": TOKEN}])
def test_a_gateway_logs_in_at_another_and_compresses(asks):
    far, near = chain("ws", None, None, own_address())
    far["users"] = {"ada": {"password": hashed("geheim"), "roles": {"port": "writer"}}, "bob": {"token": TOKEN, "roles": {"*": "writer"}}}
    far["routes"]["port"]["websocket"] = {"deflate": True}
    route = near["routes"]["port"]
    route["endpoint"] = {"url": route["endpoint"], "deflate": True, **asks}
    data = random.Random(7).randbytes(MIB // 2) + bytes(MIB // 2)
    with Gateway(far) as there, Gateway(near) as here:
        with here.connect("port") as client:
            both_ways(client, data)
        assert there.event("session opened")["user"] == ("bob" if "token" in asks else "ada")
        assert "geheim" not in "\n".join(here.lines + there.lines) and TOKEN not in "\n".join(here.lines + there.lines)
