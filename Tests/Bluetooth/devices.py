"""The devices at the other end of the air, made with Google's Bumble, and the guest's controller. Run by rig.py with
the virtual environment's Python. First it prints the port on 127.0.0.1 where the guest's relay gets the controller;
then it reads a command per line and answers with a line.

serial  00:AA:01:00:00:01  echoes on three RFCOMM channels: 3 "Serial Port" (1101), 5 of a private UUID, 9 without a
    record; channel 7 sends what `say` orders and only counts what it receives
mute    00:AA:01:00:00:05  can be connected, and has no service at all; gives its name only on request
nus     C0:00:00:00:00:02 (random), "test-nus": Nordic's serial service, and its manufacturer; echoes there and on
    LE channels 128 and 131 (messages of 23 bytes)
hm10    00:AA:01:00:00:03 (public), LE, "HMSoft": service FFE0, whose FFE1 does everything; echoes
locked  C0:00:00:00:00:05 (random): service FFE0, whose FFE1 does everything, on an encrypted link only; pairs with
    any device; echoes
phone   00:AA:01:00:00:07  connects to the guest (phone.py); without simple pairing, so that no pairing is needed
mobile  00:AA:01:00:00:08  the same, but pairs first, as phones do since Bluetooth 2.1
shy     C0:00:00:00:00:04 (random): service FFF0, indications on FFF1, write requests on FFF2; echoes, MTU 23

lose NAME · hangup NAME · silent NAME 0|1 · close NAME CHANNEL · say NAME CHANNEL TEXT · tell NAME TEXT · open NAME ·
heard NAME: bytes received, in total · pairs NAME 0|1: whether it pairs · paired NAME: how often it was asked to pair,
in total · asks NAME: requests pairing itself · forget NAME: deletes its bonds · pull · pace MS: time per packet of the
guest's adapter · history: of the guest's adapter, into the log · seeks: what it scans for · echo NAME 0|1 · await NAME
BYTES: waits until it has received that many in total · flood NAME BYTES: sends that many of `random.Random(BYTES)` ·
sum NAME: CRC-32 of the bytes received since the last sum · locks NAME 0|1: whether writes need an encrypted link ·
strength DBM: of the guest's links
"""
import asyncio
import logging
import random
import sys
import zlib

import phone
from air import Air, Radio
from bumble import core, hci, l2cap, rfcomm
from bumble.att import Attribute
from bumble.core import UUID, AdvertisingData
from bumble.device import Device, DeviceConfiguration
from bumble.gatt import GATT_CLIENT_CHARACTERISTIC_CONFIGURATION_DESCRIPTOR as SWITCH
from bumble.gatt import Characteristic, CharacteristicValue, Service
from bumble.host import Host
from bumble.pairing import PairingConfig, PairingDelegate
from bumble.profiles.device_information_service import DeviceInformationService
from bumble.transport.common import AsyncPipeSink, StreamPacketSink, StreamPacketSource

PRIVATE = "E1F9F7A0-1111-4222-8333-444455556666"
NUS = [f"6E40000{n}-B5A3-F393-E0A9-E50E24DCCA9E" for n in (1, 2, 3)]
P = Characteristic.Properties
READ_WRITE = Attribute.READABLE | Attribute.WRITEABLE


class Pairing(PairingDelegate):
    """There is no display and no keyboard for numbers."""

    def __init__(self, peer):
        super().__init__()
        self.peer = peer

    async def accept(self):
        self.peer.paired += 1
        return self.peer.pairs


class ClassicPairing(Pairing):
    async def confirm(self, auto=False):
        return await self.accept()


