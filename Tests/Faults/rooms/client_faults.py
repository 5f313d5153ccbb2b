"""What clients do. A part of rooms with a shared line."""

import asyncio
import contextlib

from actors.waits import until


class ClientFaults:
    """At the device, `traffic` continues meanwhile and loses nothing."""

    async def fault_client_resets(self):
        async def during(writers):
            victim = await self.start_writer(3)
            await self.some_time()
            await victim.leave("reset")
            await self.has_gone(victim, *self.left)

        await self.traffic(during)

    async def fault_client_sends_and_closes(self):
        """All that it sent is delivered, whatever the device is doing."""

        async def during(writers):
            client = await self.join()
            start = self.random.randrange(1 << 30)
            arrives = self.line.sorter.expect(3, start)
            size = self.random.randint(1, 200_000)
            sending = asyncio.create_task(client.send(arrives.pattern.piece(start, size)))
            while not sending.done():
                with contextlib.suppress(TimeoutError):
                    await client.receive(within=0.01)  # bytes unread at the close would turn it into a reset
            await sending
            client.finish()
            while arrives.received < size:
                self.line.check()
                data = await client.receive(within=30)
                assert data, f"cut off after {arrives.received} of {size} bytes"
            client.close()
            await self.gone(client, "client-left", "client-lost", up=size)
            self.moved += size

        await self.traffic(during)

    async def fault_client_reads_in_jerks(self):
        async def during(writers):
            for _ in range(5):
                writers[0].reads = False
                await asyncio.sleep(self.random.random() * 0.02)
                writers[0].reads = True
                await asyncio.sleep(self.random.random() * 0.05)

        await self.traffic(during, pace="dribble")

    async def fault_one_client_too_many(self):
        async def during(writers):
            extra = await self.connect(self.route)
            words = await extra.words()
            assert "full" in words, words
            await self.gone(extra, "full", up=0, down=0)
            extra.close()

        await self.traffic(during, count=4)

    async def fault_client_is_kicked(self):
        """Its bytes on the way stop somewhere, as counted; the others notice nothing."""

        async def during(writers):
            victim = await self.start_writer(3)
            await self.some_time()
            await self.gateway.kick(self.route, victim.client)
            await self.has_gone(victim, "kicked")

        await self.traffic(during)

    async def fault_client_never_stops(self):
        """The others still get their turns; in the end it is kicked."""

        async def during(writers):
            greedy = await self.start_writer(3)
            greedy.is_greedy = True
            before = [writer.arrives.received for writer in writers]
            await self.some_time(0.2, 0.5)

            def all_have_had_turns():
                return all(writer.arrives.received > had for writer, had in zip(writers, before))

            await until(all_have_had_turns, 20, "everybody having turns beside one who never stops")
            await self.gateway.kick(self.route, greedy.client)
            await self.has_gone(greedy, "kicked")

        await self.traffic(during)

    async def fault_client_finishes_and_listens(self):
        async def during(writers):
            await writers[0].pause()
            writers[0].client.finish()
            await self.some_time()

        writers = await self.writers(2)
        self.line.pace = "normal"
        await during(writers)
        await writers[1].pause()
        await self.hear_all(writers)
        for writer in writers:
            await self.part(writer, words=("client-lost", "client-left"))
