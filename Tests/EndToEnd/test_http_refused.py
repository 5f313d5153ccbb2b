"""HTTP requests to raw ports: what a browser or curl sends reaches no device."""
import json
import socket
import subprocess

import pytest
from certificates import Authority
from kit import GUARD, Gateway, Pty, connect, free_port, receive, receive_all
from listener_clients import request


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def refused(gateway: Gateway) -> dict:
    return json.loads(gateway.command("status", "--json", str(gateway.path)).stdout).get("refused", {})


def fetch(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["curl", "-sS", "--max-time", "10", "--http1.1", "-w", "\n%{http_code}", *words],
                          capture_output=True, text=True, timeout=GUARD)


BROWSER = ["-H", "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
           "-H", "Accept: */*", "-H", "Accept-Language: en-US,en;q=0.5", "-H", "Origin: http://evil.example",
           "-H", "Referer: http://evil.example/", "-H", "Content-Type: text/plain;charset=UTF-8"]


def test_a_pages_post_to_a_console_is_answered_400_and_executes_nothing():
    with Pty() as device, Gateway({"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": device.url}}}) as gateway:
        host, port = gateway.address("port")
        done = fetch(*BROWSER, "--data-binary", "\r\nreboot\r\n", f"http://{host}:{port}/")
        assert done.stdout.endswith("\n400") and "clients.refuse-http" in done.stdout, done
        ended = gateway.event("session ended")
        assert ended["reason"] == "denied" and "refuse-http" in ended["error"]
        assert refused(gateway) == {"http-request": 1}
        # A client that talks to the console is served, even one letter at a time.
        client = connect((host, port))
        for letter in b"GET /etc/motd\r":
            client.send(bytes([letter]))
        assert device.read(14) == b"GET /etc/motd\r"
        client.close()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_each_method_of_curl_is_refused(method):
    with Gateway({"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}}) as gateway:
        host, port = gateway.address("port")
        assert fetch("-X", method, f"http://{host}:{port}/x?y=z").stdout.endswith("\n400")
        # As to a proxy: the target is a whole URL.
        assert fetch("-X", method, "-x", f"http://{host}:{port}", "http://device.example/").stdout.endswith("\n400")


def test_head_is_refused_without_content():
    with Gateway({"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}}) as gateway:
        host, port = gateway.address("port")
        assert fetch("-I", f"http://{host}:{port}/").stdout.endswith("\n400")


def test_a_fetch_inside_tls_is_refused(authority):
    server = authority.issue("gw.test", "gw.test", "127.0.0.1")
    route = {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo",
             "tls": {"certificate": str(server.certificate), "key": str(server.key)}}
    with Gateway({"routes": {"port": route}}) as gateway:
        host, port = gateway.address("port")
        done = fetch(*BROWSER, "--cacert", str(authority.certificate), "--data-binary", "reboot\r\n", f"https://{host}:{port}/")
        assert done.stdout.endswith("\n400"), done
        assert gateway.event("session ended")["reason"] == "denied"


def test_a_long_body_is_read_only_to_a_limit():
    """The answer arrives, and at most 256 KiB after the request are read."""
    with Gateway({"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://sink"}}}) as gateway:
        client = connect(gateway.address("port"))
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 400 ")
        client.settimeout(GUARD)
        sent = 0
        with pytest.raises(OSError):
            while sent < 50_000_000:
                sent += client.send(b"x" * 65536)
        assert gateway.event("session ended")["reason"] == "denied"
        # Both kernels' buffers take some of it.
        assert sent < 10_000_000


def test_refuse_http_can_be_turned_off_and_on_by_a_reload():
    config = {"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": {"refuse-http": "no"}}}}
    line = b"GET / HTTP/1.1\r\n\r\n"
    with Gateway(config) as gateway:
        client = connect(gateway.address("port"))
        client.sendall(line)
        assert receive(client, len(line)) == line
        client.close()
        del config["routes"]["port"]["clients"]
        gateway.configure(config)
        told = json.loads(gateway.command("reload", "--json", str(gateway.path)).stdout)
        assert told["changed"] == [{"route": "port", "keys": ["clients.refuse-http"]}]
        assert fetch("http://%s:%d/" % gateway.address("port")).stdout.endswith("\n400")


def test_an_endless_header_is_read_only_to_a_limit():
    """Before a session, at most 256 KiB after a refusal are read."""
    with Gateway({"routes": {"lab": {"listen": "ws://127.0.0.1:0/lab", "endpoint": "sim://echo"}}}) as gateway:
        client = connect(gateway.address("lab"))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        client.settimeout(GUARD)
        client.sendall(b"GET /lab HTTP/1.1\r\n")
        sent = 0
        with pytest.raises(OSError):
            while sent < 50_000_000:
                sent += client.send(b"X-Long: " + b"x" * 8000 + b"\r\n")
        assert gateway.event("session ended")["reason"] == "protocol-error"
        assert sent < 10_000_000


def test_an_unknown_path_is_counted_and_makes_no_session():
    with Gateway({"routes": {"lab": {"listen": "ws://127.0.0.1:0/lab", "endpoint": "sim://echo"}}}) as gateway:
        host, port = gateway.address("lab")
        for _ in range(3):
            assert fetch(f"http://{host}:{port}/favicon.ico").stdout.endswith("\n404")
        line = gateway.event("request refused", count=3)
        assert "favicon" in line["error"] and line["client"].startswith("127.0.0.1:")
        status = json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)
        assert status["refused"] == {"no-such-path": 3}
        assert status["routes"][0]["totals"]["sessions"] == 0
        assert "refused: 3 no-such-path" in gateway.command("status", str(gateway.path)).stdout
        assert not gateway.events("session ended")


@pytest.mark.parametrize("names", [["lab"], ["lab", "other"]])
def test_an_ending_before_routing_counts_for_the_only_route_of_a_port(names):
    """Docs/control-socket.md says what counts where."""
    port = free_port()
    routes = {name: {"listen": f"ws://127.0.0.1:{port}/{name}", "endpoint": "sim://echo"} for name in names}
    with Gateway({"routes": routes}, stopping=False) as gateway:
        for request, status in (b"nonsense\r\n\r\n", b" 400 "), (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, b" 431 "):
            with connect(("127.0.0.1", port)) as client:
                client.sendall(request)
                assert status in receive_all(client)[:20]
        ended = [gateway.event("session ended", count=count) for count in (1, 2)]
        assert [line["reason"] for line in ended] == ["protocol-error"] * 2
        assert [line.get("route", "") for line in ended] == ["lab" if len(names) == 1 else ""] * 2
        status = json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)
        assert "refused" not in status
        counts = [route["totals"]["ended"] for route in status["routes"]]
        assert counts == ([{"protocol-error": 2}] if len(names) == 1 else [{}, {}]), counts


def test_a_rebound_name_is_refused_and_the_machines_own_names_are_accepted():
    name = socket.gethostname()
    with Gateway({"routes": {"lab": {"listen": "ws://127.0.0.1:0/lab", "endpoint": "sim://echo"}}}) as gateway:
        for host, expected in [("evil.example:8080", 403), (f"{name}:8080", 101), (f"{name.split('.')[0]}.local", 101),
                               ("localhost:8080", 101), ("192.0.2.7", 101)]:
            with connect(gateway.address("lab")) as client:
                status, _, _ = request(client, "/lab", {"Origin": f"http://{host}", "Host": host})
                assert status == expected, host
        with connect(gateway.address("lab")) as client:  # not a browser
            assert request(client, "/lab", {"Host": "evil.example:8080"})[0] == 101
        assert refused(gateway) == {"web-host": 1}
