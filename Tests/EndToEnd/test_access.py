"""Authentication at WebSocket listeners: passwords and tokens, roles, what a reload revokes, and how guessing is slowed
down."""
import base64
import json
import socket
import subprocess
import time

import pytest
from kit import GUARD, Gateway, Pty, binary, connect, run_all, until
from listener_clients import Status, WebSocket, finish

TOKENS = {"ada": "4f2d8c0a9b7e6d5c", "bob": "0b1c2d3e4f506172", "cyd": "c1d2c3d4c5d6c7d8"}


@pytest.fixture(scope="module")
def hash() -> str:
    done = subprocess.run(
        [binary(), "hash-password", "--cost", "1"], input=b"hunter2\n", capture_output=True, timeout=GUARD, check=True)
    return done.stdout.decode().strip()


def config(hash: str, **more) -> dict:
    """ada may write, bob may read, cyd has no role on this route."""
    return {
        "users": {
            "ada": {"password": hash, "token": TOKENS["ada"], "roles": {"lab-*": "writer", "*": "monitor"}},
            "bob": {"token": TOKENS["bob"], "roles": {"*": "monitor"}},
            "cyd": {"token": TOKENS["cyd"], "roles": {"other": "writer"}},
        },
        "routes": {
            "lab-1": {"listen": ["ws://127.0.0.1:0/lab", "tcp://127.0.0.1:0"], "endpoint": "sim://echo", **more},
            "other": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"},
        },
    }


def basic(user: str, password: str) -> dict:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def bearer(user: str) -> dict:
    return {"Authorization": f"Bearer {TOKENS[user]}"}


def offering(user: str) -> dict:
    return {"Sec-WebSocket-Protocol": f"binary, bearer.{TOKENS[user]}"}


def listener_address(gateway: Gateway, scheme: str) -> tuple[str, int]:
    """The address of a listener of lab-1: the two listeners start in either order."""
    places = [e["listen"] for e in gateway.events("listening", route="lab-1")]
    host, port = next(p for p in places if p.startswith(f"{scheme}:")).split("/")[2].rsplit(":", 1)
    return host, int(port)


def enter(gateway: Gateway, fields: dict | None = None) -> WebSocket:
    return WebSocket(connect(listener_address(gateway, "ws")), "/lab", fields)


def refused(gateway: Gateway, fields: dict | None = None) -> int:
    with pytest.raises(Status) as refusal:
        enter(gateway, fields)
    if refusal.value.status == 401:
        assert refusal.value.head["www-authenticate"].split()[0] in ("Basic", "Bearer")
    return refusal.value.status


def clients(gateway: Gateway) -> list[dict]:
    status = json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)
    return [client for route in status["routes"] for client in route["clients"]]


@pytest.mark.parametrize("fields", [basic("ada", "hunter2"), bearer("ada"), offering("ada")], ids=["basic", "bearer", "page"])
def test_a_client_with_valid_credentials_is_accepted_and_reported_by_name(hash, fields):
    with Gateway(config(hash)) as gateway:
        client = enter(gateway, fields)
        client.send(b"hello")
        assert client.receive(5) == b"hello"
        assert gateway.event("session opened")["user"] == "ada"
        assert [c["user"] for c in clients(gateway)] == ["ada"]
        # The token must not be chosen as the sub-protocol.
        assert client.head.get("sec-websocket-protocol") == ("binary" if "Sec-WebSocket-Protocol" in fields else None)
        finish(client.client)
        gateway.event("session ended")
        said = "\n".join(gateway.lines)
        assert "hunter2" not in said and TOKENS["ada"] not in said and hash not in said


def test_a_client_without_valid_credentials_or_role_is_refused(hash):
    with Gateway(config(hash)) as gateway:
        assert refused(gateway) == 401
        assert refused(gateway, basic("ada", "hunter3")) == 401
        assert refused(gateway, {"Authorization": "Basic x"}) == 401
        gateway.event("session ended", reason="login-failed", count=3)
        assert refused(gateway, bearer("cyd")) == 403
        last = gateway.event("session ended", reason="denied")
        assert (last["route"], last["user"]) == ("lab-1", "cyd")
        # The raw port cannot authenticate, and is as open as before.
        with connect(listener_address(gateway, "tcp")) as plain:
            plain.sendall(b"x")
            assert plain.recv(10) == b"x"
            finish(plain)


