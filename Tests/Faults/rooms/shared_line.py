"""Routes with one link for all clients, and what must hold there in every case: no byte is lost, doubled or swapped."""

import asyncio

from actors.line import Line
from actors.waits import until
from pattern import WINDOW, Pattern, Reader, Sorter
from rooms.room import Room
from rooms.writer_client import WriterClient


class SharedLineRoom(Room):
    """One device and several writers, each with its own mark."""

    clients = {"max": 4, "slow": "block"}
    device_policy = {"open": "always", "flush": "none", "absent": "hold", "retry": "50ms..200ms"}
    more = {}  # other keys of the route
    unit = 1  # bytes that belong together
    client_type = WriterClient
    left = ("client-lost",)  # ending words of a client that resets

    def make_device(self):
        raise NotImplementedError

    def __init__(self, *args):
        super().__init__(*args)
        self.device = self.make_device()
        seed = f"{self.route} {self.random.random()}"
        self.line = Line(
            self.device, Pattern(seed + " down"), Sorter([Pattern(seed, mark) for mark in range(4)]), self.random
        )
        self._seen = None

    def listeners(self):
        return "tcp://127.0.0.1:0"

    async def prepare(self):
        self.device.appear()

    def routes(self):
        return {
            self.route: {
                "listen": self.listeners(),
                "endpoint": self.device.url,
                "link": "shared",
                "clients": dict(self.clients),
                "device": dict(self.device_policy),
                **self.more,
            }
        }

    def reader(self):
        return Reader(self.line.down)

    async def join(self, **options):
        """A client of this line."""
        return await self.connect(self.route, **options)

    async def start_writer(self, mark, **options):
        """A client at work. It has its slot already, so it receives everything that the device sends from now on."""
        client = await self.join(**options)
        await until(
            lambda: client.key in self.gateway.numbers or client.key in self.gateway.ended, 20, "a slot for the client"
        )
        return self.client_type(self, client, mark)

    async def start(self):
        self.line.start()

    async def stop(self):
        await self.line.stop()

    async def writers(self, count):
        return [await self.start_writer(mark) for mark in range(count)]

    async def some_time(self, least=0.1, most=0.5):
        await asyncio.sleep(self.random.uniform(least, most))
        self.line.check()

    async def hear_all(self, writers):
        """Waits until the device has sent enough to identify its position, and every writer has received that."""
        enough = max((writer.began for writer in writers), default=0) + WINDOW
        while self.line.said < enough:
            self.line.say(enough - self.line.said)
            await asyncio.sleep(0.001)
        await self.line.quiet()

        def heard():
            for writer in writers:
                writer.check()
            return all(writer.has_heard_all for writer in writers)

        try:
            await until(heard, 60, "everybody hearing all the device said", every=0.01)
        except AssertionError as error:
            places = ", ".join(f"{t.client.name} at {t.heard.position} after {t.client.received} bytes" for t in writers)
            status = await self.gateway.command("status", "--json", str(self.gateway.path))
            raise AssertionError(f"{error}: said {self.line.said}; {places}; {status[1]}") from None

    async def account(self, writers):
        """All stop, everything arrives, and the sessions' own counts agree."""
        for writer in writers:
            await writer.pause()
        await self.hear_all(writers)
        for writer in writers:
            await self.part(writer)

    async def part(self, writer, dropped=0, words=None):
        """The writer has sent its last byte and received everything. It leaves, and its session's counts must match
        both ends."""
        await writer.leave()
        arrives, received = writer.arrives, writer.client.received
        await self.gone(writer.client, *(words or self.left), up=writer.said - dropped, down=received, dropped=dropped)
        assert arrives.received + arrives.gaps == writer.said, f"{arrives.received} + {arrives.gaps} of {writer.said}"
        self.lost_by_fault += arrives.gaps - dropped
        self.moved += arrives.received + received

    async def has_gone(self, writer, *words):
        """The writer was interrupted: what its session counted as up arrives, and no more."""
        counts = await self.gone(writer.client, *words)
        if not writer.is_over:
            await writer.leave()
        await until(lambda: writer.arrives.received >= counts["up"], 20, "what a session put up arriving")
        assert writer.arrives.received == counts["up"], f"{writer.arrives.received} arrived, {counts['up']} were put up"

    async def traffic(self, during, count=3, pace="normal"):
        """Writers in full traffic while `during(writers)` does its fault."""
        writers = await self.writers(count)
        self.line.pace = pace
        await self.some_time()
        await during(writers)
        self.line.pace = pace
        await self.some_time()
        await self.account(writers)

    async def settle(self, writers, declared=False):
        """As `account`, but some of what they sent may be missing: lost with a torn cable, or `declared` as dropped.
        The next byte shows how much."""
        for writer in writers:
            await writer.rest()
        await until(self.nothing_comes, 30, "the line being quiet", every=0.1)
        for writer in writers:
            await writer.client.send(writer.next_piece(64, least=64))
        for writer in writers:
            await until(
                lambda writer=writer: writer.arrives.position == writer.start + writer.said, 30, "the last bytes arriving"
            )
        await self.hear_all(writers)
        for writer in writers:
            await self.part(writer, writer.arrives.gaps if declared else 0)

    def nothing_comes(self):
        """True if nothing has arrived since the last call."""
        before, self._seen = self._seen, self.line.sorter.received
        self.line.check()
        return before == self._seen
