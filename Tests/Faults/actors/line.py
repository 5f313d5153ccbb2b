"""A device at work: what it sends and receives, whatever kind of device it is."""

import asyncio
import contextlib

from actors.devices import PIECE
from actors.waits import until


class Line:
    """A device at work: it sends a pattern at a set pace, and sorts what it receives by sender.

    `pace` is how it sends and receives: "normal", "flood", "dribble", "stall" (neither), "silent" (only receives).
    """

    def __init__(self, device, down, ups, random):
        self.device, self.random = device, random
        self.down = down  # the Pattern it sends
        self.said = 0
        self.sorter = ups
        self.pace = "silent"
        self.fault = None
        self._task = None

    def start(self):
        self._task = asyncio.create_task(self._work())

    async def _work(self):
        try:
            while True:
                moved = self._turn() if self.device.is_there else 0
                # Polled: for a pty, epoll could not tell readable from hung up. Polling is simpler, and fast enough.
                await asyncio.sleep(0 if moved and self.pace == "flood" else 0.002)
        except asyncio.CancelledError:
            raise
        except BaseException as fault:  # reported by the next check
            self.fault = fault

    def _turn(self):
        if self.pace == "stall":
            return 0
        moved = 0
        if self.pace == "dribble":
            if self.random.random() < 0.3:
                moved += self.say(self.random.randint(1, 9))
        elif self.pace in ("normal", "flood"):
            moved += self.say(PIECE if self.pace == "flood" else self.random.randint(1, 8192))
        for _ in range(8):
            data = self.device.read()
            if not data:
                break
            self.sorter.take(data)
            moved += len(data)
        return moved

    def say(self, count):
        taken = self.device.write(self.down.piece(self.said, count))
        self.said += taken
        return taken

    def check(self):
        if self.fault:
            raise self.fault

    async def quiet(self, within=30):
        """Stops sending, and waits until the gateway has read everything sent."""
        self.pace = "silent"
        await until(lambda: self.fault or self.device.unread() == 0, within, "the gateway reading all the device said")
        self.check()

    async def stop(self):
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
