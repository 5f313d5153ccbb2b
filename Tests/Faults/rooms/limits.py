"""No descriptors, no memory, while a client is at work. A separate gateway, because in the others every new resource
would hit the limit."""

import asyncio
import contextlib
import resource

from actors.gateway import Gateway
from actors.waits import until
from rooms.room import Room


class LimitRoom(Room):
    own = {
        "crowd": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "link": "per-client", "clients": {"max": 100}},
        "big": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://flood", "clients": {"buffer": "16MiB"}},
    }

    def routes(self):
        return {}

    async def prepare(self):
        self._gateway = Gateway(self.everybodys_gateway.binary)
        self._gateway.routes |= self.own

    @property
    def gateway(self):
        return self._gateway

    @property
    def gateways(self):
        return [self._gateway]

    async def start(self):
        await self.gateway.start()
        client = await self.connect("crowd")
        await client.send(b"warm")
        await client.receive()
        client.reset()
        await self.gone(client, "client-lost")

    @contextlib.asynccontextmanager
    async def bystander(self):
        """A client that was connected before, and loses nothing."""
        client = await self.connect("crowd")
        said = bytearray()

        async def say():
            while True:
                said.extend(piece := self.random.randbytes(self.random.randint(1, 4096)))
                await client.send(piece)
                heard = b""
                while len(heard) < len(piece):
                    data = await client.receive(within=20)
                    assert data, "a bystander was cut off"
                    heard += data
                assert heard == piece, "a bystander heard something else"
                await asyncio.sleep(0.002)

        task = asyncio.create_task(say())
        await until(lambda: said, 10, "a bystander at work")
        yield
        before = len(said)
        await until(lambda: task.done() or len(said) > before + 4096, 10, "a bystander at work")
        if task.done():
            await task
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        client.reset()
        await self.gone(client, "client-lost")
        self.moved += 2 * len(said)

    async def still_serves(self):
        after = await self.connect("crowd")
        await after.send(b"again")
        assert await after.receive(within=20) == b"again"
        after.reset()
        await self.gone(after, "client-lost")

    async def fault_descriptor_limit(self):
        async with self.bystander():
            clients = []
            with self.gateway.limited(resource.RLIMIT_NOFILE, self.gateway.descriptors() + 3):
                for _ in range(12):
                    clients.append(await self.connect("crowd"))
                await asyncio.sleep(0.2)
            served = [client for client in clients if await self.is_served(client)]
            assert 1 <= len(served) < len(clients), f"{len(served)} of {len(clients)} served"
        await self.still_serves()

    async def is_served(self, client):
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            await client.send(b"hello")
        if await client.receive(within=20) == b"hello":
            client.reset()
            await self.gone(client, "client-lost", up=5)
            return True
        client.close()
        return False

    async def fault_memory_limit(self):
        async with self.bystander():
            # A ring of 16 MiB needs 32 MiB of address space; the limit is what the gateway has now.
            with self.gateway.limited(resource.RLIMIT_AS, (self.gateway.memory("VmSize") + 4096) * 1024):
                client = await self.connect("big")
                await client.words()
                await self.gone(client, "internal")
                client.close()
        await self.still_serves()
