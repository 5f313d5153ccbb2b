"""Plain proxies: a link for each client; the test plays the far end of each, too."""

import asyncio
import contextlib
import socket

from actors.waits import cancelled
from pattern import Pattern, Reader
from rooms.room import Room

MIB = 1 << 20
PIECE_LIMIT = 1 << 18


class ProxyRoom(Room):
    """A link for each client. The test plays the far end of each, too."""

    def __init__(self, *args):
        super().__init__(*args)
        self.up, self.down = Pattern(f"up {self.random.random()}"), Pattern(f"down {self.random.random()}")
        self._came = asyncio.Queue()
        self._dialling = asyncio.Lock()
        # A port without a listener. Still bound, because a connection might be given it and connect to itself.
        self._placeholder = socket.socket()
        self._placeholder.bind(("127.0.0.1", 0))
        self._nobody = self._placeholder.getsockname()[1]
        self._server_port = None

    async def prepare(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=PIECE_LIMIT)
        self._server_port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader, writer):
        await self._came.put((reader, writer))

    def routes(self):
        return {
            "proxy": {"listen": "tcp://127.0.0.1:0", "endpoint": f"tcp://127.0.0.1:{self._server_port}"},
            "refused": {"listen": "tcp://127.0.0.1:0", "endpoint": f"tcp://127.0.0.1:{self._nobody}"},
        }

    async def stop(self):
        self._server.close()
        self._placeholder.close()

    async def pair(self, **options):
        async with self._dialling:
            client = await self.connect("proxy", **options)
            reader, writer = await asyncio.wait_for(self._came.get(), 15)
        return client, reader, writer

    async def client_sends(self, client, size):
        while client.sent < size:
            await client.send(self.up.piece(client.sent, min(size - client.sent, self.random.randint(1, 1 << 18))))

    async def client_hears(self, client, size, reader, slow=0.0):
        while reader.received < size:
            data = await client.receive()
            assert data, f"ended after {reader.received} of {size} bytes"
            reader.take(data)
            if slow:
                await asyncio.sleep(self.random.random() * slow)

    @staticmethod
    async def far_hears(stream, reader, size=None, within=60):
        """Reads `size` bytes, or until the end."""
        while size is None or reader.received < size:
            async with asyncio.timeout(within):
                data = await stream.read(1 << 18)
            if not data:
                return
            reader.take(data)

    async def far_sends(self, writer, size):
        sent = 0
        while sent < size:
            piece = self.down.piece(sent, min(size - sent, self.random.randint(1, 1 << 18)))
            writer.write(piece)
            sent += len(piece)
            async with asyncio.timeout(60):
                await writer.drain()

    async def fault_bulk_both_ways(self):
        up, down = (self.random.randint(1, 24 * MIB) for _ in range(2))
        client, reader, writer = await self.pair()
        hears, heard = Reader(self.down, 0), Reader(self.up, 0)
        await asyncio.gather(
            self.client_sends(client, up),
            self.client_hears(client, down, hears),
            self.far_sends(writer, down),
            self.far_hears(reader, heard, up),
        )
        client.finish()
        assert await asyncio.wait_for(reader.read(1), 20) == b"", "more than was sent"
        writer.close()
        assert await client.receive() == b"", "more than was said"
        client.close()
        await self.gone(client, "client-left", up=up, down=down, dropped=0)
        self.moved += up + down

    async def fault_client_closes_after_sending(self):
        size = self.random.randint(1, 4 * MIB)
        client, reader, writer = await self.pair()
        heard = Reader(self.up, 0)
        hearing = asyncio.create_task(self.far_hears(reader, heard))
        await self.client_sends(client, size)
        client.close()
        await hearing
        assert heard.received == size, f"{heard.received} of {size} bytes"
        writer.close()
        await self.gone(client, "client-left", up=size, dropped=0)
        self.moved += size

    async def fault_endpoint_closes_after_sending(self):
        size = self.random.randint(1, 4 * MIB)
        client, reader, writer = await self.pair()
        hears = Reader(self.down, 0)
        sending = asyncio.create_task(self.far_sends(writer, size))
        await self.client_hears(client, size, hears, slow=0.01)
        await sending
        writer.close()
        assert await client.receive() == b""
        client.close()
        await self.gone(client, "endpoint-left", down=size, dropped=0)
        self.moved += size

    async def fault_long_answer_after_the_end(self):
        size = self.random.randint(1, 8 * MIB)
        client, reader, writer = await self.pair()
        await client.send(self.up.piece(0, 1000))
        client.finish()
        heard, hears = Reader(self.up, 0), Reader(self.down, 0)
        await self.far_hears(reader, heard)
        assert heard.received == 1000

        async def answer():
            await self.far_sends(writer, size)
            writer.close()

        await asyncio.gather(answer(), self.client_hears(client, size, hears, slow=0.005))
        assert await client.receive() == b""
        client.close()
        await self.gone(client, "client-left", up=1000, down=size, dropped=0)
        self.moved += size + 1000

    async def fault_client_resets_in_mid_upload(self):
        client, reader, writer = await self.pair()
        heard = Reader(self.up, 0)
        hearing = asyncio.create_task(self._hear_until_broken(reader, heard))
        sending = asyncio.create_task(self.client_sends(client, 1 << 40))
        await asyncio.sleep(self.random.random() * 0.2)
        await cancelled(sending)
        client.reset()
        counts = await self.gone(client, "client-lost")
        await hearing
        writer.close()
        assert heard.received <= counts["up"], f"{heard.received} arrived of {counts['up']}"
        self.moved += heard.received

    async def _hear_until_broken(self, reader, heard):
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            await self.far_hears(reader, heard)

    async def fault_endpoint_resets_in_mid_download(self):
        client, reader, writer = await self.pair()
        hears = Reader(self.down, 0)
        sending = asyncio.create_task(self.far_sends(writer, 1 << 40))
        size = self.random.randint(1, 2 * MIB)
        await self.client_hears(client, size, hears)
        await cancelled(sending)
        writer.transport.abort()
        while data := await client.receive():
            hears.take(data)
        client.close()
        await self.gone(client, "device-lost", "endpoint-left", "client-lost", "client-left")
        self.moved += hears.received

    async def fault_endpoint_stops_reading(self):
        """The client sends until nothing more fits, for a while; then all of it arrives."""
        client, reader, writer = await self.pair()
        size = 24 * MIB
        sending = asyncio.create_task(self.client_sends(client, size))
        await asyncio.sleep(self.random.random() * 0.5)
        heard = Reader(self.up, 0)
        await self.far_hears(reader, heard, size)
        await sending
        client.close()
        assert await asyncio.wait_for(reader.read(1), 20) == b""
        writer.close()
        await self.gone(client, "client-left", up=size, dropped=0)
        self.moved += size

    async def fault_client_stops_reading(self):
        client, reader, writer = await self.pair(receive_buffer=65536)
        size = 24 * MIB
        hears = Reader(self.down, 0)
        sending = asyncio.create_task(self.far_sends(writer, size))
        await asyncio.sleep(self.random.random() * 0.5)
        await self.client_hears(client, size, hears)
        await sending
        writer.close()
        assert await client.receive() == b""
        client.close()
        await self.gone(client, "endpoint-left", down=size, dropped=0)
        self.moved += size

    async def fault_endpoint_refuses(self):
        client = await self.connect("refused")
        await client.words()
        await self.gone(client, "open-failed", down=0)
        client.close()
