"""The right to write to a shared device, and its cost for others: one writer role, monitors, packets that stay whole,
and clients that lose the oldest output instead of holding up others."""
import json
import random
import re
import select
import socket
import threading
import time

import pytest
from certificates import Authority
from kit import GUARD, Deadline, Gateway, Pty, Server, connect, receive, receive_all, receive_until, reset, run_all, until
from listener_clients import WebSocket, trusting

LISTEN = "tcp://127.0.0.1:0"


def route(device, listen=LISTEN, packets=None, **clients) -> dict:
    answer = {"listen": listen, "endpoint": device.url, "clients": clients, "device": {"open": "always"}}
    return {**answer, "packets": packets} if packets else answer


def number_of(gateway, client) -> int:
    """The client's session, found by the client's address."""
    return gateway.event("session opened", client="%s:%d" % client.getsockname())["session"]


def taken(gateway, count: int):
    """Waits until the gateway has read this many bytes from its clients: they are at the device, kept, or dropped."""
    def read() -> int:
        clients = json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)["routes"][0]["clients"]
        return sum(client["up"] + client["queued-up"] + client["dropped"] for client in clients)

    until(lambda: read() == count, what=f"{count} bytes read")


def hears_nothing(device, seconds=0.2):
    assert not select.select([device.master], [], [], seconds)[0], "the device hears what it should not"


def test_only_one_client_has_the_writer_role_until_it_closes():
    with Pty() as device, Gateway({"routes": {"port": route(device, writers="one")}}) as gateway:
        gateway.event("link open")
        first, second = gateway.connect("port"), gateway.connect("port")
        with first, second:
            one, two = number_of(gateway, first), number_of(gateway, second)
            assert gateway.event("writer changed")["to"] == one
            second.sendall(b"nobody hears this")
            hears_nothing(device)
            first.sendall(b"mine")
            assert device.read(4) == b"mine"
            first.sendall(b"last")
            first.shutdown(socket.SHUT_WR)
            changed = gateway.event("writer changed", count=2)
            assert (changed["from"], changed["to"]) == (one, two)
            second.sendall(b"yours")
            assert device.read(9) == b"lastyours"
            # A client that has finished sending still receives.
            device.write(b"to all")
            assert receive(first, 6) == receive(second, 6) == b"to all"
            reset(second)
            ended = gateway.event("session ended", session=two)
            assert (ended["up"], ended["dropped"]) == (5, len(b"nobody hears this"))


def test_the_newest_client_gets_the_writer_role_after_earlier_input():
    """The device reads nothing for a while, so that input of both is held at the handover."""
    with Pty() as device, Gateway({"routes": {"port": route(device, writers="one", takeover="newest")}}) as gateway:
        gateway.event("link open")
        before = random.Random(1).randbytes(40_000)
        with gateway.connect("port") as old:
            old.sendall(before)
            taken(gateway, len(before))  # more than a pty holds: the rest is in the client's ring
            with gateway.connect("port") as new:
                gateway.event("writer changed", to=number_of(gateway, new))
                new.sendall(b"new")
                old.sendall(b"too late")
                assert device.read(len(before) + 3) == before + b"new"
                hears_nothing(device)


@pytest.mark.timed
def test_an_idle_holder_loses_the_writer_role_to_a_client_that_sends():
    with Pty() as device, Gateway({"routes": {"port": route(device, writers="one", takeover="idle:500ms")}}) as gateway:
        gateway.event("link open")
        with gateway.connect("port") as first, gateway.connect("port") as second:
            number_of(gateway, first), number_of(gateway, second)
            first.sendall(b"a")
            assert device.read(1) == b"a"
            second.sendall(b"too early")
            hears_nothing(device, 0.1)
            time.sleep(0.6)
            second.sendall(b"whole")
            assert device.read(5) == b"whole"
            gateway.event("writer changed", to=number_of(gateway, second))
            first.sendall(b"x")
            hears_nothing(device)


