"""Numbered packets: a device that sends them, writers whose packets may not mix, and readers that detect a torn one."""

from pattern import Misplaced

SIZE = 128
FILL = bytes(range(0x61, 0x7B)) * 6


class Packets:
    """The endless output of one sender. `mark` is the first byte of each packet; a different kind of Pattern."""

    def __init__(self, mark):
        self.head = b"%c" % (0x41 + mark)

    def packet(self, number):
        text = self.head + b"%014d:" % number
        return text + FILL[number % 26 :][: SIZE - 1 - len(text)] + b"\n"

    def piece(self, position, count):
        first = position // SIZE
        text = b"".join(self.packet(number) for number in range(first, (position + count) // SIZE + 1))
        return text[position - first * SIZE :][:count]


class PacketReader:
    """Follows one sender's packets; `gaps` counts the bytes of whole packets missing where `may_skip` allows it."""

    def __init__(self, packets, position=None):
        self.pattern, self.position = packets, position
        self.received = self.gaps = 0
        self.may_skip = False
        self._kept = b""

    def take(self, data):
        *whole, self._kept = (self._kept + bytes(data)).split(b"\n")
        for line in whole:
            self.take_packet(line + b"\n")

    def take_packet(self, line):
        number = self.number(line)
        if number is None:
            raise Misplaced(f"no packet, after {self.received} bytes: {line[:300]}")
        if self.position is None:
            self.position = number * SIZE
        if number * SIZE != self.position:
            if not self.may_skip or number * SIZE < self.position:
                raise Misplaced(f"packet {number} in place of {self.position // SIZE}, after {self.received} bytes")
            self.gaps += number * SIZE - self.position
        self.position = (number + 1) * SIZE
        self.received += SIZE

    def number(self, line):
        """The number of a whole packet of this sender; otherwise None."""
        if len(line) != SIZE or line[:1] != self.pattern.head or not line[1:15].isdigit():
            return None
        number = int(line[1:15])
        return number if line == self.pattern.packet(number) else None

    def is_at(self, position):
        return not self._kept and (self.position is None or self.position == position)

    @property
    def is_whole(self):
        return not self._kept


class PacketSorter:
    """Sorts several writers' packets from one line. One writer may leave in the middle of a packet: `broken` is the
    part it sent."""

    def __init__(self, senders):
        self.patterns = senders
        self.readers = [None] * len(senders)
        self.received = 0
        self.broken = None
        self._kept = b""

    def expect(self, mark, position):
        self.readers[mark] = PacketReader(self.patterns[mark], position)
        return self.readers[mark]

    def take(self, data):
        self.received += len(data)
        *whole, self._kept = (self._kept + bytes(data)).split(b"\n")
        if self.broken and self._kept == self.broken:
            self._kept = b""
            self.broken = None
        for line in whole:
            self._take_packet(line + b"\n")

    def _take_packet(self, line):
        if self.broken and line.startswith(self.broken) and len(line) > SIZE:
            line, self.broken = line[len(self.broken) :], None
        mark = line[0] - 0x41
        if not 0 <= mark < len(self.readers) or self.readers[mark] is None:
            raise Misplaced(f"a packet that nobody sent, or a torn one: {line[:300]}")
        self.readers[mark].take_packet(line)
