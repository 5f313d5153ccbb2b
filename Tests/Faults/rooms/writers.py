"""One client may write, and the writer role moves between clients. What others send is dropped and counted; all receive
everything."""

import asyncio

from actors.devices import TCPDevice
from actors.waits import until
from rooms.shared_line import SharedLineRoom


class NewestWriterRoom(SharedLineRoom):
    """The newest client has the writer role."""

    takeover = "newest"

    @property
    def clients(self):
        return {"max": 4, "writers": "one", "takeover": self.takeover}

    def make_device(self):
        return TCPDevice()

    def listeners(self):
        return ["tcp://127.0.0.1:0", "tcp://127.0.0.2:0?role=monitor"]

    async def join(self, listener=""):
        return await self.connect(self.route + listener)

    async def start_writer(self, mark, **options):
        """Some of its pattern may be missing, which its session's count must report."""
        writer = await super().start_writer(mark, **options)
        writer.arrives.may_skip = True
        return writer

    async def count_out(self, writer):
        """All that it sent has arrived or was dropped."""
        await writer.rest()
        await writer.client.all_is_there()
        await writer.leave()
        counts = await self.gone(writer.client, "client-lost", down=writer.client.received)
        await until(lambda: self.up_has_come(writer, counts["up"]), 20, "what the session put up arriving")
        assert counts["up"] + counts["dropped"] == writer.said, f"{counts} of {writer.said}"
        # A changed byte is found here: what follows it stands too far on.
        assert writer.arrives.position <= writer.start + writer.said, "it did not send what arrived"
        self.moved += writer.client.received + counts["up"]
        return counts

    async def is_heard(self, writer):
        """Waits until bytes of this writer arrive: it has the writer role."""
        await until(lambda: writer.arrives.received + writer.arrives.undecided > 0, 60, "the writer role being taken")
        self.line.check()

    def up_has_come(self, writer, up):
        """Whether `up` bytes have arrived; a few more may be too short to identify their position."""
        self.line.check()
        writer.check()
        arrived = writer.arrives.received + writer.arrives.undecided
        assert arrived <= up, f"{arrived} bytes of mark {writer.mark} arrived, {up} were put up"
        return arrived == up

    async def fault_writer_role_is_taken(self):
        first = await self.start_writer(0)
        await self.some_time()
        second = await self.start_writer(1)
        await self.some_time()
        await first.rest()
        await second.pause()
        await self.hear_all([first, second])
        assert (await self.count_out(second))["dropped"] == 0
        await self.count_out(first)

    async def fault_monitor_writes(self):
        writer = await self.start_writer(0)
        monitor = await self.start_writer(1, listener="@2")
        self.line.pace = "normal"
        await self.some_time()
        await monitor.rest()
        await writer.pause()
        await asyncio.sleep(0.1)
        await self.hear_all([writer, monitor])
        assert (await self.count_out(monitor))["up"] == 0
        assert (await self.count_out(writer))["dropped"] == 0

    async def fault_writers_come_and_go(self):
        """A client that leaves passes the writer role to another one."""
        present = {}
        for _ in range(10):
            mark = self.random.randrange(4)
            if mark in present:
                await self.count_out(present.pop(mark))
            else:
                present[mark] = await self.start_writer(mark)
            await self.some_time(0, 0.1)
        if not present:  # the device's output needs a reader
            present[0] = await self.start_writer(0)
        self.line.pace = "normal"
        await self.some_time(0.05, 0.1)
        for writer in present.values():
            await writer.rest()
        await asyncio.sleep(0.05)
        await self.hear_all(present.values())
        for writer in present.values():
            await self.count_out(writer)


class FirstWriterRoom(NewestWriterRoom):
    """The client with the writer role keeps it until it leaves."""

    takeover = "refuse"

    async def fault_writer_role_is_taken(self):
        first = await self.start_writer(0)
        await self.some_time()
        second = await self.start_writer(1)
        await self.some_time(0.05, 0.2)
        assert (await self.count_out(first))["dropped"] == 0
        # On a busy machine a pause proves nothing: `second` may not have sent anything in it.
        await self.is_heard(second)
        assert (await self.count_out(second))["up"] > 0, "the writer role was lost"


class IdleWriterRoom(NewestWriterRoom):
    """A client that sends gets the role once its holder has sent nothing for that long."""

    takeover = "idle:100ms"

    async def fault_writer_role_is_taken(self):
        first = await self.start_writer(0)
        await self.some_time(0.05, 0.1)
        second = await self.start_writer(1)
        await self.some_time(0.05, 0.1)
        await first.rest()
        # On a busy machine the pause alone proves nothing: `second` may not have sent anything in it.
        await self.is_heard(second)
        first.is_sending = True
        await self.some_time(0.05, 0.1)
        assert (await self.count_out(second))["up"] > 0, "the writer role was not taken"
        await self.count_out(first)
