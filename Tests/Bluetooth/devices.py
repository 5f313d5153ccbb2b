"""The devices at the other end of the air, made with Google's Bumble, and the guest's controller. Run by rig.py with the
virtual environment's Python. First it prints the port on 127.0.0.1 where the controller is fetched; then it takes a command a
line and answers a line.

  serial  00:AA:01:00:00:01  echoes on three RFCOMM channels: 3 "Serial Port" (1101), 5 of a private UUID, 9 that no record
                             tells of; channel 7 says what it is told to and hears the rest
  mute    00:AA:01:00:00:05  can be connected, and has no service at all

  lose NAME · hangup NAME · silent NAME 0|1 · close NAME CHANNEL · say NAME CHANNEL TEXT · open NAME · pull
"""
import asyncio
import logging
import sys

from air import Air, Radio
from bumble import hci, rfcomm
from bumble.core import UUID
from bumble.device import Device, DeviceConfiguration
from bumble.host import Host
from bumble.transport.common import AsyncPipeSink, StreamPacketSink, StreamPacketSource

PRIVATE = "E1F9F7A0-1111-4222-8333-444455556666"


class Peer:
    def __init__(self, air, name, address):
        self.name = name
        self.controller = Radio(name, link=air, public_address=address)
        configuration = DeviceConfiguration(
            name=f"test-{name}", address=hci.Address("F0:F1:F2:F3:F4:F5"), classic_enabled=True, classic_ssp_enabled=True)
        self.device = Device(config=configuration, host=Host(self.controller, AsyncPipeSink(self.controller)))
        self.channels = {}  # by number, those that are open

    def listen(self, number, echo=True):
        def accept(channel):
            self.channels.setdefault(number, []).append(channel)
            channel.on("close", lambda: channel in self.channels[number] and self.channels[number].remove(channel))
            plain = channel.on_disc_frame

            def closed(frame):  # Bumble 0.0.236 takes no notice of the other side's close
                plain(frame)
                channel.multiplexer.on_dlc_disconnection(channel)
                channel.abort()

            channel.on_disc_frame = closed
            channel.sink = lambda data: channel.write(bytes(data)) if echo else None

        self.rfcomm.listen(accept, number)

    async def power_on(self):
        await self.device.power_on()
        await self.device.set_discoverable(True)
        await self.device.set_connectable(True)


async def build(air):
    serial = Peer(air, "serial", "00:AA:01:00:00:01")
    serial.rfcomm = rfcomm.Server(serial.device)
    for number in (3, 5, 9):
        serial.listen(number)
    serial.listen(7, echo=False)
    serial.device.sdp_service_records = {
        0x00010001: rfcomm.make_service_sdp_records(0x00010001, 3, UUID.from_16_bits(0x1101)),
        0x00010002: rfcomm.make_service_sdp_records(0x00010002, 5, UUID(PRIVATE)),
    }
    peers = {peer.name: peer for peer in (serial, Peer(air, "mute", "00:AA:01:00:00:05"))}
    for peer in peers.values():
        await peer.power_on()
    return peers


class Devices:
    def __init__(self, air, peers):
        self.air, self.peers = air, peers
        self.radio = self.wire = None

    async def plugged(self, reader, writer):
        """The guest fetches its controller, or a new one after a pull."""
        source, sink = StreamPacketSource(), StreamPacketSink(writer)
        self.radio, self.wire = Radio("guest", source, sink, self.air, "00:AA:01:00:00:00"), writer
        writer.write(b"\xff\0")  # to the relay's driver: make a controller
        while data := await reader.read(65536):
            source.data_received(data)
        self.leave()

    def leave(self):
        if self.radio:
            self.air.lose(self.radio)
            self.air.remove_controller(self.radio)
            self.radio.host = None
            self.radio = None

    async def do_pull(self):
        self.leave()
        self.wire.close()

    async def do_lose(self, name):
        self.air.lose(self.peers[name].controller)

    async def do_hangup(self, name):
        for connection in list(self.peers[name].device.connections.values()):
            await connection.disconnect()

    async def do_silent(self, name, on):
        self.peers[name].controller.silent = on == "1"

    async def do_close(self, name, number):
        for channel in list(self.peers[name].channels.get(int(number), [])):
            await asyncio.wait_for(channel.disconnect(), 5)

    async def do_say(self, name, number, text):
        for channel in self.peers[name].channels.get(int(number), []):
            channel.write(text.encode())

    async def do_open(self, name):
        return " ".join(f"{number}:{len(open_)}" for number, open_ in self.peers[name].channels.items() if open_) or "none"

    async def obey(self, line):
        try:
            what, *words = line.split()
            return await getattr(self, f"do_{what}")(*words) or "ok"
        except Exception as error:  # noqa: BLE001 - the test wants to see it
            logging.exception("%s", line)
            return f"error {type(error).__name__}: {error}"


async def main():
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    air = Air()
    devices = Devices(air, await build(air))
    server = await asyncio.start_server(devices.plugged, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():  # whoever started it goes: so does it
        print(await devices.obey(line.decode()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