class Peer:
    def __init__(self, air, name, address, random="F0:F1:F2:F3:F4:F5", classic=True, simple_pairing=True):
        self.name = name
        self.controller = Radio(name, link=air, public_address=address)
        configuration = DeviceConfiguration(
            name=f"test-{name}", address=hci.Address(random), classic_enabled=classic, classic_ssp_enabled=simple_pairing)
        if not classic:
            self.controller.lmp_features |= hci.LmpFeatureMask.BR_EDR_NOT_SUPPORTED
        self.device = Device(config=configuration, host=Host(self.controller, AsyncPipeSink(self.controller)))
        self.device.advertising_data = self.device.scan_response_data = b""
        self.device.on("connection", lambda connection: connection.on("disconnection", lambda reason: self.free(connection)))
        delegate = ClassicPairing(self) if classic else Pairing(self)
        self.device.pairing_config_factory = lambda connection: PairingConfig(
            sc=True, mitm=False, bonding=True, delegate=delegate)
        self.own_type = hci.OwnAddressType.RANDOM
        self.channels = {}  # by number, the open ones
        self.out = self.into = None  # the characteristics that notify and that are written
        self.queue = asyncio.Queue()
        self.heard = self.sum = 0
        self.pairs, self.paired = True, 0
        self.is_shown = True  # whether it answers inquiries
        self.echoes = True

    def listen(self, number, echo=True):
        def accept(channel):
            self.channels.setdefault(number, []).append(channel)
            channel.on("close", lambda: channel in self.channels[number] and self.channels[number].remove(channel))
            phone.close_with_peer(channel)
            channel.sink = lambda data: self.hear(channel, data, echo)

        self.rfcomm.listen(accept, number)

    def note(self, data):
        self.heard += len(data)
        self.sum = zlib.crc32(data, self.sum)

    def hear(self, channel, data, echo=True):
        self.note(data)
        if echo and self.echoes:
            channel.write(bytes(data))

    # Bluetooth Low Energy.

    def serve(self, service, written, told, how=P.NOTIFY, writing=P.WRITE | P.WRITE_WITHOUT_RESPONSE, locked=False):
        """A serial service that echoes, in order."""
        def written_to(connection, data):
            self.note(data)
            self.queue.put_nowait((connection, bytes(data)))

        value = CharacteristicValue(write=written_to)
        if written == told:
            both = [Characteristic(written, P.READ | how | writing, READ_WRITE, value)]
        else:
            both = [Characteristic(told, how, READ_WRITE, b""), Characteristic(written, writing, READ_WRITE, value)]
        self.out, self.into = both[0], both[-1]
        self.device.add_service(Service(UUID(service), both))
        if locked:
            secret = Attribute.READ_REQUIRES_ENCRYPTION | Attribute.WRITE_REQUIRES_ENCRYPTION
            for attribute in self.device.gatt_server.attributes:
                if attribute in both or attribute.type == SWITCH:
                    attribute.permissions |= secret
        asyncio.ensure_future(self.echo(how))

    async def echo(self, how):
        while True:
            connection, data = await self.queue.get()
            if not self.echoes:
                continue
            try:
                await self.tell(connection, data, how)
            except Exception:  # noqa: BLE001 - the link has gone
                logging.info("%s: not told", self.name)

    async def tell(self, connection, data, how=P.NOTIFY):
        step = min(connection.att_mtu - 3, 512)
        tell = self.device.indicate_subscriber if how == P.INDICATE else self.device.notify_subscriber
        for at in range(0, len(data), step):
            await tell(connection, self.out, data[at:at + step])

    def serve_channel(self, psm, mtu=2048, mps=1024, credits=64):
        def accept(channel):
            self.channels.setdefault(psm, []).append(channel)
            channel.on("close", lambda: channel in self.channels[psm] and self.channels[psm].remove(channel))
            channel.sink = lambda data: self.hear(channel, data)

        manager = self.device.l2cap_channel_manager
        plain = manager.on_channel_closed

        def closed(channel):  # Bumble 0.0.236 keeps its number as taken
            plain(channel)
            table = manager.le_coc_channels.get(channel.connection.handle, {})
            for number in [number for number, one in table.items() if one is channel]:
                del table[number]

        manager.on_channel_closed = closed
        self.device.create_l2cap_server(
            l2cap.LeCreditBasedChannelSpec(psm=psm, mtu=mtu, mps=mps, max_credits=credits), accept)

    def advertise_as(self, name, service, public=False):
        uuid = UUID(service)
        kind = AdvertisingData.Type
        lists = {2: kind.COMPLETE_LIST_OF_16_BIT_SERVICE_CLASS_UUIDS, 16: kind.COMPLETE_LIST_OF_128_BIT_SERVICE_CLASS_UUIDS}
        data = uuid.to_bytes()
        self.device.advertising_data = bytes(AdvertisingData([(kind.FLAGS, b"\6"), (lists[len(data)], data)]))
        self.device.scan_response_data = bytes(AdvertisingData([(kind.COMPLETE_LOCAL_NAME, name.encode())]))
        if public:
            self.own_type = hci.OwnAddressType.PUBLIC

    async def advertise(self):
        if self.device.advertising_data:
            await self.device.start_advertising(
                own_address_type=self.own_type, advertising_interval_min=100, advertising_interval_max=100)

    def free(self, connection):
        if connection.transport == core.PhysicalTransport.LE:
            asyncio.ensure_future(self.advertise())

    async def power_on(self):
        await self.device.power_on()
        await self.advertise()
        if self.device.classic_enabled:
            await self.device.set_discoverable(self.is_shown)
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
    kind = AdvertisingData.Type
    serial.device.inquiry_response = bytes(AdvertisingData([
        (kind.COMPLETE_LOCAL_NAME, b"test-serial"),
        (kind.COMPLETE_LIST_OF_16_BIT_SERVICE_CLASS_UUIDS, UUID.from_16_bits(0x1101).to_bytes()),
        (kind.COMPLETE_LIST_OF_128_BIT_SERVICE_CLASS_UUIDS, UUID(PRIVATE).to_bytes())]))
    nus = Peer(air, "nus", "00:AA:01:00:00:02", "C0:00:00:00:00:02", classic=False)
    nus.serve(*NUS)
    nus.advertise_as("test-nus", NUS[0])
    nus.device.add_service(DeviceInformationService(
        manufacturer_name="ACME", model_number="N-1", serial_number="00042", firmware_revision="1.2"))
    nus.serve_channel(128)
    nus.serve_channel(131, mtu=23, mps=23)
    nus.serve_channel(132, mtu=65535, mps=64)
    hm10 = Peer(air, "hm10", "00:AA:01:00:00:03", "C0:00:00:00:00:03", classic=False)
    hm10.serve("FFE0", "FFE1", "FFE1")
    hm10.advertise_as("HMSoft", "FFE0", public=True)
    shy = Peer(air, "shy", "00:AA:01:00:00:04", "C0:00:00:00:00:04", classic=False)
    shy.serve("FFF0", "FFF2", "FFF1", how=P.INDICATE, writing=P.WRITE)
    shy.advertise_as("test-shy", "FFF0")
    locked = Peer(air, "locked", "00:AA:01:00:00:06", "C0:00:00:00:00:05", classic=False)
    locked.serve("FFE0", "FFE1", "FFE1", locked=True)
    locked.advertise_as("test-locked", "FFE0")
    locked.serve_channel(128)
    mute = Peer(air, "mute", "00:AA:01:00:00:05")
    mute.device.inquiry_response = b""
    caller = Peer(air, "phone", "00:AA:01:00:00:07", simple_pairing=False)
    mobile = Peer(air, "mobile", "00:AA:01:00:00:08")
    caller.is_shown = mobile.is_shown = False
    peers = {peer.name: peer for peer in (serial, mute, nus, hm10, shy, locked, caller, mobile)}
    for peer in peers.values():
        await peer.power_on()
    return peers


