"""DTR and RTS on the wire of the USB bus: opening a port moves neither, from the second opening after plugging on.

At the first one Linux raises both, before any program has a say. That, and no more, is what the record shows.
"""
import pytest

from kit import reset
from rig import USB, BusRecord, GuestGateway, route

DTR, RTS = 1, 2


class Wire:
    """What an FT232's requests make of its modem lines: a value has a mask in its upper byte, and levels in its lower."""

    def __init__(self, record: BusRecord):
        self.record, self.level = record, {DTR: False, RTS: False}  # down, as the adapter has them after plugging
        self.times = []

    def moves(self) -> list[str]:
        """What moved since this was asked last, in order: "+dtr -rts" for one request."""
        moves, self.times = [], []
        for time, request, value in self.record.requests():
            moved = []
            for bit, name in ((DTR, "dtr"), (RTS, "rts")):
                level = bool(value & bit)
                if request == 1 and value >> 8 & bit and level != self.level[bit]:
                    self.level[bit] = level
                    moved.append("+" * level + "-" * (not level) + name)
            if moved:
                moves.append(" ".join(moved))
                self.times.append(time)
        return moves


@pytest.fixture
def wire(guest, adapter):
    """Of an adapter that was plugged in this moment."""
    adapter.unplug()
    adapter.plug()
    with BusRecord(guest) as record:
        yield Wire(record)


def served(guest, query: str) -> GuestGateway:
    return GuestGateway(guest, {"routes": {"port": route(f"tty://{USB}?{query}")}})


def open_and_close(gateway: GuestGateway, turn: int):
    with gateway.connect("port") as client:
        gateway.event("link open", count=turn)
        reset(client)
    gateway.event("link closed", count=turn)


def test_only_the_first_opening_after_plugging_raises_them(guest, wire):
    with served(guest, "baud=9600") as gateway:
        open_and_close(gateway, 1)
        assert wire.moves() == ["+dtr +rts"]
        for turn in (2, 3):
            open_and_close(gateway, turn)
            assert wire.moves() == [], f"opening {turn}"
    with served(guest, "baud=57600&parity=even") as gateway:  # another process, another rate
        open_and_close(gateway, 1)
    assert wire.moves() == []


def test_a_lost_gateway_moves_them_no_more_than_one_that_closes(guest, wire):
    with served(guest, "") as gateway, gateway.connect("port"):
        gateway.event("link open")
        gateway.stopping = False
        guest.ask("busybox killall -9 baudway")
        gateway.wait()
    assert wire.moves() == ["+dtr +rts"]
    with served(guest, "") as gateway:
        open_and_close(gateway, 1)
    assert wire.moves() == []


@pytest.mark.parametrize("query, moves, again", [
    ("dtr=on&rts=on", ["+dtr +rts"], []),
    ("dtr=off", ["+dtr +rts", "-dtr"], ["+dtr", "-dtr"]),
    ("rts=off", ["+dtr +rts", "-rts"], ["+rts", "-rts"]),
    ("dtr=off&rts=off", ["+dtr +rts", "-dtr -rts"], ["+dtr +rts", "-dtr -rts"]),
    ("dtr=on&rts=off", ["+dtr +rts", "-rts"], ["+rts", "-rts"]),
])
def test_on_and_off_are_what_they_say(guest, wire, figure, query, moves, again):
    """Linux raises both at every opening, and lets nobody keep it from that: `off` can only take it back."""
    with served(guest, query) as gateway:
        open_and_close(gateway, 1)
        assert wire.moves() == moves
        open_and_close(gateway, 2)
        assert wire.moves() == again
    if len(wire.times) == 2:
        figure(f"{query}: raised by Linux for", 1000 * (wire.times[1] - wire.times[0]), "ms", aim=20)


def test_hupcl_drops_them_at_the_last_close(guest, wire):
    with served(guest, "hupcl=yes") as gateway:
        for turn in (1, 2):
            open_and_close(gateway, turn)
            assert wire.moves() == ["+dtr +rts", "-dtr -rts"]
    # `no` takes back what another program, or an earlier configuration, has left behind.
    with served(guest, "hupcl=no") as gateway:
        open_and_close(gateway, 1)
        assert wire.moves() == ["+dtr +rts"]
        open_and_close(gateway, 2)
        assert wire.moves() == []