def test_a_monitor_receives_output_and_its_input_is_dropped(hash):
    with Pty() as device, Gateway(config(hash, endpoint=device.url)) as gateway:
        writer, monitor = enter(gateway, bearer("ada")), enter(gateway, offering("bob"))
        assert gateway.event("session opened", user="bob")["role"] == "monitor"
        monitor.send(b"not this")
        writer.send(b"this")
        assert device.read(4) == b"this"
        device.write(b"both")
        assert writer.receive(4) == monitor.receive(4) == b"both"
        writer.send(b"end")
        assert device.read(3) == b"end"
        finish(monitor.client)
        assert int(gateway.event("session ended", user="bob")["dropped"]) >= 8
        finish(writer.client)


def test_only_users_that_the_route_names_are_accepted(hash):
    with Gateway(config(hash, listen="ws://127.0.0.1:0/lab", clients={"users": ["bob"]})) as gateway:
        assert refused(gateway, bearer("ada")) == 403
        finish(enter(gateway, bearer("bob")).client)
        gateway.event("session ended", user="bob")


def test_a_reload_disconnects_only_the_users_it_forbids(hash):
    with Gateway(config(hash)) as gateway:
        by_password, by_token, monitor = (
            enter(gateway, fields) for fields in (basic("ada", "hunter2"), bearer("ada"), bearer("bob")))
        raw = connect(listener_address(gateway, "tcp"))
        until(lambda: len(gateway.events("session opened")) == 4, what="four")
        changed = config(hash)
        changed["users"]["ada"]["token"] = "0000111122223333"
        gateway.configure(changed)
        gateway.signal(1)
        assert "lab-1(users)" in gateway.event("reloaded")["changes"]
        assert by_token.close_code() == (1008, "denied")
        del changed["users"]["ada"]
        gateway.configure(changed)
        gateway.signal(1)
        gateway.event("reloaded", count=2)
        assert by_password.close_code() == (1008, "denied")
        assert len(gateway.events("session ended", reason="denied", user="ada")) == 2
        raw.sendall(b"x")
        assert raw.recv(10) == b"x" and monitor.receive(1) == b"x"
        assert [c.get("user") for c in clients(gateway)] == ["bob", None]
        for client in (by_token, by_password, monitor):
            finish(client.client)
        finish(raw)


@pytest.mark.timed
@pytest.mark.waits
def test_parallel_guesses_from_one_address_are_slowed_down_and_others_are_not(hash):
    with Gateway(config(hash)) as gateway:
        host, port = listener_address(gateway, "ws")

        def guess(number: int) -> int:
            try:
                WebSocket(connect((host, port)), "/lab", basic("ada", f"guess {number}"))
            except Status as status:
                return status.status
            raise AssertionError("guessed")

        for number in range(4):
            assert guess(number) == 401
        start = time.monotonic()
        answers = run_all(*[lambda number=number: guess(number) for number in range(24)])
        # Each waits for the one before it; a client that would wait for more than 8 s is refused.
        assert set(answers) == {401, 429} and answers.count(401) <= 16 and time.monotonic() - start > 3
        faults = [e["error"] for e in gateway.events("session ended", reason="login-failed")]
        assert any("wrong password for 'ada', failure 4 from 127.0.0.1" in fault for fault in faults)
        # A client from another address is not delayed.
        other = socket.socket()
        other.settimeout(GUARD)
        other.bind(("127.0.0.9", 0))
        other.connect((host, port))
        start = time.monotonic()
        client = WebSocket(other, "/lab", basic("ada", "hunter2"))
        assert time.monotonic() - start < 4
        finish(client.client)


