"""Programs as endpoints: each client has its own, or all share one that talks for one of our devices."""

import asyncio
import os
import signal
import urllib.parse

from actors.devices import UnixDevice
from actors.waits import cancelled, until
from pattern import LENGTH, Pattern, Reader
from rooms.client_faults import ClientFaults
from rooms.device_faults import PaceFaults
from rooms.room import Room
from rooms.shared_line import SharedLineRoom

MIB = 1 << 20


def program(path, *arguments):
    """The program's URL."""
    return f"exec:{path}" + "".join(
        f"{'&' if index else '?'}arg={urllib.parse.quote(argument, safe='/')}" for index, argument in enumerate(arguments)
    )


def children(parent, name, argument=""):
    """The processes with that name, `argument` among their arguments, and that parent."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                called, _, rest = stat.read().partition("(")[2].rpartition(")")
            with open(f"/proc/{entry}/cmdline") as line:
                is_meant = called == name and argument in line.read()
        except OSError:  # gone meanwhile
            continue
        state, its_parent = rest.split()[:2]
        if is_meant and int(its_parent) == parent and state != "Z":
            found.append(int(entry))
    return found


class ProgramRoom(Room):
    """`cat`, and others that end badly. One scenario at a time, so that a found program belongs to that scenario."""

    blocks = 6
    tail = 100_000

    def __init__(self, *args):
        super().__init__(*args)
        self.up = Pattern(f"program {self.random.random()}")

    async def prepare(self):
        self.file = f"{self.folder}/block"
        with open(self.file, "wb") as file:
            file.write(self.up.block)

    def routes(self):
        endpoints = {
            "cat": program("/bin/cat"),
            "flooding": program("/bin/cat", *[self.file] * self.blocks),
            "failing": program("/bin/sh", "-c", f"head -c {self.tail}; exit 3"),
            "absent": program(f"{self.folder}/no-such-program"),
        }
        return {name: {"listen": "tcp://127.0.0.1:0", "endpoint": url} for name, url in endpoints.items()}

    async def cat(self):
        """The one that was started last."""
        return (await until(lambda: children(self.gateway.process.pid, "cat"), 10, "a program"))[-1]

    async def all_gone(self):
        await until(lambda: not children(self.gateway.process.pid, "cat"), 20, "the programs' end")

    async def talk(self, client, size):
        """Sends `size` bytes, and receives all of them again."""
        heard = Reader(self.up, 0)
        saying = asyncio.create_task(self.say(client, size))
        while heard.received < size:
            data = await client.receive()
            assert data, f"ended after {heard.received} of {size} bytes"
            heard.take(data)
        await saying

    async def say(self, client, size):
        while client.sent < size:
            await client.send(self.up.piece(client.sent, min(size - client.sent, self.random.randint(1, 1 << 17))))

    async def fault_program_stalls(self):
        client = await self.connect("cat")
        size = self.random.randint(1, 2 * MIB)
        talking = asyncio.create_task(self.talk(client, size))
        pid = await self.cat()
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(self.random.random() * 0.5)
        os.kill(pid, signal.SIGCONT)
        await talking
        client.finish()
        assert await client.receive() == b""
        client.close()
        await self.gone(client, "client-left", "endpoint-left", up=size, down=size, dropped=0)
        self.moved += 2 * size
        await self.all_gone()

    async def fault_program_is_killed(self):
        """What it had sent before is received."""
        client = await self.connect("cat")
        heard = Reader(self.up, 0)
        saying = asyncio.create_task(self.say(client, 1 << 40))
        size = self.random.randint(1, MIB)
        while heard.received < size:
            heard.take(await client.receive())
        os.kill(await self.cat(), signal.SIGKILL)
        while data := await client.receive():
            heard.take(data)
        await cancelled(saying)
        client.close()
        counts = await self.gone(client, "device-lost")
        assert heard.received <= counts["up"]
        self.moved += 2 * heard.received
        await self.all_gone()

    async def fault_program_fails(self):
        """It exits with its own status; what it sent before is received."""
        client = await self.connect("failing")
        await self.talk(client, self.tail)
        while await client.receive():
            pass
        client.close()
        await self.gone(client, "device-lost", down=self.tail)
        self.moved += 2 * self.tail

    async def fault_program_floods(self):
        client = await self.connect("flooding", receive_buffer=65536)
        heard = Reader(self.up, 0)
        while data := await client.receive():
            heard.take(data)
            await asyncio.sleep(self.random.random() * 0.002)
        assert heard.received == self.blocks * LENGTH, f"{heard.received} bytes"
        client.close()
        await self.gone(client, "endpoint-left", down=heard.received, dropped=0)
        self.moved += heard.received

    async def fault_program_is_not_there(self):
        client = await self.connect("absent")
        await client.words()
        await self.gone(client, "open-failed", down=0)
        client.close()

    async def fault_client_resets(self):
        """The gateway ends the program of a client that left."""
        client = await self.connect("cat")
        await self.talk(client, 1000)
        await self.cat()
        client.reset()
        await self.gone(client, "client-lost", up=1000, down=1000)
        await self.all_gone()


class TalkingDevice(UnixDevice):
    """One of our devices, which a program of the gateway talks to."""

    @property
    def url(self):
        return program("/usr/bin/socat", "STDIO", f"UNIX-CONNECT:{self.path}")


class SharedProgramRoom(PaceFaults, ClientFaults, SharedLineRoom):
    """One program for all; when it dies it is started again, and clients stay."""

    copies = 3

    def make_device(self):
        return TalkingDevice(f"{self.folder}/{self.route}.sock")

    async def fault_program_is_killed(self):
        async def during(writers):
            for writer in writers:
                await writer.pause()
            await self.hear_all(writers)
            opened = self.gateway.links[self.route, "link open"]
            os.kill(children(self.gateway.process.pid, "socat", self.device.path)[0], signal.SIGKILL)
            await until(lambda: self.gateway.links[self.route, "link open"] > opened, 10, "another program")
            for writer in writers:
                writer.is_sending = True

        await self.traffic(during)
