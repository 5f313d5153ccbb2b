"""A reader of pcapng files with LINKTYPE_RTAC_SERIAL, written from the format's description."""
import dataclasses
import struct

TO_DEVICE, FROM_DEVICE, LOST, COMPLETE = 1, 2, 5, 6


@dataclasses.dataclass
class Packet:
    seconds: float
    event: int
    lines: int
    data: bytes
    comment: str | None


class Reader:
    """Reads a file piece by piece, also one that grows."""

    def __init__(self):
        self.rest = b""  # of a block that is not there as a whole yet
        self._kinds = []

    def feed(self, content: bytes) -> list[Packet]:
        """The packets that are complete with `content`, which comes after what was fed before."""
        content, packets, place = self.rest + content, [], 0
        while place + 12 <= len(content):
            kind, length = struct.unpack_from("<II", content, place)
            assert length % 4 == 0 and length >= 12
            if place + length > len(content):
                break
            assert struct.unpack_from("<I", content, place + length - 4)[0] == length
            packets += self._block(kind, content[place + 8:place + length - 4])
            place += length
        self.rest = content[place:]
        return packets

    def _block(self, kind: int, body: bytes) -> list[Packet]:
        self._kinds = [*self._kinds, kind][:2]
        if kind == 0x0A0D0D0A:
            assert struct.unpack_from("<IHH", body) == (0x1A2B3C4D, 1, 0)
            return []
        if kind == 1:
            assert struct.unpack_from("<HH", body) == (250, 0)
            return []
        assert kind == 6 and self._kinds == [0x0A0D0D0A, 1]
        interface, high, low, captured, original = struct.unpack_from("<IIIII", body)
        assert interface == 0 and captured == original
        data = body[20:20 + captured]
        event, lines, footer = struct.unpack_from(">BBH", data, 8)
        assert footer == 0
        comment, option = None, 20 + (captured + 3) // 4 * 4
        while option < len(body):
            code, size = struct.unpack_from("<HH", body, option)
            if code == 1:
                comment = body[option + 4:option + 4 + size].decode()
            option += 4 + (size + 3) // 4 * 4
        return [Packet((high << 32 | low) / 1e9, event, lines, data[12:], comment)]

    def end(self, may_be_cut: bool = False):
        """There is no more. `may_be_cut`: the last block may be incomplete, as after SIGKILL."""
        assert may_be_cut or not self.rest, "the last block is incomplete"
        assert may_be_cut or self._kinds == [0x0A0D0D0A, 1]


def read(content: bytes, may_be_cut: bool = False) -> list[Packet]:
    """The packets of a file."""
    reader = Reader()
    packets = reader.feed(content)
    reader.end(may_be_cut)
    return packets


def data(packets: list[Packet], event: int) -> bytes:
    return b"".join(packet.data for packet in packets if packet.event == event)