@pytest.mark.measured
def test_twenty_connections_with_one_password_cost_one_hash(hash):
    """This password is expensive to check, but twenty connections cost little more than one."""
    slow = subprocess.run(
        [binary(), "hash-password", "--cost", "8"], input=b"hunter2\n", capture_output=True, timeout=GUARD, check=True)
    with Gateway(config(slow.stdout.decode().strip())) as gateway:
        def used() -> float:
            return sum(map(int, open(f"/proc/{gateway.pid}/stat").read().rsplit(")", 1)[1].split()[11:13])) / 100

        before = used()
        finish(enter(gateway, basic("ada", "hunter2")).client)
        once = used() - before
        before = used()
        for _ in range(20):
            finish(enter(gateway, basic("ada", "hunter2")).client)
        assert used() - before < 10 * max(once, 0.05), f"{once} s for the first"
        gateway.event("session ended", count=21)


def test_a_reload_disconnects_clients_whose_password_hash_has_changed(hash):
    """Also if the password is the same: the gateway cannot tell whether a client knows only the old one."""
    other = subprocess.run(
        [binary(), "hash-password", "--cost", "1"], input=b"hunter2\n", capture_output=True, timeout=GUARD, check=True)
    with Gateway(config(hash)) as gateway:
        by_password, by_token = enter(gateway, basic("ada", "hunter2")), enter(gateway, bearer("ada"))
        gateway.configure(config(other.stdout.decode().strip()))
        gateway.signal(1)
        assert by_password.close_code() == (1008, "denied")
        by_token.send(b"x")
        assert by_token.receive(1) == b"x"
        for client in (by_password, by_token):
            finish(client.client)


@pytest.mark.timed
@pytest.mark.waits
def test_refusal_times_do_not_reveal_which_users_exist():
    """An unknown user, and wrong passwords of users with hashes of very different cost."""
    yescrypt = subprocess.run(
        [binary(), "hash-password"], input=b"hunter2\n", capture_output=True, timeout=GUARD, check=True).stdout.decode().strip()
    sha512 = "$6$rounds=1000$saltstringsaltst$" + "a" * 86
    users = {"yes": {"password": yescrypt}, "sha": {"password": sha512}}
    checked = {"users": users, "routes": {"lab": {"listen": "ws://127.0.0.1:0/lab", "endpoint": "sim://echo"}}}
    with Gateway(checked) as gateway:
        host, port = gateway.address("lab")
        time.sleep(1)  # at the start the cost of each kind of hash is measured
        number = 0

        def refusal(user: str) -> float:
            nonlocal number
            number += 1
            client = socket.socket()
            client.settimeout(GUARD)
            client.bind((f"127.0.{number >> 8}.{10 + number % 240}", 0))  # an address with many failures has to wait
            client.connect((host, port))
            start = time.monotonic()
            with pytest.raises(Status) as status:
                WebSocket(client, "/lab", basic(user, f"guess {number}"))
            took = time.monotonic() - start
            assert status.value.status == 401
            client.close()
            return took

        times = {user: [] for user in ("yes", "sha", "nobody")}
        for _ in range(15):
            for user in times:
                times[user].append(refusal(user))
        medians = {user: sorted(each)[len(each) // 2] for user, each in times.items()}
        print(medians)
        assert max(medians.values()) < 1.5 * min(medians.values()), medians
        assert min(medians.values()) > 0.09


def test_check_warns_of_password_hashes_of_different_cost(tmp_path):
    users = {"a": {"password": "$6$rounds=1000$saltstringsaltst$" + "a" * 86}, "b": {"password": "$6$saltstringsaltst$" + "a" * 86}}
    path = tmp_path / "config.yaml"
    routes = {"lab": {"listen": "ws://127.0.0.1:0/lab", "endpoint": "sim://echo"}}
    path.write_text(json.dumps({"users": users, "routes": routes}))
    done = subprocess.run([binary(), "check", str(path)], capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 0 and "$6$rounds=1000, $6$rounds=5000" in done.stderr, done
    del users["b"]
    path.write_text(json.dumps({"users": users, "routes": routes}))
    assert "hashes" not in subprocess.run([binary(), "check", str(path)], capture_output=True, text=True, timeout=GUARD).stderr
