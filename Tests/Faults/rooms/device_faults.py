"""What devices do. Parts of rooms with a shared line."""

from actors.waits import until


class PaceFaults:
    """A device is slow, fast, or silent for a while."""

    async def fault_device_dribbles(self):
        async def during(_):
            self.line.pace = "dribble"
            await self.some_time(0.3, 0.8)

        await self.traffic(during)

    async def fault_device_floods(self):
        async def during(_):
            self.line.pace = "flood"
            await self.some_time(0.1, 0.4)

        await self.traffic(during)

    async def fault_device_stalls(self):
        async def during(_):
            self.line.pace = "stall"
            await self.some_time(0.3, 1.0)

        await self.traffic(during)


class HangUps:
    """It goes away and returns."""

    async def hang_up(self, writers, comes_back):
        """No bytes are on their way when it goes away, so none may be missing. What is sent meanwhile is kept."""
        for writer in writers:
            await writer.pause()
        await self.hear_all(writers)
        lost = self.gateway.links[self.route, "link lost"]
        self.device.vanish()
        await until(lambda: self.gateway.links[self.route, "link lost"] > lost, 10, "the link's loss")
        for writer in writers:
            await writer.client.send(writer.next_piece(20000))
        await self.some_time(0, 0.3)
        await comes_back()
        for writer in writers:
            writer.is_sending = True

    async def fault_device_hangs_up_between_bytes(self):
        async def comes_back():
            self.device.appear()

        await self.traffic(lambda writers: self.hang_up(writers, comes_back))

    async def fault_cable_torn_in_mid_traffic(self):
        """What the kernel held for the device is lost with it: exactly that may be missing, and no more."""
        writers = await self.writers(3)
        self.line.pace = "normal"
        await self.some_time()
        await self.hear_all(writers)  # the other direction must lose nothing
        for writer in writers:
            writer.arrives.may_skip = True
        self.device.tear()
        await self.some_time(0, 0.2)
        self.device.appear()
        await self.some_time(0.2, 0.5)
        await self.settle(writers)


class Renamings:
    """A serial port may have another name afterwards."""

    async def fault_device_has_another_name(self):
        async def comes_back():
            self.device.appear(elsewhere=True)

        await self.traffic(lambda writers: self.hang_up(writers, comes_back))


class Refusals:
    """A server may be away for longer, and refuse."""

    async def fault_device_refuses(self):
        waited = self.gateway.links[self.route, "link waiting"]

        async def comes_back():
            await until(lambda: self.gateway.links[self.route, "link waiting"] > waited, 10, "a refusal")
            self.device.appear()

        await self.traffic(lambda writers: self.hang_up(writers, comes_back))