@pytest.mark.parametrize("writers", ["all", "none"])
def test_monitors_receive_output_and_cannot_write(writers):
    with Pty() as device, Gateway({
        "routes": {"port": route(device, [LISTEN, f"{LISTEN}?role=monitor"], writers=writers)}
    }) as gateway:
        gateway.event("link open")
        with gateway.connect("port") as writer, gateway.connect("port", 1) as monitor:
            numbers = number_of(gateway, writer), number_of(gateway, monitor)
            flood = bytes(4 << 20)  # more than all buffers on its way: unread, it would block
            monitor.sendall(flood)
            writer.sendall(b"said")
            if writers == "all":
                assert device.read(4) == b"said"
            hears_nothing(device)
            device.write(b"heard")
            assert receive(writer, 5) == receive(monitor, 5) == b"heard"
            taken(gateway, len(flood) + 4)
            for client in (writer, monitor):
                client.shutdown(socket.SHUT_WR)
            reset(monitor)
            reset(writer)
            dropped = [gateway.event("session ended", session=number)["dropped"] for number in numbers]
            assert dropped == [0 if writers == "all" else 4, len(flood)]


def test_packets_of_many_writers_are_not_mixed():
    """Ten writers send their packets in pieces, with pauses in the middle of them."""
    packets = {number: [b"%d:%s\n" % (number, b"x" * random.Random(number * 100 + k).randrange(300)) for k in range(40)]
               for number in range(10)}
    with Pty() as device, Gateway({
        "routes": {"port": route(device, packets={"delimiter": "\\n", "idle": "5s"}, max=20)}
    }) as gateway:
        gateway.event("link open")

        def speak(number):
            dice = random.Random(number)
            with gateway.connect("port") as client:
                for packet in packets[number]:
                    while packet:
                        count = dice.randrange(1, 100)
                        client.sendall(packet[:count])
                        packet = packet[count:]
                        time.sleep(dice.random() * 0.003)
                client.shutdown(socket.SHUT_WR)
                time.sleep(0.5)

        threads = [threading.Thread(target=speak, args=(number,), daemon=True) for number in packets]
        for thread in threads:
            thread.start()
        total = sum(len(p) for one in packets.values() for p in one)
        heard = device.read(total, 60).splitlines(keepends=True)
        for thread in threads:
            thread.join(GUARD)
        for number, sent in packets.items():
            assert [line for line in heard if line.startswith(b"%d:" % number)] == sent
        assert len(heard) == 400


def test_an_incomplete_packet_delays_others_only_for_its_idle_time(quick):
    with Pty() as device, Gateway({
        "routes": {"port": route(device, packets={"delimiter": "\\n", "idle": "400ms"})}
    }) as gateway:
        gateway.event("link open")
        with gateway.connect("port") as one, gateway.connect("port") as two:
            one.sendall(b"begun")
            assert device.read(5) == b"begun"
            start = time.monotonic()
            two.sendall(b"mine\n")
            assert device.read(5) == b"mine\n"
            took = time.monotonic() - start
            assert took > 0.2
            quick(took, 5.4)


def test_device_output_arrives_in_packets():
    with Pty() as device, Gateway({
        "routes": {"port": route(device, packets={"delimiter": "\\n", "max": 100})}
    }) as gateway:
        gateway.event("link open")
        with gateway.connect("port") as client:
            number_of(gateway, client)
            for piece in (b"in thr", b"ee pie", b"ces\nnext"):
                assert not select.select([client], [], [], 0.1)[0], "held back until it is complete"
                device.write(piece)
            assert client.recv(1000) == b"in three pieces\n"
            device.write(b"\n")
            assert client.recv(1000) == b"next\n"


