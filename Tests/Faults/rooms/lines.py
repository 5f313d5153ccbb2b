"""Shared links to every kind of device: a serial port, a server, a program with a terminal."""

import asyncio
import os

from actors.devices import ProgramDevice, PtyDevice, TCPDevice, UnixDevice
from actors.waits import until
from rooms.client_faults import ClientFaults
from rooms.device_faults import HangUps, PaceFaults, Refusals, Renamings
from rooms.shared_line import SharedLineRoom


class LineRoom(PaceFaults, HangUps, Renamings, ClientFaults, SharedLineRoom):
    """A serial port."""

    copies = 3

    def make_device(self):
        return PtyDevice(f"{self.folder}/{self.route}")


class ServerRoom(PaceFaults, HangUps, Refusals, ClientFaults, SharedLineRoom):
    """A server behind the shared link, which may refuse, and whose connection may be reset."""

    copies = 3

    def make_device(self):
        return TCPDevice()


class SocketRoom(PaceFaults, HangUps, Refusals, SharedLineRoom):
    """A server on a unix socket, which removes its file when it goes away."""

    copies = 2

    def make_device(self):
        return UnixDevice(f"{self.folder}/{self.route}.sock")


class ModemRoom(PaceFaults, SharedLineRoom):
    """A `pty` endpoint: the gateway makes the port, programs open and close it. The next program reads what the last
    one left unread."""

    copies = 2

    def make_device(self):
        return ProgramDevice(f"{self.folder}/{self.route}")

    async def prepare(self):
        pass

    async def start(self):
        await until(lambda: os.path.exists(self.device.path), 10, "the port of a pty endpoint")
        self.device.appear()
        await super().start()

    async def fault_program_closes_and_another_opens(self):
        async def during(_):
            for _ in range(3):
                self.device.vanish()
                await self.some_time(0, 0.2)
                self.device.appear()
                await self.some_time(0, 0.2)

        await self.traffic(during)

    async def fault_program_is_killed(self):
        async def during(_):
            self.device.hand_over()
            await self.some_time(0, 0.2)
            self.device.kill()
            await asyncio.sleep(self.random.random() * 0.2)
            self.device.appear()

        await self.traffic(during)
