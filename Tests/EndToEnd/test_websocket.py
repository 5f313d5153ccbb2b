"""WebSocket listeners as ordinary clients see them: browsers, curl, Python's websockets, and faulty clients."""
import asyncio
import base64
import os
import random
import shutil
import signal
import socket
import subprocess

import pytest
import websockets
from certificates import Authority
from kit import GUARD, Gateway, Pty, binary, connect, receive, receive_all, run_all
from listener_clients import Status, WebSocket, connect_tls, finish, frame, own_address, request, trusting

ECHO = {"listen": "ws://127.0.0.1:0/lab", "endpoint": "sim://echo"}
TOKEN = "4f2d8c0a9b7e6d5c"


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority):
    return authority.issue("gw.test", "gw.test", "127.0.0.1", "localhost")


def tls(pair) -> dict:
    return {"certificate": str(pair.certificate), "key": str(pair.key)}


def curl(*words: str) -> tuple[int, str]:
    """The status and text of an answer."""
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "10", "-w", "\n%{http_code}", *words], capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 0, done.stderr
    text, status = done.stdout.rsplit("\n", 1)
    return int(status), text


def test_text_yes_sends_text_to_clients_without_a_sub_protocol():
    with Pty() as device, Gateway({"routes": {"port": {"listen": "ws://127.0.0.1:0/port/?text=yes", "endpoint": device.url}}}) as gateway:
        with connect(gateway.address("port")) as plain, connect(gateway.address("port")) as binary_one:
            page = WebSocket(plain, "/port")
            other = WebSocket(binary_one, "/port/", {"Sec-WebSocket-Protocol": "binary"})
            page.send(b"?", 1)
            assert device.read(1) == b"?"
            device.write(b"\xff\xe2\x82")
            device.write("\xacz".encode("latin-1"))
            texts = b""
            while b"z" not in texts:
                opcode, payload = page.frame()
                assert opcode == 1
                texts += payload
            assert texts.decode() == "\ufffd€z"
            assert other.receive(5) == b"\xff\xe2\x82\xacz"


def test_a_client_that_offers_other_sub_protocols_only_is_logged():
    with Gateway({"routes": {"lab": ECHO}}) as gateway:
        with connect(gateway.address("lab")) as client:
            WebSocket(client, "/lab", {"Sec-WebSocket-Protocol": "tty, mqtt"})
            line = gateway.event("sub-protocol unknown", route="lab")
            assert line["offered"] == "tty, mqtt" and "binary or baudway.v1" in line["advice"]
        with connect(gateway.address("lab")) as client:
            WebSocket(client, "/lab", {"Sec-WebSocket-Protocol": "tty, binary"})
        assert len(gateway.events("sub-protocol unknown")) == 1


@pytest.mark.parametrize("secure", [False, True])
def test_pythons_websockets_talk_to_a_pty(authority, server, secure):
    route = {"listen": "wss://127.0.0.1:0/port" if secure else "ws://127.0.0.1:0/port", "tls": tls(server)}
    if not secure:
        del route["tls"]
    with Pty() as device, Gateway({"routes": {"port": {**route, "endpoint": device.url}}}) as gateway:
        host, port = gateway.address("port")
        loop = asyncio.new_event_loop()
        url = f"{'wss' if secure else 'ws'}://{host}:{port}/port"

        async def talk(**options):
            more = {"ssl": trusting(authority), "server_hostname": "gw.test"} if secure else {}
            async with websockets.connect(url, **more, **options) as client:
                await client.send(b"up")
                assert await loop.run_in_executor(None, device.read, 2) == b"up"
                await loop.run_in_executor(None, device.write, b"down" * 1000)
                got = b""
                while len(got) < 4000:
                    got += await asyncio.wait_for(client.recv(), 10)
                assert got == b"down" * 1000
                await client.close()
                return client.subprotocol, client.close_code

        try:
            assert loop.run_until_complete(talk()) == (None, 1000)
            assert loop.run_until_complete(talk(subprotocols=["binary", "other"]))[0] == "binary"
        finally:
            loop.close()
        for count in (1, 2):
            assert gateway.event("session ended", count=count)["reason"] == "client-left"