def test_a_paused_reader_loses_the_oldest_output_and_delays_no_other_client(figure, quick):
    """The device sends numbered lines at the rate of a fast port; one client stops reading for a while."""
    with Pty() as device, Gateway({
        "routes": {"port": route(device, packets={"delimiter": "\\n"}, slow="drop-oldest", buffer="4KiB")}
    }) as gateway, gateway.connect("port", receive_buffer=2048) as stuck, gateway.connect("port") as healthy:
        gateway.event("link open")
        number = number_of(gateway, stuck)
        number_of(gateway, healthy)
        stop, worst, heard = threading.Event(), [0.0], bytearray()

        def listen():
            last = time.monotonic()
            while not stop.is_set():
                piece = healthy.recv(1 << 16)
                now = time.monotonic()
                worst[0] = max(worst[0], now - last)
                last = now
                heard.extend(piece)
                if heard.endswith(b"end\n"):
                    return

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        line, deadline, quiet = 0, Deadline(GUARD), None
        # Until the kernel's buffers are full and the policy takes effect, and for another second.
        while not (gateway.events("session drops", session=number) and line % 3000 == 0):
            assert not deadline.passed
            for _ in range(10):
                device.write(b"line %08d %s\n" % (line, b"." * 80))
                line += 1
            time.sleep(0.001)
            if quiet is None and line >= 1000:
                quiet, worst[0] = worst[0], 0.0  # no client is slow yet: the kernel holds everything
        device.write(b"end\n")
        listener.join(GUARD)
        assert bytes(heard).split(b"\n")[:-2] == [b"line %08d %s" % (k, b"." * 80) for k in range(line)]
        text = receive_until(stuck, b"end\n")
        numbers = [int(entry[5:13]) for entry in text.split(b"\n")[:-2]]
        assert all(re.fullmatch(rb"line \d{8} \.{80}", entry) for entry in text.split(b"\n")[:-2]), "whole packets"
        assert numbers == sorted(set(numbers)) and len(numbers) < line
        reset(stuck)
        ended = gateway.event("session ended", session=number)
        assert ended["down"] == len(text) and ended["dropped"] == 95 * (line - len(numbers))
        drops = gateway.events("session drops", session=number)
        assert sum(entry["dropped"] for entry in drops) <= ended["dropped"]
        figure("longest silence of a healthy client beside one who does not read", 1000 * worst[0], "ms", aim=50,
               control=1000 * quiet)
        quick(worst[0], 1, "the longest silence of the healthy client")


def test_a_reload_changes_the_writer_role_and_disconnects_no_client():
    with Pty() as device, Gateway({"routes": {"port": route(device)}}) as gateway:
        gateway.event("link open")
        with gateway.connect("port") as first, gateway.connect("port") as second:
            one = number_of(gateway, first)
            number_of(gateway, second)
            for client in (first, second):
                client.sendall(b"x")
                assert device.read(1) == b"x"
            gateway.configure({"routes": {"port": route(device, writers="one")}})
            gateway.signal(1)
            assert gateway.event("writer changed")["to"] == one
            second.sendall(b"dropped")
            hears_nothing(device)
            first.sendall(b"heard")
            assert device.read(5) == b"heard"
            assert not gateway.events("session ended") and len(gateway.events("link open")) == 1


def test_a_per_client_endpoint_is_reset_when_its_client_resets():
    """An incomplete file must not look complete."""
    heard, broke = bytearray(), []

    def serve(connection):
        try:
            while piece := connection.recv(1 << 16):
                heard.extend(piece)
        except ConnectionResetError:
            broke.append(True)

    with Server(serve) as server, Gateway({"routes": {"proxy": {"listen": LISTEN, "endpoint": server.url}}}) as gateway:
        client = gateway.connect("proxy")
        client.sendall(b"the first half")
        until(lambda: bytes(heard) == b"the first half")
        reset(client)
        assert gateway.event("session ended")["reason"] == "client-lost"
        until(lambda: broke, what="a reset")
        with gateway.connect("proxy") as client:
            client.sendall(b"whole")
            client.shutdown(socket.SHUT_WR)
            assert receive_all(client) == b""
        assert heard.endswith(b"whole") and len(broke) == 1