class Devices(phone.Orders):
    def __init__(self, air, peers):
        self.air, self.peers = air, peers
        self.radio = self.wire = None

    async def plugged(self, reader, writer):
        """The guest's relay gets its controller, or a new one after a pull."""
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

    async def do_tell(self, name, text):
        peer = self.peers[name]
        for connection in list(peer.device.connections.values()):
            await peer.tell(connection, text.encode())

    async def do_pace(self, milliseconds):
        self.radio.pace = int(milliseconds) / 1000

    async def do_history(self):
        self.radio.tell_history()

    async def do_seeks(self):
        words = [word for word, is_on in (("le", self.radio.le_scan_enable), ("classic", self.radio.inquiry)) if is_on]
        return " ".join(words) or "nothing"

    async def do_pairs(self, name, on):
        self.peers[name].pairs = on == "1"

    async def do_paired(self, name):
        return str(self.peers[name].paired)

    async def do_asks(self, name):
        """Requests pairing itself."""
        list(self.peers[name].device.connections.values())[0].request_pairing()

    async def do_forget(self, name):
        await self.peers[name].device.keystore.delete_all()

    async def do_locks(self, name, on):
        lock = Attribute.WRITE_REQUIRES_ENCRYPTION
        into = self.peers[name].into
        into.permissions = into.permissions | lock if on == "1" else into.permissions & ~lock

    async def do_strength(self, strength):
        self.radio.strength = int(strength)

    async def do_heard(self, name):
        return str(self.peers[name].heard)

    async def do_sum(self, name):
        said, self.peers[name].sum = self.peers[name].sum, 0
        return str(said)

    async def do_echo(self, name, on):
        self.peers[name].echoes = on == "1"

    async def do_await(self, name, size):
        async with asyncio.timeout(100):
            while self.peers[name].heard < int(size):
                await asyncio.sleep(0.001)

    async def do_flood(self, name, size):
        """Sends over its open channel, or its characteristic."""
        peer, data = self.peers[name], random.Random(int(size)).randbytes(int(size))
        for channel in [channel for channels in peer.channels.values() for channel in channels][:1]:
            return channel.write(data)
        asyncio.ensure_future(peer.tell(list(peer.device.connections.values())[0], data))

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
    while line := await lines.readline():  # ends with the process that started it
        print(await devices.obey(line.decode()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
