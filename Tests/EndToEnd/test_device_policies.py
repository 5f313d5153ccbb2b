"""What `device.*` promises while a device goes away and returns: each policy with a device that is replaced under
traffic, and the first and last bytes that a device receives."""
import contextlib
import json
import os
import select
import signal
import socket
import termios
import threading
import time
import tty

import pytest
from kit import GUARD, Deadline, Gateway, Pty, Socat, connect, receive_all, receive_until, reset, until

AWAY = b"baudway: the device of port can't be opened: No such file or directory\r\n"
RECORD = 8  # bytes of a record: its number and a line feed


class Cable:
    """A serial device on a cable: `link` is for the gateway; the test is at its far end. `pull` removes both ends,
    `plug` makes a new device under the same name."""

    def __init__(self, folder: str):
        self.link, self.other = f"{folder}/device", f"{folder}/far"
        self.socat = self.far = None

    def plug(self):
        near = self.link + "-near"
        self.socat = Socat(f"pty,raw,echo=0,link={near}", f"pty,raw,echo=0,link={self.other}", links=(near, self.other))
        self.far = os.open(self.other, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self.far)
        # Only now: bytes that the gateway writes while the far end is not open would be lost.
        os.symlink(os.readlink(near), self.link)

    def pull(self):
        if self.far is not None:
            os.unlink(self.link)
            self.socat.kill()
            os.close(self.far)
            self.far = None

    def say(self, data: bytes):
        view = memoryview(data)
        while view:
            view = view[os.write(self.far, view[:4096]):]

    def hear(self, seconds: float = GUARD) -> bytes:
        """The next bytes; empty if none arrive."""
        ready, _, _ = select.select([self.far], [], [], seconds)
        return os.read(self.far, 1 << 16) if ready else b""

    def hear_record(self, seconds: float = GUARD) -> int:
        """The number of the first whole record after a line feed. All records have one length, so it is a number that
        was sent."""
        data, end = b"", time.monotonic() + seconds
        while time.monotonic() < end:
            data += self.hear(0.1)
            for part in data.split(b"\n")[1:-1]:
                if len(part) == RECORD - 1:
                    return int(part)
        raise AssertionError(f"no record but {data[-100:]!r}")

    def __enter__(self):
        self.plug()
        return self

    def __exit__(self, *_):
        self.pull()


class Talker:
    """A client that sends numbered records all the time, and keeps what it receives."""

    def __init__(self, address):
        self.client = connect(address)
        self.number, self.heard, self.ended = 0, bytearray(), threading.Event()
        self._stop = threading.Event()
        self.threads = [threading.Thread(target=body, daemon=True) for body in (self._talk, self._listen)]
        for thread in self.threads:
            thread.start()

    def _talk(self):
        try:
            while not self._stop.wait(0.001):
                self.client.sendall(b"%07d\n" % self.number)
                self.number += 1
        except OSError:
            pass  # it was disconnected

    def _listen(self):
        try:
            while piece := self.client.recv(1 << 16):
                self.heard += piece
        except OSError:
            pass
        self.ended.set()

    def stop_talking(self):
        self._stop.set()
        self.threads[0].join(GUARD)

    def leave(self):
        """Leaves with a reset. A thread that waits in recv would keep the socket open."""
        self.stop_talking()
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_RD)
        self.threads[1].join(GUARD)
        with contextlib.suppress(OSError):
            reset(self.client)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()


def serve(cable: Cable, absent: str, **device) -> Gateway:
    route = {
        "listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{cable.link}",
        "device": {"absent": absent, "retry": "100ms..1s", **device}}
    return Gateway({"routes": {"port": route}})


def lose(cable: Cable, gateway: Gateway, quick: Talker, slow: socket.socket, generation: int):
    """Pulls the device after its last output. When the quick client has that, the gateway has read it; the slow one
    reads later."""
    last = b"%d bytes and the last words of %d." % (20_000, generation)
    cable.say(b"." * 20_000 + last)
    until(lambda: last in quick.heard, what="the last words at the quick client")
    cable.pull()
    gateway.event("link lost", count=generation)
    receive_until(slow, last)


def test_hold_loses_no_byte_while_the_device_is_replaced_ten_times(folder):
    """Clients stay, and what they send goes to the next device: nothing is dropped."""
    with Cable(folder) as cable, serve(cable, "hold") as gateway:
        with Talker(gateway.address("port")) as talker, gateway.connect("port") as slow:
            newest = cable.hear_record()
            for generation in range(1, 11):
                lose(cable, gateway, talker, slow, generation)
                before = talker.number
                until(lambda: talker.number > before + 50, what="traffic while it is away")
                after = talker.number
                cable.plug()
                first = cable.hear_record()
                assert newest < first <= after, "what was sent while it was away is kept for it"
                newest = first
            talker.stop_talking()
            until(lambda: not cable.hear(0.5), what="silence")
            assert not gateway.events("session ended")
            talker.leave()
            ended = gateway.event("session ended")
            assert (ended["up"], ended["dropped"]) == (talker.number * RECORD, 0), ended


