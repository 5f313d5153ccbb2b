"""DTR and RTS on the wire of the USB bus: from the second opening after plugging in, opening a port moves neither.

At the first opening Linux raises both, before any program can act. The record shows that, and no more.
"""
import pytest

from kit import reset
from rig import USB, BusRecord, GuestGateway, route

DTR, RTS = 1, 2


class Wire:
    """The modem lines according to an FT232's requests: a value has a mask in its upper byte, and levels in its
    lower."""

    def __init__(self, record: BusRecord):
        self.record, self.level = record, {DTR: False, RTS: False}  # down, as they are after plugging in
        self.times = []

    def moves(self) -> list[str]:
        """The lines' moves since the last call, in order: "+dtr -rts" for one request."""
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
    """The wire of an adapter that was just plugged in."""
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


def test_only_the_first_opening_after_plugging_in_raises_the_lines(guest, wire):
    with served(guest, "baud=9600") as gateway:
        open_and_close(gateway, 1)
        assert wire.moves() == ["+dtr +rts"]
        for turn in (2, 3):
            open_and_close(gateway, turn)
            assert wire.moves() == [], f"opening {turn}"
    with served(guest, "baud=57600&parity=even") as gateway:  # another process, another rate
        open_and_close(gateway, 1)
    assert wire.moves() == []


def test_a_killed_gateway_moves_the_lines_no_more_than_a_closing_one(guest, wire):
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
def test_on_and_off_set_the_lines(guest, wire, figure, query, moves, again):
    """Linux raises both at every opening, and a program cannot prevent that: `off` can only lower them again."""
    with served(guest, query) as gateway:
        open_and_close(gateway, 1)
        assert wire.moves() == moves
        open_and_close(gateway, 2)
        assert wire.moves() == again
    if len(wire.times) == 2:
        figure(f"{query}: raised by Linux for", 1000 * (wire.times[1] - wire.times[0]), "ms", aim=20)


def test_hupcl_drops_the_lines_at_the_last_close(guest, wire):
    with served(guest, "hupcl=yes") as gateway:
        for turn in (1, 2):
            open_and_close(gateway, turn)
            assert wire.moves() == ["+dtr +rts", "-dtr -rts"]
    # `no` resets what another program, or an earlier configuration, has left set.
    with served(guest, "hupcl=no") as gateway:
        open_and_close(gateway, 1)
        assert wire.moves() == ["+dtr +rts"]
        open_and_close(gateway, 2)
        assert wire.moves() == []
