"""The adapter is unplugged and plugged in again under traffic, also under another name: it is found, clients stay, and
no bytes come twice or mixed up."""
import re
import threading
import time

from kit import receive_until, until
from rig import PROGRAMS, USB, Adapter, GuestGateway, route

# Milliseconds from the node's creation to bytes of the new device at a client, inside the machine. On a busy host only
# ten times this is an error.
AIM = 500
BACK = re.compile(r"^back (\S+) (\S+) (\S+)$", re.M)
SUMMARY = re.compile(r"^sent (\d+) echoed (\d+) broken (\d+) late (\d+)$", re.M)
ALWAYS = {"open": "always", "absent": "hold"}


class Holder:
    """Holds a node open, so that its number stays taken when the adapter is unplugged: it comes back under another
    one."""

    def __init__(self, guest, node: str):
        # The port may become its controlling terminal; the SIGHUP of the hang-up must not end it.
        self.call = guest.call(f"trap '' HUP; exec 3<>/dev/{node}; echo held; exec /run/guest/busybox sleep 600")
        self.call.until(lambda text: "held" in text)

    def close(self):
        self.call.close()


class Listener:
    """A client on the host that receives everything, from its first byte on."""

    def __init__(self, client):
        self.heard, self.ended = 0, False
        self._client = client
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        self._client.settimeout(None)
        try:
            while piece := self._client.recv(1 << 16):
                self.heard += len(piece)
        except OSError:
            pass
        self.ended = True

    def hears_more(self, count: int):
        target = self.heard + count
        until(lambda: self.heard >= target, 10, f"{count} more bytes at the client outside")


def descriptors(gateway: GuestGateway) -> int:
    return int(gateway.guest.ask("ls /proc/$(busybox pidof baudway)/fd | busybox wc -l"))


def test_an_adapter_is_replugged_ten_times_under_traffic(guest, adapter, figure):
    adapter.echo = True
    shared = route(f"tty://usb/0403:6001/{adapter.serial}?baud=3000000", device=ALWAYS, clients={"slow": "block"})
    with GuestGateway(guest, {"routes": {"port": shared}}) as gateway, gateway.connect("port") as client:
        listener = Listener(client)
        flow = guest.call(f"exec {PROGRAMS}/flow {gateway.port('port')} ttyUSB")
        flow.until(lambda text: "ready" in text, 20)
        before = descriptors(gateway)

        node, nodes, first, fresh = "ttyUSB0", [], [], []
        for turn in range(1, 11):
            # With a holder, the node gets another number. Without one, it gets the lowest number again, which after a
            # holder is another one too.
            holder = Holder(guest, node) if turn % 3 == 1 else None
            listener.hears_more(500)
            adapter.close()
            gateway.event("link lost", count=turn)
            adapter.connect()
            flow.until(lambda text: len(BACK.findall(text)) == turn, 30)
            came, *times = BACK.findall(flow.output.decode())[-1]
            assert (came != node) == (turn % 3 in (1, 2)), f"turn {turn}: {node}, then {came}"
            if holder:
                holder.close()
            node = came
            nodes.append(came)
            first.append(float(times[0]))
            fresh.append(float(times[1]))

        listener.hears_more(500)
        assert not listener.ended
        assert not gateway.events("session ended")
        # The lane has an inotify instance now, for all that it will ever watch.
        until(lambda: descriptors(gateway) <= before + 1, what=f"descriptors back to {before} and one")
        flow.signal(15)
        flow.wait(10)
        sent, echoed, broken, late = map(int, SUMMARY.search(flow.output.decode()).groups())
        print(f"{nodes}: first byte after {first} ms, fresh line after {fresh} ms; "
              f"{sent} lines sent, {echoed} echoed, {broken} broken, {late} late")
        # Nothing comes twice or out of order, and lines are cut only by a pull: once each way.
        assert late == 0 and broken <= 20
    figure("node back to first byte, longest of ten", max(first), "ms", aim=AIM)
    figure("node back to a fresh line's echo, longest of ten", max(fresh), "ms", aim=AIM)
    assert max(first) < 10 * AIM and max(fresh) < 10 * AIM


def test_an_unplug_between_two_writes_does_not_block_the_driver(guest, adapter, figure):
    """A port that is closed with unsent bytes keeps its driver, and the USB bus, for 30 s, unless it has hung up first.
    It takes such a write if the adapter has gone and the driver does not know yet: one pull in twenty."""
    with GuestGateway(guest, {"routes": {"port": route(f"tty://{USB}", device=ALWAYS)}}) as gateway, \
            gateway.connect("port") as client:
        stop, took = threading.Event(), []

        def dribble():
            while not stop.wait(0.005):
                client.sendall(b"dribbles\n")

        dribbler = threading.Thread(target=dribble, daemon=True)
        dribbler.start()
        try:
            for turn in range(1, 21):
                gateway.event("link open", count=turn)
                adapter.data.clear()
                adapter.read(200)
                adapter.close()
                start = time.monotonic()
                gateway.event("link lost", count=turn)
                guest.ask(f"while [ -e {USB} ]; do busybox usleep 5000; done", 60)
                took.append(time.monotonic() - start)
                adapter.connect()
            gateway.event("link open", count=21)
        finally:
            stop.set()
            dribbler.join()
            adapter.plug()
    figure("node gone after a pull under writes, longest of twenty", 1000 * max(took), "ms", aim=1000)
    assert max(took) < 10


def test_the_serial_number_selects_one_of_two_equal_adapters(guest, adapter):
    """Whichever adapter came first is ttyUSB0. Without the serial number the wanted one is ambiguous, and that is
    reported."""
    adapter.unplug()
    with Adapter(guest, "usb2") as other:
        until(other.nodes, 20, "the other adapter's node")
        adapter.plug()
        assert (other.nodes(), adapter.nodes()) == (["ttyUSB0"], ["ttyUSB1"])
        routes = {
            "one": route(f"tty://usb/0403:6001/{adapter.serial}"), "other": route(f"tty://usb/0403:6001/{other.serial}")}
        with GuestGateway(guest, {"routes": routes}) as gateway:
            for name, far in ("one", adapter), ("other", other):
                with gateway.connect(name) as client:
                    gateway.event("link open", route=name)
                    client.sendall(name.encode())
                    assert far.read(len(name)) == name.encode()
                    far.write(b"from " + far.serial.encode())
                    receive_until(client, b"from " + far.serial.encode())
        with GuestGateway(guest, {"routes": {"any": route("tty://usb/0403:6001", device=ALWAYS)}}) as gateway:
            waiting = gateway.event("link waiting")
            assert f"tty://usb/0403:6001/{adapter.serial}" in waiting["error"], waiting
            assert f"tty://usb/0403:6001/{other.serial}" in waiting["error"], waiting
            other.close()
            gateway.event("link open")
    until(lambda: not other.nodes(), 20, "the other adapter gone")
