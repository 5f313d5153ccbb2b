"""A device that connects to the guest, as phones do: its commands in devices.py.

find NAME UUID          looks the guest's services up: "CHANNEL TEXT" of each, or none
dial NAME CHANNEL       connects to a channel of the guest
pour NAME SEED COUNT    sends COUNT bytes drawn from the seed; answers their SHA-256. Forgets the bytes received
    before
unsent NAME             how many of them wait for credits
got NAME COUNT          waits until COUNT bytes have arrived; answers their SHA-256
leave NAME              closes the channel in order
"""
import asyncio
import hashlib
import random

from bumble import core, hci, l2cap, rfcomm, sdp

GUEST = hci.Address("00:AA:01:00:00:00", hci.Address.PUBLIC_DEVICE_ADDRESS)
PROTOCOLS, TEXT = 0x0004, 0x0100


def close_with_peer(channel):
    """Bumble 0.0.236 ignores the other side's close."""
    plain = channel.on_disc_frame

    def closed(frame):
        plain(frame)
        channel.multiplexer.on_dlc_disconnection(channel)
        channel.abort()

    channel.on_disc_frame = closed


class Orders:
    async def link(self, name):
        device = self.peers[name].device
        for connection in device.connections.values():
            if connection.peer_address == GUEST:
                break
        else:
            connection = await asyncio.wait_for(device.connect(GUEST, transport=core.PhysicalTransport.BR_EDR), 20)
        if device.classic_ssp_enabled and not connection.is_encrypted:
            await asyncio.wait_for(connection.authenticate(), 20)
            await asyncio.wait_for(connection.encrypt(), 20)
        return connection

    async def do_find(self, name, uuid):
        link = await self.link(name)
        async with sdp.Client(link) as client:
            found = await asyncio.wait_for(client.search_attributes([core.UUID(uuid)], [(0, 0xFFFF)]), 20)
        told = []
        for record in found:
            values = {attribute.id: attribute.value.value for attribute in record}
            channel = values[PROTOCOLS][1].value[1].value
            told.append(f"{channel} {values[TEXT].decode()}")
        return ", ".join(sorted(told)) or "none"

    async def do_dial(self, name, channel):
        peer = self.peers[name]
        link = await self.link(name)
        for left in range(99, -1, -1):
            try:
                peer.multiplexer = await asyncio.wait_for(rfcomm.Client(link).start(), 20)
                break
            except l2cap.L2capError as error:
                # The kernel refuses connections until it has asked its controller for the new link's key size.
                if not left or "SECURITY_BLOCK" not in str(error):
                    raise
                await asyncio.sleep(0.1)
        peer.call = await asyncio.wait_for(peer.multiplexer.open_dlc(int(channel)), 20)
        close_with_peer(peer.call)
        peer.came = bytearray()
        peer.call.sink = peer.came.extend

    async def do_pour(self, name, seed, count):
        data = random.Random(seed).randbytes(int(count))
        self.peers[name].came.clear()
        self.peers[name].call.write(data)
        return hashlib.sha256(data).hexdigest()

    async def do_unsent(self, name):
        return str(len(self.peers[name].call.tx_buffer))

    async def do_got(self, name, count):
        came = self.peers[name].came
        for _ in range(900):
            if len(came) >= int(count):
                return hashlib.sha256(came[:int(count)]).hexdigest()
            await asyncio.sleep(0.1)
        return f"error: {len(came)} of {count} bytes"

    async def do_leave(self, name):
        await asyncio.wait_for(self.peers[name].call.disconnect(), 20)
