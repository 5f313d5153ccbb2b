"""One may write; the pen goes from hand to hand. What others send is dropped and counted; everybody hears everything."""

import asyncio

from actors.devices import TCPDevice
from actors.waits import until
from rooms.shared_line import SharedLineRoom


class PenRoom(SharedLineRoom):
    """Who comes last has the pen."""

    takeover = "newest"

    @property
    def clients(self):
        return {"max": 4, "writers": "one", "takeover": self.takeover}

    def make_device(self):
        return TCPDevice()

    def listeners(self):
        return ["tcp://127.0.0.1:0", "tcp://127.0.0.2:0?role=monitor"]

    async def join(self, door=""):
        return await self.connect(self.route + door)

    async def writer(self, mark, **options):
        """Of his pattern some may be missing, which his session's count must tell."""
        talker = await self.talk(mark, **options)
        talker.arrives.may_skip = True
        return talker

    async def count_out(self, talker):
        """All that he sent has arrived or is dropped."""
        await talker.rest()
        await talker.client.all_is_there()
        await talker.leave()
        counts = await self.gone(talker.client, "client-lost", down=talker.client.received)
        await until(lambda: self.up_has_come(talker, counts["up"]), 20, "what the session put up arriving")
        assert counts["up"] + counts["dropped"] == talker.said, f"{counts} of {talker.said}"
        self.moved += talker.client.received + counts["up"]
        return counts

    def up_has_come(self, talker, up):
        """What has arrived is too short to tell its place where it is but a few bytes."""
        self.line.check()
        talker.check()
        arrived = talker.arrives.received + talker.arrives.undecided
        assert arrived <= up, f"{arrived} bytes of mark {talker.mark} arrived, {up} were put up"
        return arrived == up

    async def fault_pen_is_taken(self):
        first = await self.writer(0)
        await self.some_time()
        second = await self.writer(1)
        await self.some_time()
        await first.rest()
        await second.pause()
        await self.hear_all([first, second])
        assert (await self.count_out(second))["dropped"] == 0
        await self.count_out(first)

    async def fault_monitor_writes(self):
        writer = await self.writer(0)
        monitor = await self.writer(1, door="@2")
        self.line.pace = "normal"
        await self.some_time()
        await monitor.rest()
        await writer.pause()
        await asyncio.sleep(0.1)
        await self.hear_all([writer, monitor])
        assert (await self.count_out(monitor))["up"] == 0
        assert (await self.count_out(writer))["dropped"] == 0

    async def fault_writers_come_and_go(self):
        """Who leaves leaves the pen to somebody who is there."""
        present = {}
        for _ in range(10):
            mark = self.random.randrange(4)
            if mark in present:
                await self.count_out(present.pop(mark))
            else:
                present[mark] = await self.writer(mark)
            await self.some_time(0, 0.1)
        if not present:  # what the device says needs somebody to hear it
            present[0] = await self.writer(0)
        self.line.pace = "normal"
        await self.some_time(0.05, 0.1)
        for talker in present.values():
            await talker.rest()
        await asyncio.sleep(0.05)
        await self.hear_all(present.values())
        for talker in present.values():
            await self.count_out(talker)


class FirstPenRoom(PenRoom):
    """Who has the pen keeps it until he leaves."""

    takeover = "refuse"

    async def fault_pen_is_taken(self):
        first = await self.writer(0)
        await self.some_time()
        second = await self.writer(1)
        await self.some_time(0.05, 0.2)
        assert (await self.count_out(first))["dropped"] == 0
        await self.some_time(0.05, 0.1)
        assert (await self.count_out(second))["up"] > 0, "the pen was lost"


class IdlePenRoom(PenRoom):
    """Whoever sends has it once its holder has sent nothing for so long."""

    takeover = "idle:100ms"

    async def fault_pen_is_taken(self):
        first = await self.writer(0)
        await self.some_time(0.05, 0.1)
        second = await self.writer(1)
        await self.some_time(0.05, 0.1)
        await first.rest()
        # On a busy machine the pause alone proves nothing: second may not have sent in it.
        await until(lambda: second.arrives.received + second.arrives.undecided > 0, 20, "the pen being taken")
        first.is_sending = True
        await self.some_time(0.05, 0.1)
        assert (await self.count_out(second))["up"] > 0, "the pen was not taken"
        await self.count_out(first)