def test_discard_drops_only_input_during_the_absence_ten_times(folder):
    """Clients stay; what they send while the device is away is dropped, and the next device gets only what was sent to
    it."""
    with Cable(folder) as cable, serve(cable, "discard") as gateway:
        with Talker(gateway.address("port")) as talker, gateway.connect("port") as slow:
            for generation in range(1, 11):
                cable.hear_record()
                lose(cable, gateway, talker, slow, generation)
                before = talker.number
                until(lambda: talker.number > before + 50, what="traffic while it is away")
                cable.plug()
                assert cable.hear_record() > before + 50, "nothing of what was sent while it was away"
            talker.stop_talking()
            until(lambda: not cable.hear(0.5), what="silence")
            assert not gateway.events("session ended")
            talker.leave()
            ended = gateway.event("session ended")
            assert ended["up"] + ended["dropped"] == talker.number * RECORD, ended
            assert ended["dropped"] >= 10 * 50 * RECORD, ended


@pytest.mark.parametrize("open_", ["on-demand", "always"])
def test_close_disconnects_clients_at_each_of_ten_losses(folder, open_):
    """Clients are disconnected with the reason after the device's last output; so are those that connect while it is
    away, after one try to open it."""
    with Cable(folder) as cable, serve(cable, "close", open=open_) as gateway:
        for generation in range(1, 11):
            with Talker(gateway.address("port")) as talker, gateway.connect("port") as slow:
                cable.hear_record()
                lose(cable, gateway, talker, slow, generation)
                assert talker.ended.wait(GUARD) and receive_all(slow) == b""
            gone = gateway.event("session ended", reason="device-lost", count=2 * generation)
            assert cable.link in gone["error"] or "EIO" in gone["error"], gone
            with gateway.connect("port") as early:
                assert receive_all(early) == AWAY
            gone = gateway.event("session ended", reason="open-failed", count=generation)
            assert "ENOENT" in gone["error"] and cable.link in gone["error"], gone
            cable.plug()
        assert {e["reason"] for e in gateway.events("session ended")} == {"device-lost", "open-failed"}


def test_close_limits_the_rate_of_tries_to_open_the_device(folder):
    """Each new client causes a try, but not more often than the shortest pause."""
    cable = Cable(folder)
    with serve(cable, "close", retry="200ms..1s") as gateway:
        start, count, guard = time.monotonic(), 0, Deadline(GUARD)
        while len(gateway.events("link waiting")) < 6:
            assert not guard.passed
            with gateway.connect("port") as client:
                assert receive_all(client) == AWAY
            count += 1
        assert len(gateway.events("link waiting")) <= 2 + (time.monotonic() - start) / 0.2
        gateway.event("session ended", reason="open-failed", count=count)


def test_on_open_is_sent_first_and_on_close_last():
    """on-open comes before any client's bytes, at every opening; on-close comes when the last client has left, and at
    the end."""
    with Pty() as device:
        route = {
            "listen": "tcp://127.0.0.1:0", "endpoint": device.url,
            "device": {"on-open": "AT\\r", "on-close": "bye\\x00", "linger": "10m"}}
        with Gateway({"routes": {"port": route}}) as gateway:
            client = gateway.connect("port")
            client.sendall(b"hello")
            assert device.read(8) == b"AT\rhello"
            reset(client)
            ended = gateway.event("session ended")
            assert ended["up"] == 5, "our words are in nobody's account"
            # A client connects during the linger time: the device is still open, so it hears neither text.
            client = gateway.connect("port")
            client.sendall(b"again")
            assert device.read(5) == b"again"
            assert not gateway.events("link closed")
            route["device"]["linger"] = "10ms"
            gateway.configure({"routes": {"port": route}})
            gateway.signal(signal.SIGHUP)
            gateway.event("reloaded")
            reset(client)
            assert device.read(4) == b"bye\0"
            gateway.event("link closed")
            client = gateway.connect("port")
            client.sendall(b"third")
            assert device.read(8) == b"AT\rthird"
            gateway.stop()
            assert device.read(4) == b"bye\0"
            client.close()


def clients(gateway) -> list[dict]:
    return json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)["routes"][0]["clients"]


