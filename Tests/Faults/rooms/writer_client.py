"""A client of a shared line at work."""

import asyncio
import contextlib

from actors.waits import cancelled, until


class WriterClient:
    """A client of a line that sends its mark's pattern and checks what it receives."""

    def __init__(self, room, client, mark):
        self.room, self.client, self.mark = room, client, mark
        self.start = room.random.randrange(1 << 23) * room.unit
        self.heard = room.reader()
        self.began = room.line.said  # bytes that the device had sent by then
        self.arrives = room.line.sorter.expect(mark, self.start)
        self.is_sending, self._is_resting = True, False
        self.reads = True
        self.is_greedy = False  # sends as much as it can without a pause
        self._tasks = [asyncio.create_task(self._hear()), asyncio.create_task(self._say())]
        self.is_over = False

    @property
    def said(self):
        return self.client.sent

    def next_piece(self, most=16384, least=1):
        return self.arrives.pattern.piece(self.start + self.said, self.room.random.randint(least, most))

    async def _say(self):
        with contextlib.suppress(ConnectionResetError, BrokenPipeError, OSError):
            while not self.is_over:
                if self.is_sending:
                    self._is_resting = False
                    await self.send_piece()
                else:
                    self._is_resting = True
                if not self.is_greedy:
                    await asyncio.sleep(self.room.random.random() * 0.01)

    async def send_piece(self):
        await self.client.send(self.next_piece(1 << 18) if self.is_greedy else self.next_piece())

    async def _hear(self):
        while True:
            while not self.reads:
                await asyncio.sleep(0.01)
            data = await self.client.receive(within=300)
            if not data:
                return
            self.heard.take(data)

    @property
    def has_heard_all(self):
        """Whether it has received all that the device has sent."""
        said = self.room.line.said
        return self.heard.is_at(said) and (self.heard.position is not None or said == self.began)

    @property
    def has_heard_the_end(self):
        return self._tasks[0].done()

    def check(self):
        entry = self.room.gateway.ended.get(self.client.key)
        assert not entry, f"a session that was to go on has ended: {entry}"
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception():
                raise task.exception()

    async def rest(self):
        """Stops sending after the current piece."""
        self.is_sending = False
        await until(lambda: self._is_resting or self._tasks[1].done(), 60, f"mark {self.mark} being at rest")
        self.check()

    async def pause(self):
        """Stops sending, and waits until the device has all of it."""
        await self.rest()

        def arrived():
            self.room.line.check()
            self.check()
            return self.arrives.received + self.arrives.gaps >= self.said and self.arrives.is_whole

        await until(arrived, 60, f"all of mark {self.mark} arriving", every=0.01)
        assert self.arrives.received + self.arrives.gaps == self.said, "more arrived than was sent"

    async def leave(self, how="reset"):
        self.is_over = True
        for task in self._tasks:
            await cancelled(task)
        getattr(self.client, how)()
