"""Clients that hold up others: they are disconnected, or lose the oldest of their pending output, to the byte."""

import asyncio

from actors.devices import TCPDevice
from actors.waits import until
from rooms.local import UnixSocketFile
from rooms.shared_line import SharedLineRoom


class SlowRoom(SharedLineRoom):
    """A client that holds up others is disconnected. On a busy machine, where one process plays all roles, that may
    happen to any of them."""

    clients = {"max": 4, "slow": "disconnect"}
    left = ("client-lost", "client-left")

    def make_device(self):
        return TCPDevice()

    async def join_stuck(self):
        return await self.connect(self.route, receive_buffer=4096)

    def is_slow(self, writer):
        return writer.client.key in self.gateway.ended

    async def fault_client_never_reads(self):
        writers = await self.writers(2)
        stuck = await self.join_stuck()
        self.line.pace = "flood"
        await self.gone(stuck, "too-slow")
        stuck.close()
        await self.some_time()
        for writer in writers:
            writer.is_sending = False
        await asyncio.sleep(0.1)
        await self.line.quiet()
        await until(
            lambda: all(self.is_slow(writer) or writer.has_heard_all for writer in writers),
            60, "everybody hearing all, or being ended", every=0.01,
        )
        slow = [writer for writer in writers if self.is_slow(writer)]
        for writer in slow:
            await self.gone(writer.client, "too-slow")
            await writer.leave("close")
        await self.account([writer for writer in writers if writer not in slow])


class UnixSlowRoom(UnixSocketFile, SlowRoom):
    """The same through a unix listener."""

    async def join_stuck(self):
        return await self.join()


class DropRoom(SharedLineRoom):
    """A client that lags loses the oldest bytes, exactly as many as counted; the others lose none and do not wait."""

    clients = {"max": 4, "slow": "drop-oldest"}

    def make_device(self):
        return TCPDevice()

    async def start_writer(self, mark, **options):
        """The device's position at the moment the client joined is known, because the device sends nothing
        meanwhile."""
        writer = await super().start_writer(mark, **options)
        writer.heard.may_skip = True  # on a busy machine it may happen to any of them
        return writer

    async def part(self, writer, dropped=0, words=None):
        """What it did not receive of all that was sent during its session was dropped and reported."""
        await writer.leave()
        received = writer.client.received
        missed = self.line.said - writer.began - received
        await self.gone(writer.client, "client-lost", up=writer.said, down=received, dropped=missed)
        self.moved += writer.said + received
        return missed

    async def fault_client_never_reads(self):
        writers = await self.writers(2)
        victim = await self.start_writer(3, receive_buffer=4096)
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
        for writer in writers:
            await writer.pause()
        await self.hear_all([*writers, victim])
        assert await self.part(victim) > 0, "nothing was dropped"
        for writer in writers:
            await self.part(writer)

    async def fault_client_reads_in_jerks(self):
        async def during(writers):
            for _ in range(5):
                writers[0].reads = False
                await asyncio.sleep(self.random.random() * 0.1)
                writers[0].reads = True
                await asyncio.sleep(self.random.random() * 0.05)

        await self.traffic(during, pace="flood")