STREAM_LISTENERS = ["tcp", "tls", "ws", "wss", "telnet", "unix"]


@pytest.mark.parametrize("scheme", STREAM_LISTENERS)
def test_drop_oldest_keeps_little_in_the_kernel_either(scheme, folder):
    """A client that reads nothing for a while first gets at most some buffers full of what came before its pause."""
    authority = Authority(folder)
    pair = authority.issue("gw", "gw.test")
    listen = f"unix://{folder}/meter" if scheme == "unix" else f"{scheme}://127.0.0.1:0"
    record = 500
    with Pty() as device:
        meter = route(device, listen, slow="drop-oldest", buffer="4KiB")
        if scheme in ("tls", "wss"):
            meter["tls"] = {"certificate": str(pair.certificate), "key": str(pair.key)}
        with Gateway({"routes": {"meter": meter}}) as gateway:
            gateway.event("link open")
            if scheme == "unix":
                client = socket.socket(socket.AF_UNIX)
                client.connect(f"{folder}/meter")
                client.settimeout(20)
            else:
                client = connect(gateway.address("meter"), receive_buffer=4096)
            if scheme in ("tls", "wss"):
                client = trusting(authority).wrap_socket(client, server_hostname="gw.test")
            if scheme in ("ws", "wss"):
                WebSocket(client, "/")
            gateway.event("session opened")
            count = 1000
            for number in range(count):
                device.write(b"<%06d>" % number + b"." * (record - 9) + b"\n")
            # The client reads again: everything up to the last record, which it has missed or gets.
            data = bytearray()
            deadline = Deadline(30)
            while b"<%06d>" % (count - 1) not in data:
                assert deadline.left, "the newest record never comes"
                data += client.recv(1 << 16)
            old = [number for number in map(int, re.findall(rb"<(\d{6})>", bytes(data))) if number < count - 60]
            assert len(old) * record <= 48 << 10, f"{len(old) * record} bytes from before come first"
            client.close()


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "ws://127.0.0.1:0"])
def test_two_masters_get_their_own_answers(listen, folder):
    """Each question of either goes out alone, and its answer comes back to the asker only; a monitor reads both."""
    packets = {"idle": "20ms", "exchange": "2s"}
    monitor = f"unix://{folder}/monitor?role=monitor"
    with Pty() as device, Gateway({"routes": {"bus": route(device, [listen, monitor], packets)}}) as gateway:
        gateway.event("link open")
        gateway.event("listening", count=2)
        bound = next(line["listen"] for line in gateway.events("listening") if not line["listen"].startswith("unix"))
        bus = ("127.0.0.1", int(re.search(r"127\.0\.0\.1:(\d+)", bound)[1]))
        stop = threading.Event()

        def answer():
            """The device: it answers each question with the same text in capitals."""
            while not stop.is_set():
                if select.select([device.master], [], [], 0.1)[0]:
                    question = device.read(4)
                    assert not select.select([device.master], [], [], 0.01)[0], "two questions at once"
                    device.write(question.upper())

        def master(name):
            with connect(bus) as client:
                stream = WebSocket(client, "/") if listen.startswith("ws") else None
                for number in range(20):
                    question = b"%c%03d" % (name, number)
                    stream.send(question) if stream else client.sendall(question)
                    heard = stream.receive(4) if stream else receive(client, 4)
                    assert heard == question.upper()
                reset(client)

        with socket.socket(socket.AF_UNIX) as watcher:
            watcher.connect(f"{folder}/monitor")
            watcher.settimeout(20)
            gateway.event("session opened")
            device_runs = threading.Thread(target=answer)
            device_runs.start()
            try:
                run_all(lambda: master(ord("a")), lambda: master(ord("b")))
            finally:
                stop.set()
                device_runs.join()
            seen = receive(watcher, 160)
            answers = [seen[place:place + 4] for place in range(0, 160, 4)]
            for name in b"AB":
                assert [one for one in answers if one[0] == name] == [b"%c%03d" % (name, n) for n in range(20)]