def flood(client: socket.socket) -> int:
    """Sends until nothing more is accepted; returns the number of bytes."""
    sent = 0
    client.setblocking(False)
    while select.select([], [client], [], 0.3)[1]:
        sent += client.send(bytes(1 << 16))
    client.setblocking(True)
    return sent


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_flush_at_disconnect_drops_unread_input(leave):
    """Bytes that the device has not read when the last client leaves are dropped and counted; the next client gets a
    clean line. Without `flush` everything would be delivered."""
    with Pty() as device:
        route = {
            "listen": "tcp://127.0.0.1:0", "endpoint": device.url,
            "device": {"flush": "disconnect", "linger": "60s", "drain": "60s"}}
        with Gateway({"routes": {"port": route}}) as gateway:
            client = gateway.connect("port")
            sent = flood(client)
            device.write(b"heard by nobody")
            leave(client)
            until(lambda: not any(c["state"] == "open" for c in clients(gateway)), what="the gateway notices it")
            # The second client, which finds an open link, proves that what the first one left is dropped.
            with gateway.connect("port") as second:
                second.sendall(b"clean")
                old = 0
                while (piece := device.read(1)) == b"\0":
                    old += 1
                # The kernel already holds about 4 KiB for the reader.
                assert piece + device.read(4) == b"clean" and old < 5000
                device.write(b"answer")
                assert receive_until(second, b"answer") == b"answer"
                if leave is reset:
                    ended = gateway.event("session ended")
                    assert old < ended["up"] and ended["up"] + ended["dropped"] <= sent, ended
                    assert ended["dropped"] >= 60_000, ended


def test_input_of_a_client_that_left_before_sigterm_is_delivered(folder):
    """Its FIN came after more bytes than a ring holds, so it was unread when the signal came."""
    size = 300_000
    with Pty() as device, \
            Gateway({"routes": {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": device.url}}}, stopping=False) as gateway:
        client = gateway.connect("port")
        gateway.event("link open")
        client.settimeout(GUARD)
        data = bytes(range(250)) * (size // 250)
        client.sendall(data)
        client.close()
        gateway.signal(signal.SIGTERM)
        gateway.event("stopping")
        assert device.read(size) == data
        assert gateway.wait() == 0
        ended = gateway.event("session ended")
        assert (ended["up"], ended["dropped"]) == (size, 0), ended


def test_a_reload_applies_line_settings_and_a_changed_endpoint():
    """A changed bit rate is applied to the open port; a changed endpoint is opened while the clients stay, whatever
    `absent` says."""
    with Pty() as device, Pty() as other:
        def route(pty: Pty, baud: int, **more) -> dict:
            return {"routes": {"port": {
                "listen": "tcp://127.0.0.1:0", "endpoint": {"url": pty.url, "baud": baud},
                "device": {"absent": "close", "on-open": "hello", "on-close": "bye", **more}}}}

        def reload(config: dict):
            gateway.configure(config)
            count = len(gateway.events("reloaded")) + 1
            gateway.signal(signal.SIGHUP)
            gateway.event("reloaded", count=count)

        def rate() -> int:
            return termios.tcgetattr(device.slave)[5]

        with Gateway(route(device, 9600)) as gateway, gateway.connect("port") as client:
            client.sendall(b"a")
            assert device.read(6) == b"helloa" and rate() == termios.B9600
            reload(route(device, 57600))
            until(lambda: rate() == termios.B57600, what="the new bit rate")
            client.sendall(b"b")
            assert device.read(1) == b"b", "the port was not opened anew"
            assert len(gateway.events("link open")) == 1 and not gateway.events("link closed")
            reload(route(other, 57600))
            client.sendall(b"c")
            assert device.read(3) == b"bye" and other.read(6) == b"helloc"
            other.write(b"answer")
            assert receive_until(client, b"answer") == b"answer"
            assert not gateway.events("session ended")
            reset(client)
            gateway.event("link closed")
            reload(route(other, 57600, open="always"))
            gateway.event("link open", count=3)


def test_two_routes_to_one_device_are_reported(folder):
    """Reported at the start and at a reload, with the place; a refused reload changes nothing."""
    with Pty() as device, Pty() as other:
        for number in (1, 2):
            os.symlink(device.path, f"{folder}/usb-{number}")
        route = {"listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{folder}/usb-1"}
        config = {"routes": {"one": route, "two": {**route, "endpoint": other.url}}}
        with Gateway(config) as gateway, gateway.connect("one") as client:
            client.sendall(b"x")
            assert device.read(1) == b"x"
            config["routes"]["two"]["endpoint"] = f"tty://{folder}/usb-2"
            gateway.configure(config)
            assert "is taken by routes.one.endpoint" in gateway.command("check", str(gateway.path)).stderr
            gateway.signal(signal.SIGHUP)
            refused = gateway.event("reload failed")
            assert "one device can have one route" in refused["error"], refused
            client.sendall(b"y")
            assert device.read(1) == b"y"
