"""How many clients per address a route accepts, so that no address takes all slots."""
import json
import socket

import pytest
from kit import Gateway, Pty, connect, receive_all, receive_until, round_trip, until


def connect_from(gateway, source: str) -> socket.socket:
    """A client that comes through a proxy from `source`."""
    client = connect(gateway.address("lab"))
    family = "TCP6" if ":" in source else "TCP4"
    client.sendall(f"PROXY {family} {source} {'::1' if ':' in source else '127.0.0.1'} 51233 4001\r\n".encode())
    return client


def lab(**clients) -> dict:
    route = {"listen": "tcp://127.0.0.1:0?proxy-protocol=required", "endpoint": "sim://echo", "clients": clients}
    return {"proxies": ["127.0.0.1"], "routes": {"lab": route}}


def totals(gateway) -> dict:
    return json.loads(gateway.command("status", "--json").stdout)["routes"][0]["totals"]


@pytest.mark.parametrize("sources", [["192.0.2.7"], ["2001:db8::1", "2001:db8::2"]])
def test_an_address_gets_at_most_all_slots_but_one(sources):
    with Gateway(lab(max=4)) as gateway:
        inside = [connect_from(gateway, sources[i % len(sources)]) for i in range(3)]
        for client in inside:
            round_trip(client)
        with connect_from(gateway, sources[-1]) as refused:
            assert b"baudway: lab already has 3 clients from " + sources[-1].encode() in receive_all(refused)
        ended = gateway.event("session ended")
        assert ended["reason"] == "full" and "clients.per-address" in ended["error"], ended
        assert totals(gateway)["per-address"] == 1 and totals(gateway)["ended"] == {"full": 1}
        assert "1 refused: too many clients from their address" in gateway.command("status").stdout
        # A client of another address has the last slot.
        with connect_from(gateway, "198.51.100.1") as other:
            round_trip(other)
            with connect_from(gateway, "198.51.100.2") as refused:
                assert b"is full (4 of 4 clients)" in receive_all(refused)
        assert totals(gateway)["per-address"] == 1
        # A slot that one of them frees is theirs again.
        inside[0].close()
        with connect_from(gateway, sources[0]) as again:
            round_trip(again)
        for client in inside:
            client.close()


def test_a_queue_accepts_no_more_clients_of_one_address_either():
    with Gateway(lab(max=4, **{"when-full": "queue"})) as gateway:
        inside = [connect_from(gateway, f"192.0.2.{i}") for i in range(4)]
        for client in inside:
            round_trip(client)
        waiting = [connect_from(gateway, "198.51.100.1") for _ in range(3)]
        for client in waiting:
            assert receive_until(client, b"in the queue")
        with connect_from(gateway, "198.51.100.1") as refused:
            assert b"already has 3 clients from 198.51.100.1" in receive_all(refused)
        for client in inside + waiting:
            client.close()


@pytest.mark.parametrize("per_address", ["off", 1])
def test_the_limit_can_be_turned_off_and_on_by_a_reload(per_address):
    with Gateway(lab(max=8, **{"per-address": per_address})) as gateway:
        clients = [connect_from(gateway, "192.0.2.7") for _ in range(8 if per_address == "off" else 1)]
        for client in clients:
            round_trip(client)
        with connect_from(gateway, "192.0.2.7") as refused:
            assert (b"is full (8 of 8" if per_address == "off" else b"already has a client from") in receive_all(refused)
        gateway.configure(lab(max=20, **{"per-address": 9}))
        assert gateway.command("reload").returncode == 0
        with connect_from(gateway, "192.0.2.7") as client:
            round_trip(client)
        for client in clients:
            client.close()


def test_loopback_and_proxies_are_not_counted():
    route = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": {"max": 4}}
    with Gateway({"routes": {"lab": route}}) as gateway:
        clients = [gateway.connect("lab") for _ in range(4)]
        for client in clients:
            round_trip(client)
            client.close()
    config = lab(max=4)
    config["proxies"].append("192.0.2.0/24")
    with Gateway(config) as gateway:
        clients = [connect_from(gateway, "192.0.2.7") for _ in range(4)]
        for client in clients:
            round_trip(client)
            client.close()


def test_the_default_limit_of_programs_is_64():
    config = {"routes": {"a": {"listen": "tcp://127.0.0.1:0", "endpoint": "exec:/bin/cat"},
                         "b": {"listen": "tcp://127.0.0.1:0", "endpoint": "exec:/bin/cat", "link": "shared"}}}
    with Gateway(config) as gateway:
        table = gateway.command("check", str(gateway.path)).stdout
        assert "max: 64" in table and "per-address: 63" in table and "max: 8" in table, table


def test_a_client_that_half_closed_makes_room_for_another_of_its_address():
    with Gateway(lab(max=4, **{"half-close": "1h"})) as gateway:
        clients = [connect_from(gateway, "192.0.2.7") for _ in range(3)]
        for client in clients:
            round_trip(client)
        clients[1].shutdown(socket.SHUT_WR)
        until(lambda: "half-closed" in gateway.command("status").stdout)
        with connect_from(gateway, "192.0.2.7") as client:
            round_trip(client)
            assert set(receive_all(clients[1])) <= set(b"?")  # and its end
        assert gateway.event("session ended")["reason"] == "client-left"
        for client in clients:
            client.close()


# --- a device that is away, with absent: close -----------------------------------------------------------------------


def away(folder, **clients) -> dict:
    return {"routes": {"port": {"listen": ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/port"], "endpoint": f"tty://{folder}/ttyX",
                                "device": {"absent": "close"}, "clients": clients}}}


def test_a_raw_client_of_an_absent_device_reads_one_line_with_the_reason(tmp_path):
    with Gateway(away(tmp_path)) as gateway, gateway.connect("port") as client:
        said = receive_all(client)
        assert said == b"baudway: the device of port can't be opened: No such file or directory\r\n"
        assert gateway.event("session ended")["reason"] == "open-failed"


def test_a_client_gets_no_reason_with_notices_off_or_after_a_banner(tmp_path):
    with Gateway(away(tmp_path, notices="off")) as gateway, gateway.connect("port") as client:
        assert receive_all(client) == b""
    with Gateway(away(tmp_path, banner="hello\n")) as gateway, gateway.connect("port") as client:
        assert receive_all(client) == b"hello\r\n"


@pytest.mark.parametrize("spoke", [True, False])
def test_a_raw_client_reads_why_its_device_is_lost_unless_it_received_output(tmp_path, spoke):
    with Pty() as device:
        (tmp_path / "ttyX").symlink_to(device.path)
        with Gateway(away(tmp_path)) as gateway, gateway.connect("port") as client:
            gateway.event("link open")
            if spoke:
                device.write(b"login: ")
                assert receive_until(client, b"login: ")
            device.close()
            assert receive_all(client) == (b"" if spoke else b"baudway: the device of port is gone\r\n")
            assert gateway.event("session ended")["reason"] == "device-lost"
