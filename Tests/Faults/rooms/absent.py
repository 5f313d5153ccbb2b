"""The device is away, and what clients send meanwhile is not kept."""

from actors.devices import PtyDevice
from actors.waits import until
from rooms.shared_line import SharedLineRoom


class DiscardRoom(SharedLineRoom):
    """What is sent while the device is away is dropped, and counted to the byte."""

    device_policy = SharedLineRoom.device_policy | {"absent": "discard"}

    def make_device(self):
        return PtyDevice(f"{self.folder}/{self.route}")

    async def fault_device_is_away(self):
        writers = await self.writers(3)
        self.line.pace = "normal"
        await self.some_time()
        for writer in writers:
            await writer.pause()
        await self.hear_all(writers)
        lost = self.gateway.links[self.route, "link lost"]
        self.device.vanish()
        await until(lambda: self.gateway.links[self.route, "link lost"] > lost, 10, "the link's loss")
        for writer in writers:
            writer.arrives.may_skip = True
            writer.is_sending = True
        await self.some_time(0.1, 0.4)
        opened = self.gateway.links[self.route, "link open"]
        self.device.appear(elsewhere=self.random.random() < 0.5)
        await until(lambda: self.gateway.links[self.route, "link open"] > opened, 20, "the link's return")
        await self.some_time()
        await self.settle(writers, declared=True)


class CloseRoom(SharedLineRoom):
    """When the device goes away, its clients are sent away with the reason; a client that connects meanwhile learns
    that the device can't be opened."""

    device_policy = SharedLineRoom.device_policy | {"absent": "close", "open": "on-demand"}

    def make_device(self):
        return PtyDevice(f"{self.folder}/{self.route}")

    async def fault_device_is_away(self):
        writers = await self.writers(3)
        self.line.pace = "normal"
        await self.some_time()
        for writer in writers:
            await writer.pause()
        await self.hear_all(writers)
        self.device.vanish()
        for writer in writers:
            await self.part(writer, words=("device-lost",))
        early = await self.connect(self.route)
        await early.words()
        await self.gone(early, "open-failed", up=0, down=0)
        early.close()
        self.device.appear()
        await self.traffic_of_two()

    async def traffic_of_two(self):
        async def nothing(_):
            pass

        await self.traffic(nothing, count=2)
