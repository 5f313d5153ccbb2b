"""Local listeners: a unix socket, and a port that programs open as if it were serial."""

import asyncio

from actors.clients import KilledClient, LocalClient, Terminal
from actors.devices import PtyDevice, TCPDevice
from actors.waits import until
from rooms.client_faults import ClientFaults
from rooms.device_faults import HangUps, Renamings
from rooms.shared_line import SharedLineRoom


class UnixSocketFile:
    """Clients of a unix socket, which has no reset: a client that closes with unread bytes ends as `client-lost`,
    otherwise as `client-left`."""

    left = ("client-lost", "client-left")

    @property
    def listener_path(self):
        return f"{self.folder}/{self.route}.listener"

    def listeners(self):
        return ["unix://" + self.listener_path, "tcp://127.0.0.1:0"]

    async def join(self, kind=LocalClient):
        return await kind.connect(self.gateway, self.route, self.listener_path)


class UnixRoom(UnixSocketFile, ClientFaults, SharedLineRoom):
    """A unix listener. One of the four is refused at the other listener, where its ending can be identified."""

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
    """A pty listener: one program after another, with a serial port as the endpoint that goes away and returns."""

    copies = 3
    left = ("client-left",)

    @property
    def listener_path(self):
        return f"{self.folder}/{self.route}.listener"

    def listeners(self):
        return "pty://" + self.listener_path

    def make_device(self):
        return PtyDevice(f"{self.folder}/{self.route}")

    async def join(self):
        return await Terminal.open(self.gateway, self.route, self.listener_path)

    async def writers(self, count):
        return await super().writers(1)

    async def fault_programs_one_after_the_other(self):
        async def nothing(_):
            await self.some_time(0, 0.05)

        for _ in range(3):
            await self.traffic(nothing)

    async def fault_program_writes_and_closes(self):
        """All that it wrote is delivered, whichever program opens the port next."""
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
        writers = await self.writers(1)
        self.line.pace = "normal"
        await self.some_time()
        await writers[0].rest()
        await writers[0].leave("hand_over")
        await self.some_time(0, 0.1)
        writers[0].client.kill()
        await self.gone(writers[0].client, *self.left, up=writers[0].said)
        await until(lambda: writers[0].arrives.received == writers[0].said, 20, "all that the killed one wrote arriving")
        self.moved += writers[0].said
        self.line.pace = "silent"
        await self.account(await self.writers(1))  # the next program reads what is left

    async def fault_program_stops_reading(self):
        async def during(writers):
            writers[0].reads = False
            self.line.pace = "flood"
            await self.some_time(0.2, 0.6)
            writers[0].reads = True

        await self.traffic(during)

    async def fault_program_opens_while_the_device_is_away(self):
        lost = self.gateway.links[self.route, "link lost"]
        self.device.vanish()
        await until(lambda: self.gateway.links[self.route, "link lost"] > lost, 10, "the link's loss")
        writers = await self.writers(1)
        await self.some_time(0.1, 0.3)
        self.device.appear()
        self.line.pace = "normal"
        await self.some_time()
        await self.account(writers)

    async def fault_program_is_kicked(self):
        """The kicked program is hung up on; the next program that opens the port has the full line."""
        writer = await self.start_writer(0)
        await self.some_time()
        await self.gateway.kick(self.route, writer.client)
        await until(lambda: writer.has_heard_the_end, 20, "the hang-up")
        await self.has_gone(writer, "kicked")
        await self.fault_program_writes_and_closes()
