"""Clients whose cable is cut: nothing arrives from them, not even acknowledgements. The gateway must detect that."""

import asyncio

from rooms.room import Room

LONGEST = 35  # 30 s are promised; the rest is for a busy machine


class VanishedRoom(Room):
    workers = 16

    def routes(self):
        return {
            "quiet": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://sink", "clients": {"max": 100}},
            "busy": {
                "listen": "tcp://127.0.0.1:0", "endpoint": "sim://nmea?rate=100", "clients": {"max": 100, "slow": "drop-oldest"},
            },
        }

    async def fault_client_vanishes_in_silence(self):
        """Keepalive detects it."""
        client = await self.connect("quiet")
        size = self.random.randint(1, 1000)
        await client.send(bytes(size))
        await client.all_is_there()
        await asyncio.sleep(0.2)
        client.fall_silent()
        await self.gone(client, "client-lost", within=LONGEST, up=size)
        client.close()

    async def fault_client_vanishes_in_mid_download(self):
        """Unacknowledged output detects it."""
        client = await self.connect("busy")
        for _ in range(self.random.randint(1, 5)):
            assert await client.receive()
        client.fall_silent()
        await self.gone(client, "client-lost", within=LONGEST, up=0)
        client.close()
