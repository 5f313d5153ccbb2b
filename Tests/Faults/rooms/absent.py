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
        talkers = await self.talkers(3)
        self.line.pace = "normal"
        await self.some_time()
        for talker in talkers:
            await talker.pause()
        await self.hear_all(talkers)
        lost = self.gateway.links[self.route, "link lost"]
        self.device.vanish()
        await until(lambda: self.gateway.links[self.route, "link lost"] > lost, 10, "the link's loss")
        for talker in talkers:
            talker.arrives.may_skip = True
            talker.is_sending = True
        await self.some_time(0.1, 0.4)
        opened = self.gateway.links[self.route, "link open"]
        self.device.appear(elsewhere=self.random.random() < 0.5)
        await until(lambda: self.gateway.links[self.route, "link open"] > opened, 20, "the link's return")
        await self.some_time()
        await self.settle(talkers, declared=True)


class CloseRoom(SharedLineRoom):
    """When the device goes, its clients go, and learn why; who comes meanwhile is told that it can't be opened."""

    device_policy = SharedLineRoom.device_policy | {"absent": "close", "open": "on-demand"}

    def make_device(self):
        return PtyDevice(f"{self.folder}/{self.route}")

    async def fault_device_is_away(self):
        talkers = await self.talkers(3)
        self.line.pace = "normal"
        await self.some_time()
        for talker in talkers:
            await talker.pause()
        await self.hear_all(talkers)
        self.device.vanish()
        for talker in talkers:
            await self.part(talker, words=("device-lost",))
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
