"""Clients that hold up others: they are ended, or lose the oldest of what is kept for them, to the byte."""

import asyncio

from actors.devices import TCPDevice
from actors.waits import until
from rooms.local import UnixDoor
from rooms.shared_line import SharedLineRoom


class SlowRoom(SharedLineRoom):
    """Who holds up others is ended. On a busy machine, where one process plays everybody, that may hit any of them."""

    clients = {"max": 4, "slow": "disconnect"}
    left = ("client-lost", "client-left")

    def make_device(self):
        return TCPDevice()

    async def join_stuck(self):
        return await self.connect(self.route, receive_buffer=4096)

    def is_slow(self, talker):
        return talker.client.key in self.gateway.ended

    async def fault_client_never_reads(self):
        talkers = await self.talkers(2)
        stuck = await self.join_stuck()
        self.line.pace = "flood"
        await self.gone(stuck, "too-slow")
        stuck.close()
        await self.some_time()
        for talker in talkers:
            talker.is_sending = False
        await asyncio.sleep(0.1)
        await self.line.quiet()
        await until(
            lambda: all(self.is_slow(talker) or talker.has_heard_all for talker in talkers),
            60, "everybody hearing all, or being ended", every=0.01,
        )
        slow = [talker for talker in talkers if self.is_slow(talker)]
        for talker in slow:
            await self.gone(talker.client, "too-slow")
            await talker.leave("close")
        await self.account([talker for talker in talkers if talker not in slow])


class UnixSlowRoom(UnixDoor, SlowRoom):
    """The same through a unix listener."""

    async def join_stuck(self):
        return await self.join()


class DropRoom(SharedLineRoom):
    """Who is behind loses the oldest bytes, exactly as many as counted; the others lose none and wait for nobody."""

    clients = {"max": 4, "slow": "drop-oldest"}

    def make_device(self):
        return TCPDevice()

    async def talk(self, mark, **options):
        """Where the device's word stood when he came is known, for it says nothing meanwhile."""
        talker = await super().talk(mark, **options)
        talker.heard.may_skip = True  # on a busy machine it may happen to any of them
        return talker

    async def part(self, talker, dropped=0, words=None):
        """What he did not hear of all that was said in his time was dropped, and is told."""
        await talker.leave()
        received = talker.client.received
        missed = self.line.said - talker.began - received
        await self.gone(talker.client, "client-lost", up=talker.said, down=received, dropped=missed)
        self.moved += talker.said + received
        return missed

    async def fault_client_never_reads(self):
        talkers = await self.talkers(2)
        victim = await self.talk(3, receive_buffer=4096)
        victim.is_sending = False
        self.line.pace = "normal"
        await self.some_time(0.05, 0.1)
        victim.reads = False
        self.line.pace = "flood"
        number = self.gateway.numbers[victim.client.key]
        await until(lambda: number in self.gateway.dropping, 30, "drops being told")
        await self.some_time(0, 0.2)
        victim.reads = True
        await self.some_time(0.1, 0.3)
        for talker in talkers:
            await talker.pause()
        await self.hear_all([*talkers, victim])
        assert await self.part(victim) > 0, "nothing was dropped"
        for talker in talkers:
            await self.part(talker)

    async def fault_client_reads_in_jerks(self):
        async def during(talkers):
            for _ in range(5):
                talkers[0].reads = False
                await asyncio.sleep(self.random.random() * 0.1)
                talkers[0].reads = True
                await asyncio.sleep(self.random.random() * 0.05)

        await self.traffic(during, pace="flood")
