"""The doors of this machine: a unix socket, and a port that programs open as if it were serial."""

import asyncio

from actors.clients import KilledClient, LocalClient, Terminal
from actors.devices import PtyDevice, TCPDevice
from actors.waits import until
from rooms.client_faults import ClientFaults
from rooms.device_faults import HangUps, Renamings
from rooms.shared_line import SharedLineRoom


class UnixDoor:
    """Clients come through a unix socket. There are no resets: who goes with something unread is lost, else he has left."""

    left = ("client-lost", "client-left")

    @property
    def door(self):
        return f"{self.folder}/{self.route}.door"

    def listeners(self):
        return ["unix://" + self.door, "tcp://127.0.0.1:0"]

    async def join(self, kind=LocalClient):
        return await kind.connect(self.gateway, self.route, self.door)


class UnixRoom(UnixDoor, ClientFaults, SharedLineRoom):
    """A unix listener. One of the four is turned away through the other door, where his ending can be told."""

    copies = 3

    def make_device(self):
        return TCPDevice()

    async def fault_client_is_killed(self):
        async def during(_):
            client = await self.join(KilledClient)
            start = self.random.randrange(1 << 30)
            arrives = self.line.sorter.expect(3, start)
            size = self.random.randint(1, 60_000)
            sending = asyncio.create_task(client.send(arrives.pattern.piece(start, size)))
            while not sending.done():
                await client.receive(within=5)
            await sending
            client.hand_over()
            await self.some_time(0, 0.2)
            client.kill()
            await self.gone(client, *self.left, up=size)
            await until(lambda: arrives.received == size, 20, "what the killed one sent arriving")
            self.moved += size

        await self.traffic(during)


class TerminalRoom(HangUps, Renamings, SharedLineRoom):
    """A pty listener: one program after another, and a serial port behind it that goes and comes meanwhile."""

    copies = 3
    left = ("client-left",)

    @property
    def door(self):
        return f"{self.folder}/{self.route}.door"

    def listeners(self):
        return "pty://" + self.door

    def make_device(self):
        return PtyDevice(f"{self.folder}/{self.route}")

    async def join(self):
        return await Terminal.open(self.gateway, self.route, self.door)

    async def talkers(self, count):
        return await super().talkers(1)

    async def fault_programs_one_after_the_other(self):
        async def nothing(_):
            await self.some_time(0, 0.05)

        for _ in range(3):
            await self.traffic(nothing)

    async def fault_program_writes_and_closes(self):
        """All that it wrote is delivered, whoever opens the port next."""
        for _ in range(3):
            program = await self.join()
            start = self.random.randrange(1 << 30)
            arrives = self.line.sorter.expect(0, start)
            size = self.random.randint(1, 30_000)
            await program.send(arrives.pattern.piece(start, size))
            program.close()
            await self.gone(program, *self.left, up=size)
            await until(lambda: arrives.received == size, 20, "all that the program wrote arriving")  # noqa: B023
            self.moved += size

    async def fault_program_is_killed(self):
        talkers = await self.talkers(1)
        self.line.pace = "normal"
        await self.some_time()
        await talkers[0].rest()
        await talkers[0].leave("hand_over")
        await self.some_time(0, 0.1)
        talkers[0].client.kill()
        await self.gone(talkers[0].client, *self.left, up=talkers[0].said)
        await until(lambda: talkers[0].arrives.received == talkers[0].said, 20, "all that the killed one wrote arriving")
        self.moved += talkers[0].said
        self.line.pace = "silent"
        await self.account(await self.talkers(1))  # who comes next hears what is left

    async def fault_program_stops_reading(self):
        async def during(talkers):
            talkers[0].reads = False
            self.line.pace = "flood"
            await self.some_time(0.2, 0.6)
            talkers[0].reads = True

        await self.traffic(during)

    async def fault_program_opens_while_the_device_is_away(self):
        lost = self.gateway.links[self.route, "link lost"]
        self.device.vanish()
        await until(lambda: self.gateway.links[self.route, "link lost"] > lost, 10, "the link's loss")
        talkers = await self.talkers(1)
        await self.some_time(0.1, 0.3)
        self.device.appear()
        self.line.pace = "normal"
        await self.some_time()
        await self.account(talkers)

    async def fault_program_is_kicked(self):
        """He is hung up on; who opens the port afterwards has all of it."""
        talker = await self.talk(0)
        await self.some_time()
        await self.gateway.kick(self.route, talker.client)
        await until(lambda: talker.has_heard_the_end, 20, "the hang-up")
        await self.has_gone(talker, "kicked")
        await self.fault_program_writes_and_closes()
