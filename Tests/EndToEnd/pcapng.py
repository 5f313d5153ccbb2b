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


def read(content: bytes, may_be_cut: bool = False) -> list[Packet]:
    """The packets of a file. `may_be_cut`: the last block may be incomplete, as after SIGKILL."""
    packets, place, seen = [], 0, []
    while place < len(content):
        kind, length = struct.unpack_from("<II", content, place) if place + 8 <= len(content) else (None, 12)
        if place + length > len(content):
            assert may_be_cut, "the last block is incomplete"
            break
        assert length % 4 == 0 and length >= 12
        assert struct.unpack_from("<I", content, place + length - 4)[0] == length
        body = content[place + 8:place + length - 4]
        place += length
        seen.append(kind)
        if kind == 0x0A0D0D0A:
            assert struct.unpack_from("<IHH", body) == (0x1A2B3C4D, 1, 0)
        elif kind == 1:
            assert struct.unpack_from("<HH", body) == (250, 0)
        else:
            assert kind == 6
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
            packets.append(Packet((high << 32 | low) / 1e9, event, lines, data[12:], comment))
    assert seen[:2] == [0x0A0D0D0A, 1]
    return packets


def data(packets: list[Packet], event: int) -> bytes:
    return b"".join(packet.data for packet in packets if packet.event == event)
