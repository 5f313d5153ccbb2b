"""Bytes whose position can be checked: an endless repetition of a random block, and its readers.

Used by the actors: a sender takes pieces of a Pattern, a receiver passes its bytes to a Reader.
"""

import random

LENGTH = 1_048_573  # a prime near 1 MiB: no buffer size divides it, so a lost buffer is always noticed
WINDOW = 24  # this many bytes identify a position within the block


class Misplaced(Exception):
    """A byte is lost, doubled or changed where that is not allowed."""


class Pattern:
    """`mark`, 0 to 3, is in the two top bits of every byte and distinguishes senders on one line; None leaves all eight
    bits."""

    def __init__(self, seed, mark=None):
        block = random.Random(f"pattern {seed} {mark}").randbytes(LENGTH)
        if mark is not None:
            block = block.translate(bytes(byte & 0x3F | mark << 6 for byte in range(256)))
        self.block = block
        self._twice = block + block
        self._view = memoryview(self._twice)

    def piece(self, position, count):
        """The bytes from `position` on, at most one block."""
        start = position % LENGTH
        return self._view[start : start + min(count, LENGTH)]

    def stands_at(self, position, data):
        """Whether `data`, at most a block, is what comes at `position`. Compares whole memory, not byte by byte."""
        return self._twice.startswith(data, position % LENGTH)

    def find(self, window, after):
        """The first position ≥ `after` that has `window`; None if there is none."""
        start = after % LENGTH
        place = self._twice.find(window, start, start + LENGTH + len(window) - 1)
        return None if place < 0 else after + place - start


class Reader:
    """Follows one sender's bytes. `gaps` is the number of missing bytes where they are allowed: outside of `allow` a
    gap raises."""

    def __init__(self, pattern, position=None):
        self.pattern = pattern
        self.position = position  # of the next byte; None until the first bytes show it
        self.received = 0
        self.gaps = 0
        self.may_skip = False
        self._kept = b""

    def take(self, data):
        data = self._kept + bytes(data) if self._kept else data
        self._kept = b""
        view = memoryview(data)
        while view:
            if self.position is not None:
                view = view[self.take_next(view) :]
                if not view:
                    return
                if not self.may_skip:
                    raise Misplaced(
                        f"after {self.received} bytes, at place {self.position}: {bytes(view[:WINDOW]).hex()} "
                        f"in place of {bytes(self.pattern.piece(self.position, WINDOW)).hex()}"
                    )
            if len(view) < WINDOW:
                self._kept = bytes(view)
                return
            found = self.pattern.find(bytes(view[:WINDOW]), self.position or 0)
            if found is None and self.may_skip and self.position is not None:
                if len(view) < 2 * WINDOW:
                    self._kept = bytes(view)
                    return
                found = self._short_run(bytes(view[:2 * WINDOW]))
            if found is None:
                raise Misplaced(f"after {self.received} bytes: {bytes(view[:WINDOW]).hex()} stands nowhere")
            if self.position is not None:
                self.gaps += found - self.position
            self.position = found

    def _short_run(self, data):
        """The place of a few bytes between two gaps, as of a client that had the writer role for a moment; None if `data` does not
        begin with such. They may stand at several places, and the first of them is not after the true one."""
        for count in range(1, WINDOW):
            first = self.pattern.find(data[:count], self.position)
            if first is None:
                return None
            after = self.pattern.find(data[count : count + WINDOW], first + count)
            if after is not None and after - self.position < LENGTH:
                return first
        return None

    def take_next(self, view):
        """Consumes the bytes that match the pattern's next ones, and returns their number."""
        same = self._matching(view)
        self.position += same
        self.received += same
        return same

    def _matching(self, view):
        """How many bytes of `view` match the pattern's next ones."""
        done = 0
        while done < len(view):
            have = view[done : done + 65536]
            if not self.pattern.stands_at(self.position + done, have):
                # Binary search for the first difference.
                low, high = 0, len(have)
                while low < high:
                    middle = (low + high + 1) // 2
                    if self.pattern.stands_at(self.position + done, have[:middle]):
                        low = middle
                    else:
                        high = middle - 1
                return done + low
            done += len(have)
        return done

    def is_at(self, position):
        """Whether all bytes before `position` were received; true if nothing was received yet."""
        return not self._kept and (self.position is None or (self.position - position) % LENGTH == 0)

    @property
    def undecided(self):
        """Number of bytes that wait for more to identify their position."""
        return len(self._kept)

    @property
    def is_whole(self):
        return not self._kept


class Sorter:
    """Splits the bytes of up to four marked senders on one line and passes each sender's to its reader."""

    def __init__(self, patterns):
        self.readers = [None] * 4
        self.patterns = patterns
        self.received = 0
        self._others = [bytes(byte for byte in range(256) if byte >> 6 != mark) for mark in range(4)]

    def expect(self, mark, position):
        """Starts a new sender with this mark at `position`; the previous one has ended."""
        self.readers[mark] = Reader(self.patterns[mark], position)
        return self.readers[mark]

    def take(self, data):
        self.received += len(data)
        view = memoryview(data)
        # Usually a long run of one sender's bytes arrives at a time.
        while view and self._is_on_its_way(reader := self.readers[view[0] >> 6]) and (same := reader.take_next(view)):
            view = view[same:]
        if view:
            self._sort(bytes(view))

    @staticmethod
    def _is_on_its_way(reader):
        return reader and reader.is_whole and reader.position is not None

    def _sort(self, data):
        for mark, reader in enumerate(self.readers):
            own = data.translate(None, self._others[mark])
            if not own:
                continue
            if reader is None:
                raise Misplaced(f"{len(own)} bytes of mark {mark}, which nobody sends")
            reader.take(own)
