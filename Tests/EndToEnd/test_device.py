"""A device that goes away and returns: clients are held, get the new device at once, and nothing leaks."""
import json
import os
import select
import socket
import threading
import time

import pytest
from kit import GUARD, Deadline, Gateway, Pty, Socat, receive_until, reset, until

# Seconds from the node's appearance to the new device's first bytes at the client; the aim is a tenth of it.
LIMIT = 3.0


def chatty(generation: int) -> str:
    """A device that sends its generation over and over."""
    return f"SYSTEM:while echo gen-{generation}.; do sleep 0.01; done"


def test_clients_stay_while_the_device_is_replaced_ten_times_under_traffic(folder, figure, quick):
    link = f"{folder}/device"
    route = {
        "listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{link}", "clients": {"slow": "block"},
        "device": {"open": "always", "absent": "hold"},
    }
    device = Socat(f"pty,raw,echo=0,link={link}", chatty(0), links=(link,))
    stop = threading.Event()
    try:
        with Gateway({"routes": {"port": route}}) as gateway, gateway.connect("port") as one, \
                gateway.connect("port") as two:
            receive_until(one, b"gen-0.")
            receive_until(two, b"gen-0.")

            def talk():
                while not stop.wait(0.005):
                    two.sendall(b"traffic")

            talker = threading.Thread(target=talk, daemon=True)
            talker.start()
            before, took = gateway.descriptors(), []
            for generation in range(1, 11):
                device.kill()
                gateway.event("link lost", count=generation)
                device = Socat(f"pty,raw,echo=0,link={link}", chatty(generation), links=(link,))
                start = time.monotonic()
                receive_until(one, b"gen-%d." % generation)
                took.append(time.monotonic() - start)
                receive_until(two, b"gen-%d." % generation)
            figure("new device at the clients, longest of ten", 1000 * max(took), "ms", aim=300)
            quick(max(took), LIMIT, "from the device's return")
            stop.set()
            talker.join()
            assert not gateway.events("session ended")
            # The lane has an inotify instance now, for all that it will ever watch.
            until(lambda: gateway.descriptors() <= before + 1, what=f"descriptors back to {before} and one")
    finally:
        stop.set()
        device.kill()


def test_an_absent_device_is_awaited_and_gets_the_kept_input(folder):
    link = f"{folder}/late"
    with Gateway({"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{link}"}}}) as gateway, \
            gateway.connect("port") as client, Pty() as device:
        client.sendall(b"kept")
        waiting = gateway.event("link waiting")
        assert "ENOENT" in waiting["error"], waiting
        os.symlink(device.path, link)
        assert device.read(4) == b"kept"
        device.write(b"hello")
        assert receive_until(client, b"hello")


def test_clients_that_leave_during_an_absence_free_their_slots(folder):
    """They sent more than is kept for them, so their FIN is not read before there is space."""
    route = {
        "listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{folder}/device", "clients": {"max": 2},
        "device": {"drain": "300ms"}}
    with Gateway({"routes": {"board": route}}) as gateway:
        for leave in (socket.socket.close, reset):
            client = gateway.connect("board")
            client.setblocking(False)
            while select.select([], [client], [], 0.3)[1]:
                client.send(bytes(1 << 18))
            leave(client)

        def has_a_place() -> bool:
            with gateway.connect("board") as client:
                client.settimeout(0.5)
                try:
                    return b"full" not in client.recv(100)
                except TimeoutError:
                    return True

        until(has_a_place, what="a place", every=0.1)


def test_on_demand_opens_with_the_first_client_and_closes_after_the_last():
    with Pty() as device, \
            Gateway({"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": device.url}}}) as gateway:
        before = gateway.descriptors()
        assert not gateway.events("link open")
        for turn in range(1, 4):
            client = gateway.connect("port")
            gateway.event("link open", count=turn)
            client.sendall(b"x")
            assert device.read(1) == b"x"
            reset(client)
            gateway.event("link closed", count=turn)
        until(lambda: gateway.descriptors() <= before, what="descriptors as before")


def test_output_from_before_the_link_opened_is_flushed():
    with Pty() as device, \
            Gateway({"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": device.url}}}) as gateway:
        device.write(b"old news")
        with gateway.connect("port") as client:
            gateway.event("link open")
            device.write(b"fresh")
            assert receive_until(client, b"fresh") == b"fresh"


def test_flush_none_keeps_output_from_before_the_link_opened():
    route = {"listen": "tcp://127.0.0.1:0", "endpoint": "", "device": {"flush": "none"}}
    with Pty() as device, Gateway({"routes": {"port": {**route, "endpoint": device.url}}}) as gateway:
        device.write(b"old news")
        with gateway.connect("port") as client:
            assert receive_until(client, b"old news")


def test_the_backlog_is_sent_before_new_output():
    route = {
        "listen": "tcp://127.0.0.1:0", "endpoint": "", "clients": {"backlog": "4KiB"}, "device": {"open": "always"},
    }
    with Pty() as device, Gateway({"routes": {"port": {**route, "endpoint": device.url}}}) as gateway:
        gateway.event("link open")
        device.write(b"told before anybody came. ")
        # The log does not show that the gateway has read the output, but a client that receives it does.
        deadline, heard = Deadline(GUARD), b""
        while not heard.startswith(b"told before"):
            assert not deadline.passed, heard
            with gateway.connect("port") as client:
                client.settimeout(0.2)
                try:
                    heard = client.recv(1000)
                except TimeoutError:
                    heard = b""
        with gateway.connect("port") as client:
            device.write(b"told after")
            assert receive_until(client, b"told after") == b"told before anybody came. told after"


@pytest.mark.parametrize("opened", ["always", "on-demand"])
def test_an_xoff_holds_up_no_client_after_the_one_that_it_was_for(opened):
    """The device sends XOFF and is reset: XON never comes. The test keeps the port open, too, as a second program may."""
    with Pty() as device:
        route = {
            "listen": "tcp://127.0.0.1:0", "endpoint": device.url + "?flow=xonxoff", "clients": {"half-close": "off"},
            "device": {"open": opened, "drain": "1s"},
        }
        with Gateway({"routes": {"board": route}}) as gateway:
            with gateway.connect("board") as client:
                client.sendall(b"one")
                assert device.read(3) == b"one"
                device.write(b"\x13")
                # Bytes leave until the kernel has seen it.
                until(lambda: client.sendall(b"x") or not select.select([device.master], [], [], 0.2)[0]
                      or not os.read(device.master, 100), 20, "output stops")
                client.sendall(b"two")

                def held():
                    answer = json.loads(gateway.command("status", "--json").stdout)
                    return answer["routes"][0]["state"].get("held", {}).get("by") == "xoff"

                until(held, 20, "status names XOFF")
            gateway.event("session ended")
            with gateway.connect("board") as client:
                client.sendall(b"three")
                assert device.read(5) == b"three"
                reset(client)
