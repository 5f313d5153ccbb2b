"""Routes with packets: none is torn, whichever client writes, leaves or is slow."""

import asyncio

from actors.devices import TCPDevice
from actors.waits import until
from packets import SIZE, PacketReader, Packets, PacketSorter
from rooms.client_faults import ClientFaults
from rooms.device_faults import PaceFaults
from rooms.shared_line import SharedLineRoom
from rooms.slow import DropRoom
from rooms.writer_client import WriterClient


class PacketWriterClient(WriterClient):
    """Sends whole packets, each in several pieces with pauses between."""

    def next_piece(self, most=16384, least=1):
        whole = self.room.random.randint(1, max(1, most // SIZE)) * SIZE
        return self.arrives.pattern.piece(self.start + self.said, whole)

    async def send_piece(self):
        data = self.next_piece(2048)
        while data:
            cut = self.room.random.randint(1, len(data))
            await self.client.send(data[:cut])
            data = data[cut:]
            if self.room.random.random() < 0.3:
                await asyncio.sleep(0.001)


class PacketLineRoom(SharedLineRoom):
    """The device sends numbered packets, and so do all clients."""

    # On a busy machine, where one process plays all roles, a writer may stop in the middle of a packet for more than a
    # second.
    more = {"packets": {"delimiter": "\\n", "idle": "20s"}}
    unit = SIZE
    client_type = PacketWriterClient

    def make_device(self):
        return TCPDevice()

    def __init__(self, *args):
        super().__init__(*args)
        self.line.down = Packets(9)
        self.line.sorter = PacketSorter([Packets(mark) for mark in range(4)])

    def reader(self):
        return PacketReader(self.line.down)

    async def hear_all(self, writers):
        self.line.pace = "silent"
        while self.line.said % SIZE:  # half a packet is not delivered yet
            self.line.say(SIZE - self.line.said % SIZE)
            await asyncio.sleep(0.001)
        await super().hear_all(writers)


class PacketsRoom(PaceFaults, ClientFaults, PacketLineRoom):
    """Several writers; one of them leaves in the middle of a packet."""

    copies = 3

    # In these faults a client leaves anywhere.
    fault_client_sends_and_closes = fault_client_resets = fault_client_is_kicked = fault_client_never_stops = None

    async def fault_client_leaves_in_mid_packet(self):
        async def during(_):
            client = await self.join()
            start = self.random.randrange(1 << 20) * SIZE
            arrives = self.line.sorter.expect(3, start)
            whole, part = self.random.randint(0, 20) * SIZE, self.random.randint(1, SIZE - 1)
            data = arrives.pattern.piece(start, whole + part)
            self.line.sorter.broken = data[whole:]
            await client.send(data)
            await client.all_is_there()
            client.reset()
            await self.gone(client, "client-lost", up=whole + part)
            await until(lambda: arrives.received == whole and not self.line.sorter.broken, 20, "all that he sent arriving")

        await self.traffic(during)


class PacketDropRoom(PacketLineRoom, DropRoom):
    """A client that lags loses whole packets."""

    def make_device(self):
        return TCPDevice()