@pytest.mark.parametrize("secure", [False, True])
def test_curl_talks_to_a_pty(authority, server, secure):
    """Debian's curl does not support ws://, so this sends the upgrade request by hand, and then raw frames."""
    route = {"listen": f"{'wss' if secure else 'ws'}://127.0.0.1:0/port", "tls": tls(server)}
    if not secure:
        del route["tls"]
    with Pty() as device, Gateway({"routes": {"port": {**route, "endpoint": device.url}}}) as gateway:
        host, port = gateway.address("port")
        fields = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="]
        # Bytes after a head without a body are frames, too.
        said = gateway.folder / "frame"
        said.write_bytes(frame(b"AT\r\n"))
        words = [word for field in [*fields, "Content-Length:"] for word in ("-H", field)]
        words += ["-X", "GET", "--data-binary", f"@{said}"]
        if secure:
            words += ["--cacert", str(authority.certificate), "--resolve", f"gw.test:{port}:{host}"]
        url = f"https://gw.test:{port}/port" if secure else f"http://{host}:{port}/port"
        client = subprocess.Popen(
            ["curl", "-sSN", "--http1.1", "--max-time", "30", *words, url], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert device.read(4) == b"AT\r\n"
            device.write(b"OK\r\n")
            assert client.stdout.read(6) == b"\x82\x04OK\r\n"
            device.write(b"x" * 300)
            assert client.stdout.read(304) == b"\x82\x7e\x01\x2c" + b"x" * 300
            gateway.stop()
            assert client.stdout.read() == b"\x88\x0a\x03\xe9shutdown"  # 1001, going away
        finally:
            client.kill()
            client.communicate(timeout=GUARD)


def test_a_request_that_is_no_websocket_gets_a_helpful_answer():
    with Gateway({"routes": {"lab": ECHO}}) as gateway:
        host, port = gateway.address("lab")
        url = f"http://{host}:{port}"
        status, text = curl(url + "/lab")
        assert status == 426 and "WebSocket" in text
        assert curl(url + "/nowhere")[0] == 404
        assert curl("-X", "POST", url + "/lab")[0] == 405
        with connect((host, port)) as client:
            client.sendall(b"\x16\x03\x01\x02\x00garbage\r\n\r\n")
            assert receive_all(client).startswith(b"HTTP/1.1 400 ")
        with connect((host, port)) as client:
            client.sendall(b"GET /lab HTTP/1.1\r\nX: " + b"x" * 40_000)
            assert b" 431 " in client.recv(1000)
        ended = [gateway.event("session ended", count=n) for n in range(1, 5)]
        assert [e["reason"] for e in ended] == ["protocol-error"] * 4
        assert "/nowhere" in gateway.event("request refused")["error"]


def test_paths_select_routes_that_share_a_port(authority, server):
    host, port = own_address()
    config = lambda names: {"routes": {
        name: {"listen": f"ws://{host}:{port}/{name}", "endpoint": f"sim://{kind}"} for name, kind in names.items()}}
    with Gateway(config({"lab": "echo", "con": "console"})) as gateway:
        with WebSocket(connect((host, port)), "/lab?x=1") as lab:
            lab.send(b"hello")
            assert lab.receive(5) == b"hello"
            # A reload removes a route and adds another at the same listener; connected clients stay.
            gateway.configure(config({"lab": "echo", "new": "echo"}))
            gateway.signal(signal.SIGHUP)
            gateway.event("reloaded")
            with pytest.raises(Status) as refused, connect((host, port)) as client:
                WebSocket(client, "/con")
            assert refused.value.status == 404
            with WebSocket(connect((host, port)), "/new") as new:
                new.send(b"here")
                assert new.receive(4) == b"here"
            lab.send(b"still")
            assert lab.receive(5) == b"still"
        assert not gateway.events("listener waiting")


def test_messages_sent_with_the_upgrade_request_are_delivered(authority, server):
    """The first messages in one piece with the request, before it was answered."""
    lab = {"listen": ["ws://127.0.0.1:0/lab", "wss://127.0.0.1:0/lab"], "endpoint": "sim://echo", "tls": tls(server)}
    with Gateway({"routes": {"lab": lab}}) as gateway:
        ask = b"GET /lab HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        ask += b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
        for line in gateway.events("listening"):
            host, port = line["listen"].split("://")[1].removesuffix("/lab").rsplit(":", 1)
            client = connect((host, int(port)))
            if line["listen"].startswith("wss"):
                client = trusting(authority).wrap_socket(client, server_hostname="gw.test")
            client.sendall(ask + frame(b"early"))
            answer = b""
            while not answer.endswith(b"early"):
                piece = client.recv(4096)
                assert piece, answer
                answer += piece
            assert answer.startswith(b"HTTP/1.1 101 ")
            finish(client)


def test_pages_of_other_origins_are_refused():
    config = {"routes": {"lab": {**ECHO, "websocket": {"origins": ["https://friend.example"], "hosts": ["gw.test"]}}}}
    with Gateway(config) as gateway:
        for origin, isWelcome in [
            ("http://gw.test", True), ("https://friend.example", True), ("https://evil.example", False), ("null", False)
        ]:
            with connect(gateway.address("lab")) as client:
                status, _, _ = request(client, "/lab", {"Origin": origin})
                assert status == (101 if isWelcome else 403), origin
                if isWelcome:
                    finish(client)


def hashed(password: str) -> str:
    done = subprocess.run(
        [binary(), "hash-password"], input=password + "\n", capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_users_log_in_by_password_or_token_and_have_their_roles():
    users = {
        "ada": {"password": hashed("secret"), "roles": {"lab": "writer"}},
        "bob": {"token": TOKEN, "roles": {"*": "monitor"}},
        "eve": {"token": TOKEN[::-1], "roles": {"other": "writer"}},
    }
    config = {"users": users, "routes": {"lab": ECHO, "other": {**ECHO, "listen": "ws://127.0.0.1:0/other"}}}
    basic = lambda text: {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}
    with Gateway(config) as gateway:
        address = gateway.address("lab")

        def status(fields) -> tuple[int, dict]:
            with connect(address) as client:
                answer = request(client, "/lab", fields)
                return answer[0], answer[1]

        code, head = status({})
        assert code == 401 and "www-authenticate" in head
        assert status(basic("ada:wrong"))[0] == 401
        assert status(basic("nobody:secret"))[0] == 401
        assert status({"Authorization": f"Bearer {TOKEN[::-1]}"})[0] == 403
        with WebSocket(connect(address), "/lab", basic("ada:secret")) as ada:
            assert gateway.event("session opened")["user"] == "ada"
            fields = {"Sec-WebSocket-Protocol": f"binary, bearer.{TOKEN}"}
            with WebSocket(connect(address), "/lab", fields) as bob:
                assert bob.head["sec-websocket-protocol"] == "binary"
                opened = gateway.event("session opened", count=2)
                assert (opened["user"], opened["role"]) == ("bob", "monitor")
                bob.send(b"not heard")
                ada.send(b"heard")
                assert ada.receive(5) == bob.receive(5) == b"heard"
        reasons = [gateway.event("session ended", count=n)["reason"] for n in range(1, 5)]
        assert reasons == ["login-failed"] * 3 + ["denied"]
        log = "\n".join(gateway.lines)
        assert TOKEN not in log and "secret" not in log and base64.b64encode(b"ada:secret").decode() not in log


def test_refusals_come_before_the_upgrade_and_endings_as_close_codes():
    config = {"routes": {
        "shut": {**ECHO, "listen": "ws://127.0.0.1:0/shut", "clients": {"deny": ["127.0.0.1"]}},
        "one": {**ECHO, "listen": "ws://127.0.0.1:0/one", "clients": {"max": 1, "idle-timeout": "1s"}},
        "gone": {"listen": "ws://127.0.0.1:0/gone", "endpoint": "tty:///nonexistent/tty", "device": {"absent": "close"}},
    }}
    with Gateway(config) as gateway:
        with pytest.raises(Status) as refused, connect(gateway.address("shut")) as client:
            WebSocket(client, "/shut")
        assert refused.value.status == 403 and "shut" in refused.value.text
        first = WebSocket(connect(gateway.address("one")), "/one")
        with pytest.raises(Status) as refused, connect(gateway.address("one")) as client:
            WebSocket(client, "/one")
        assert refused.value.status == 503 and "full" in refused.value.text
        assert first.close_code() == (1008, "idle")
        first.close()
        with WebSocket(connect(gateway.address("gone")), "/gone") as lost:
            assert lost.close_code()[0] == 1011
        with WebSocket(connect(gateway.address("one")), "/one") as rude:
            rude.client.sendall(b"\xff\xff\xff\xff")
            assert rude.close_code()[0] == 1002
        assert gateway.event("session ended", route="one", reason="protocol-error")["error"]
        with WebSocket(connect(gateway.address("one")), "/one") as last:
            gateway.event("session opened", route="one", count=3)
            gateway.signal(signal.SIGTERM)
            assert last.close_code() == (1001, "shutdown")
        gateway.wait()


@pytest.mark.measured
def test_a_client_that_never_reads_costs_only_its_buffer_and_delays_no_other():
    config = {"routes": {"flood": {"listen": "ws://127.0.0.1:0/flood", "endpoint": "sim://flood"}}}
    with Gateway(config) as gateway:
        memory = lambda: int(next(
            line.split()[1] for line in open(f"/proc/{gateway.pid}/status") if line.startswith("VmRSS")))
        with WebSocket(connect(gateway.address("flood")), "/flood") as reader:
            reader.receive_some = lambda count: [reader.frame() for _ in range(count)]
            reader.receive_some(1000)
            before = memory()
            deaf = [WebSocket(connect(gateway.address("flood"), receive_buffer=4096), "/flood") for _ in range(3)]
            gateway.event("session opened", count=4)
            reader.receive_some(5000)
            assert memory() - before < 8 * 1024
            for client in deaf:
                client.close()
        assert gateway.event("session ended", reason="too-slow")


@pytest.mark.heavy
def test_64_mib_both_ways_over_wss_while_the_certificate_is_replaced(authority, server, tmp_path):
    def install(pair):
        for source, name in ((pair.certificate, "c.pem"), (pair.key, "k.pem")):
            shutil.copyfile(source, tmp_path / "new")
            (tmp_path / "new").rename(tmp_path / name)

    install(server)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    size, piece = 64 << 20, random.Random(seed).randbytes(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lab = {"listen": "wss://127.0.0.1:0/lab", "endpoint": f"tcp://127.0.0.1:{listener.getsockname()[1]}",
               "tls": {"certificate": str(tmp_path / "c.pem"), "key": str(tmp_path / "k.pem")}}
        with Gateway({"routes": {"lab": lab}}) as gateway:
            client = WebSocket(connect_tls(gateway.address("lab"), trusting(authority)), "/lab")
            far, _ = listener.accept()
            far.settimeout(GUARD)
            client.client.settimeout(GUARD)
            chance = random.Random(seed)

            def up():
                sent = 0
                while sent < size:
                    count = min(chance.choice((1, 125, 126, 5000, 65535, 65536, 300_000)), (1 << 20) - sent % (1 << 20))
                    client.send(piece[sent % (1 << 20):][:count])
                    sent += count

            def renew():
                for _ in range(2):
                    install(authority.issue("gw.test", "gw.test"))
                    with connect_tls(gateway.address("lab"), trusting(authority)):
                        pass
                gateway.event("certificates renewed")

            def heard():
                for _ in range(size >> 20):
                    assert receive(far, 1 << 20) == piece

            run_all(up, heard, renew, seconds=4 * GUARD)
            # An SSL object may be used by one thread at a time: now the other direction.

            def down():
                for _ in range(size >> 20):
                    far.sendall(piece)

            def take():
                got = bytearray()
                total = 0
                while total < size:
                    opcode, payload = client.frame()
                    if opcode == 9:
                        continue
                    got += payload
                    total += len(payload)
                    while len(got) >= 1 << 20:
                        assert got[: 1 << 20] == piece
                        del got[: 1 << 20]
                assert total == size and not got

            run_all(down, take, seconds=4 * GUARD)
            finish(client.client)
            far.close()


# The page sends back what it receives, so that the device shows everything.
PAGE = """<!doctype html><script>
const socket = new WebSocket(%r, ["binary"]);
socket.binaryType = "arraybuffer";
socket.onopen = () => socket.send("from the page");
socket.onmessage = e => socket.send("heard " + new TextDecoder().decode(e.data));
</script>"""


@pytest.mark.heavy
@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here")
def test_a_page_in_chromium_talks_to_a_pty(authority, server, tmp_path):
    with Pty() as device:
        lab = {"listen": "wss://127.0.0.1:0/port", "endpoint": device.url, "tls": tls(server),
               "websocket": {"origins": ["*"]}}
        with Gateway({"routes": {"port": lab}}) as gateway:
            _, port = gateway.address("port")
            page = tmp_path / "page.html"
            page.write_text(PAGE % f"wss://localhost:{port}/port")
            browser = subprocess.Popen(
                ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--no-first-run", "--disable-background-networking", "--ignore-certificate-errors",
                 f"--user-data-dir={tmp_path}/profile", page.as_uri()],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                assert device.read(13) == b"from the page"
                device.write(b"the pty")
                assert device.read(13) == b"heard the pty"
            finally:
                os.killpg(browser.pid, signal.SIGKILL)
                browser.wait()
            assert gateway.event("session opened")["tls"] == "TLS 1.3"
