"""Routes with one link for all clients, and what must hold there whatever happens: nothing is lost, doubled or swapped."""

import asyncio

from actors.line import Line
from actors.waits import until
from pattern import WINDOW, Pattern, Reader, Sorter
from rooms.room import Room
from rooms.talker import Talker


class SharedLineRoom(Room):
    """One device and several talkers, each with a mark of his own."""

    clients = {"max": 4, "slow": "block"}
    device_policy = {"open": "always", "flush": "none", "absent": "hold", "retry": "50ms..200ms"}
    more = {}  # other keys of the route
    unit = 1  # bytes that belong together
    talker = Talker
    left = ("client-lost",)  # how those end who leave by a reset

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

    async def talk(self, mark, **options):
        """A client at work. He has a place already, so all that the device says from now on is for him, too."""
        client = await self.join(**options)
        await until(lambda: client.key in self.gateway.numbers or client.key in self.gateway.ended, 20, "a place for him")
        return self.talker(self, client, mark)

    async def start(self):
        self.line.start()

    async def stop(self):
        await self.line.stop()

    async def talkers(self, count):
        return [await self.talk(mark) for mark in range(count)]

    async def some_time(self, least=0.1, most=0.5):
        await asyncio.sleep(self.random.uniform(least, most))
        self.line.check()

    async def hear_all(self, talkers):
        """Waits until the device has said its word, long enough to tell its place, and every talker has heard it."""
        enough = max((talker.began for talker in talkers), default=0) + WINDOW
        while self.line.said < enough:
            self.line.say(enough - self.line.said)
            await asyncio.sleep(0.001)
        await self.line.quiet()

        def heard():
            for talker in talkers:
                talker.check()
            return all(talker.has_heard_all for talker in talkers)

        try:
            await until(heard, 60, "everybody hearing all the device said", every=0.01)
        except AssertionError as error:
            places = ", ".join(f"{t.client.name} at {t.heard.position} after {t.client.received} bytes" for t in talkers)
            status = await self.gateway.command("status", "--json", str(self.gateway.path))
            raise AssertionError(f"{error}: said {self.line.said}; {places}; {status[1]}") from None

    async def account(self, talkers):
        """Everybody stops, everything has arrived, and the sessions' own counts say the same."""
        for talker in talkers:
            await talker.pause()
        await self.hear_all(talkers)
        for talker in talkers:
            await self.part(talker)

    async def part(self, talker, dropped=0, words=None):
        """He has sent his last byte and heard all: he leaves, and his session's counts are what both ends know."""
        await talker.leave()
        arrives, received = talker.arrives, talker.client.received
        await self.gone(talker.client, *(words or self.left), up=talker.said - dropped, down=received, dropped=dropped)
        assert arrives.received + arrives.gaps == talker.said, f"{arrives.received} + {arrives.gaps} of {talker.said}"
        self.lost_by_fault += arrives.gaps - dropped
        self.moved += arrives.received + received

    async def has_gone(self, talker, *words):
        """He was in the middle of something: what his session put up arrives, and no more."""
        counts = await self.gone(talker.client, *words)
        if not talker.is_over:
            await talker.leave()
        await until(lambda: talker.arrives.received >= counts["up"], 20, "what a session put up arriving")
        assert talker.arrives.received == counts["up"], f"{talker.arrives.received} arrived, {counts['up']} were put up"

    async def traffic(self, during, count=3, pace="normal"):
        """Talkers in full traffic while `during(talkers)` does its fault."""
        talkers = await self.talkers(count)
        self.line.pace = pace
        await self.some_time()
        await during(talkers)
        self.line.pace = pace
        await self.some_time()
        await self.account(talkers)

    async def settle(self, talkers, declared=False):
        """As account, where some of what they sent may be missing: torn off, or `declared` as dropped. The next byte tells."""
        for talker in talkers:
            await talker.rest()
        await until(self.nothing_comes, 30, "the line being quiet", every=0.1)
        for talker in talkers:
            await talker.client.send(talker.next_piece(64, least=64))
        for talker in talkers:
            await until(
                lambda talker=talker: talker.arrives.position == talker.start + talker.said, 30, "the last bytes arriving"
            )
        await self.hear_all(talkers)
        for talker in talkers:
            await self.part(talker, talker.arrives.gaps if declared else 0)

    def nothing_comes(self):
        """True once nothing has come for a moment."""
        before, self._seen = self._seen, self.line.sorter.received
        self.line.check()
        return before == self._seen
