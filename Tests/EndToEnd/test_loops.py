"""Endpoints that lead back to their own route through this machine: each such connection is ended, and a route may still be
another's endpoint."""
import socket
import subprocess

import pytest
from certificates import Authority
from kit import GUARD, Gateway, connect, free_port, receive_all, round_trip, until
from test_control import route
from test_websocket import tls

def local(path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(GUARD)
    client.connect(str(path))
    return client


LINKS = ["shared", "per-client"]
BACK = "leads back to this route"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates")).issue("localhost", "localhost")


def loop(kind: str, link: str, folder, server) -> dict:
    """A route that is its own endpoint, by a name or path that `check` only warns of."""
    port = free_port()
    more = {"device": {"absent": "close"}} if link == "shared" else {}
    if kind == "unix":
        (folder / "real").mkdir()
        (folder / "other").symlink_to("real")
        listen, endpoint = f"unix://{folder}/real/s", f"unix://{folder}/other/s"
    elif kind in ("tls", "wss"):
        more["tls"] = tls(server)
        listen, endpoint = f"{kind}://127.0.0.1:{port}", f"{kind}://localhost:{port}?verify=none"
    else:
        listen, endpoint = f"{kind}://127.0.0.1:{port}", f"{kind}://localhost:{port}"
    # Clients come by a listener of their own.
    return {"listen": [listen, f"unix://{folder}/c"], "endpoint": endpoint, "link": link, **more}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("kind", ["tcp", "telnet", "ws", "tls", "wss", "unix"])
def test_a_route_that_leads_to_its_own_listener_opens_no_second_connection(tmp_path, server, kind, link):
    with Gateway({"routes": {"a": loop(kind, link, tmp_path, server)}}) as gateway:
        with local(tmp_path / "c") as client:
            client.sendall(b"x")
            receive_all(client)
            ended = gateway.event("session ended", route="a")
            assert ended["reason"] == "open-failed" and BACK in ended["error"], ended
        assert len(gateway.events("session opened")) == 1


@pytest.mark.parametrize("link", LINKS)
def test_two_routes_that_lead_to_each_other_end_the_connection_that_closes_the_circle(link):
    first, second = free_port(), free_port()
    routes = {
        "a": {"listen": f"tcp://127.0.0.1:{first}", "endpoint": f"tcp://localhost:{second}", "link": link},
        "b": {"listen": f"tcp://127.0.0.1:{second}", "endpoint": f"tcp://localhost:{first}", "link": link},
    }
    if link == "shared":
        for one in routes.values():
            one["device"] = {"absent": "close"}
    with Gateway({"routes": routes}) as gateway:
        with gateway.connect("a") as client:
            client.sendall(b"x")
            receive_all(client)
            ended = gateway.event("session ended", route="b")
            assert ended["reason"] == "open-failed" and f"{BACK}, by way of 'a', at tcp://127.0.0.1:{first}" in ended["error"]
        gateway.event("session ended", route="a")
        assert len(gateway.events("session opened", route="a")) == 1


HOSTS = """
mount --bind "$1" /etc/hosts || exit 1
ip link set lo up; ip link add outside type veth peer name other; ip addr add 198.51.100.7/24 dev outside; ip link set outside up
shift; exec "$@"
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount"]


@pytest.mark.skipif(
    subprocess.run([*UNSHARE, "sh", "-c", "ip link add outside type veth peer name other"], capture_output=True).returncode != 0,
    reason="no network namespaces here")
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("address", ["127.0.0.1", "198.51.100.7"])
def test_a_name_that_leads_back_only_later_ends_each_try_with_growing_pauses(tmp_path, link, address):
    hosts = tmp_path / "hosts"
    hosts.write_text("198.51.100.99 meter.test\n")
    routes = {"a": {"listen": ["tcp://:4001", f"unix://{tmp_path}/c"], "endpoint": "tcp://meter.test:4001", "link": link}}
    if link == "shared":
        routes["a"]["device"] = {"open": "always", "retry": "100ms..1s", "connect-timeout": "1s"}
    with Gateway({"routes": routes}, prefix=[*UNSHARE, "sh", "-c", HOSTS, "sh", str(hosts)]) as gateway:
        assert not any(BACK in line or "leads back" in line for line in gateway.lines)
        hosts.write_text(f"{address} meter.test\n")
        if link == "shared":
            back = lambda: [e for e in gateway.events("link waiting", route="a") if BACK in e["error"]]
            until(lambda: any(e["retry"] > 0.4 for e in back()), what="a longer pause")
            assert not gateway.events("session opened")
            assert BACK in str(route(gateway, "a"))
        else:
            for number in range(1, 4):
                with local(tmp_path / "c") as client:
                    receive_all(client)
                assert BACK in gateway.event("session ended", count=number)["error"]
            assert len(gateway.events("session opened")) == 3


@pytest.mark.parametrize("link", LINKS)
def test_a_route_may_be_the_endpoint_of_another_and_both_may_change_places(tmp_path, link):
    first, second, third = free_port(), free_port(), free_port()
    at = lambda port, endpoint: {"listen": f"tcp://127.0.0.1:{port}", "endpoint": endpoint, "link": link}
    to = lambda port: f"tcp://127.0.0.1:{port}"
    chain = {"a": at(first, to(second)), "b": at(second, to(third)), "c": at(third, "sim://echo")}
    back = {"a": at(first, "sim://echo"), "b": at(second, to(first)), "c": at(third, to(second))}
    with Gateway({"routes": chain}) as gateway:
        clients = [connect(("127.0.0.1", port)) for port in (first, first, second, third)]
        for client in clients:
            round_trip(client)
        gateway.configure({"routes": back})
        assert gateway.command("reload", str(gateway.path)).returncode == 0
        later = [connect(("127.0.0.1", port)) for port in (first, second, third, third)]
        for client in later:
            round_trip(client)
        assert BACK not in "".join(gateway.lines)
        for client in clients + later:
            client.close()
