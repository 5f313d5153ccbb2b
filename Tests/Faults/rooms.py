"""The rooms: a route (or a few), what is at its far end, and the faults that are done there, one scenario at a time.

Each scenario makes its clients, does its fault in the middle of traffic, and ends when every byte and every ending is
accounted for. Rooms run side by side. A room's `faults` are its scenarios by name.
"""

import asyncio
import contextlib
import resource
import socket

from actors import Client, Line, PtyDevice, TCPDevice, cancelled, until
from pattern import LENGTH, Pattern, Reader, Sorter

MIB = 1 << 20


class Room:
    """`done` counts the faults by name, `moved` the bytes that arrived where they belonged."""

    def __init__(self, gateway_box, random, folder):
        self.box, self.random, self.folder = gateway_box, random, folder
        self.moved = 0
        self.done = {name: 0 for name in self.faults()}
        self.lost_by_fault = 0  # bytes that a torn cable took with it, which the sessions' counts account for

    @property
    def gateway(self):
        return self.box[0]

    def routes(self):
        """Name → configuration."""
        raise NotImplementedError

    def faults(self):
        """Name → scenario."""
        return {
            name.removeprefix("fault_").replace("_", " "): getattr(self, name)
            for name in dir(type(self))
            if name.startswith("fault_") and getattr(type(self), name)
        }

    async def start(self):
        pass

    async def stop(self):
        pass

    def next_fault(self):
        """One of those done least often."""
        least = min(self.done.values())
        return self.random.choice([name for name, count in self.done.items() if count <= least + 2])

    async def connect(self, route, **options):
        return await Client.connect(self.gateway, route, **options)

    async def gone(self, client, *words, up=None, down=None, dropped=None):
        """The client's session has ended with one of `words` and these counts."""
        entry = await self.gateway.ending(client)
        found = {key: int(entry[key]) for key in ("up", "down", "dropped")}
        assert entry["reason"] in words, f"{client.route}: ended {entry['reason']}, not {'/'.join(words)}: {entry}"
        for key, want in (("up", up), ("down", down), ("dropped", dropped)):
            assert want is None or found[key] == want, f"{client.route}: {key} is {found[key]}, not {want}: {entry}"
        return found


# --- shared lines ----------------------------------------------------------------------------------------------------


class Talker:
    """A client of a line that sends its mark's pattern and checks what it hears."""

    def __init__(self, room, client, mark):
        self.room, self.client, self.mark = room, client, mark
        self.start = room.random.randrange(1 << 30)
        self.heard = Reader(room.line.down)
        self.arrives = room.line.sorter.expect(mark, self.start)
        self.is_sending = True
        self.reads = True
        self._tasks = [asyncio.create_task(self._hear()), asyncio.create_task(self._say())]
        self.is_over = False

    @property
    def said(self):
        return self.client.sent

    def next_piece(self, most=16384):
        return self.arrives.pattern.piece(self.start + self.said, self.room.random.randint(1, most))

    async def _say(self):
        with contextlib.suppress(ConnectionResetError, BrokenPipeError, OSError):
            while not self.is_over:
                if self.is_sending:
                    await self.client.send(self.next_piece())
                await asyncio.sleep(self.room.random.random() * 0.004)

    async def _hear(self):
        while True:
            while not self.reads:
                await asyncio.sleep(0.01)
            data = await self.client.receive(within=300)
            if not data:
                return
            self.heard.take(data)

    def check(self):
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception():
                raise task.exception()

    async def pause(self):
        """Sends no more, and waits until the device has all of it."""
        self.is_sending = False
        await asyncio.sleep(0.02)

        def arrived():
            self.room.line.check()
            self.check()
            return self.arrives.received + self.arrives.gaps >= self.said and self.arrives.is_whole

        await until(arrived, 60, f"all of mark {self.mark} arriving", every=0.01)
        assert self.arrives.received + self.arrives.gaps == self.said, "more arrived than was sent"

    async def leave(self, how="reset"):
        self.is_over = True
        for task in self._tasks:
            await cancelled(task)
        getattr(self.client, how)()


class LineRoom(Room):
    """A shared link with several talkers. What holds in every scenario: nothing is lost, doubled or swapped."""

    route = "line"
    clients = {"max": 4, "slow": "block"}
    device_policy = {"open": "always", "flush": "none", "absent": "hold", "retry": "50ms..200ms"}

    def make_device(self):
        return PtyDevice(f"{self.folder}/{self.route}")

    def __init__(self, *args):
        super().__init__(*args)
        self.device = self.make_device()
        seed = f"{self.route} {self.random.random()}"
        self.line = Line(
            self.device, Pattern(seed + " down"), Sorter([Pattern(seed, mark) for mark in range(4)]), self.random
        )
        self.device.appear()

    def routes(self):
        return {
            self.route: {
                "listen": "tcp://127.0.0.1:0",
                "endpoint": self.device.url,
                "link": "shared",
                "clients": self.clients,
                "device": self.device_policy,
            }
        }

    async def start(self):
        self.line.start()

    async def stop(self):
        await self.line.stop()

    async def talkers(self, count):
        return [Talker(self, await self.connect(self.route), mark) for mark in range(count)]

    async def some_time(self, least=0.1, most=0.5):
        await asyncio.sleep(self.random.uniform(least, most))
        self.line.check()

    async def hear_all(self, talkers):
        """Waits until the device has said its word and every talker has heard it."""
        await self.line.quiet()

        def heard():
            for talker in talkers:
                talker.check()
            return all(talker.heard.is_at(self.line.said) for talker in talkers)

        try:
            await until(heard, 60, "everybody hearing all the device said", every=0.01)
        except AssertionError as error:
            places = ", ".join(f"{t.client.name} at {t.heard.position} after {t.client.received} bytes" for t in talkers)
            status = await self.gateway.command("status", "--json", str(self.gateway.path))
            raise AssertionError(f"{error}: said {self.line.said}; {places}; {status[1]}") from None

    async def account(self, talkers, lost=False):
        """Everybody stops, everything has arrived, and the sessions' own counts say the same."""
        for talker in talkers:
            await talker.pause()
        await self.hear_all(talkers)
        for talker in talkers:
            received = talker.client.received
            await talker.leave()
            counts = await self.gone(talker.client, "client-lost", down=received, dropped=None if lost else 0)
            if not lost:
                assert counts["up"] == talker.said, f"{counts['up']} up of {talker.said}"
            self.moved += talker.arrives.received + received
            self.lost_by_fault += talker.arrives.gaps

    async def traffic(self, during, count=3, pace="normal"):
        """Talkers in full traffic while `during(talkers)` does its fault."""
        talkers = await self.talkers(count)
        self.line.pace = pace
        await self.some_time()
        await during(talkers)
        self.line.pace = pace
        await self.some_time()
        await self.account(talkers)

    # The device.

    async def fault_device_dribbles(self):
        async def during(_):
            self.line.pace = "dribble"
            await self.some_time(0.3, 0.8)

        await self.traffic(during)

    async def fault_device_floods(self):
        async def during(_):
            self.line.pace = "flood"
            await self.some_time(0.1, 0.4)

        await self.traffic(during)

    async def fault_device_stalls(self):
        async def during(_):
            self.line.pace = "stall"
            await self.some_time(0.3, 1.0)

        await self.traffic(during)

    async def fault_device_hangs_up_between_bytes(self):
        """Nothing is on its way when it goes, so nothing may be missing. What is sent meanwhile is kept."""

        async def during(talkers):
            for talker in talkers:
                await talker.pause()
            await self.hear_all(talkers)
            lost = self.gateway.links[self.route, "link lost"]
            self.device.vanish()
            await until(lambda: self.gateway.links[self.route, "link lost"] > lost, 10, "the link's loss")
            for talker in talkers:
                await talker.client.send(talker.next_piece(20000))
            await self.some_time(0, 0.3)
            self.device.appear()
            for talker in talkers:
                talker.is_sending = True

        await self.traffic(during)

    async def fault_device_hangs_up_and_has_another_name(self):
        await self.fault_device_hangs_up_between_bytes()

    async def fault_cable_torn_in_mid_traffic(self):
        """What the kernel held for the device goes with it: exactly that may be missing, and no more."""
        talkers = await self.talkers(3)
        before = self.line.sorter.received
        self.line.pace = "normal"
        await self.some_time()
        await self.hear_all(talkers)  # the other direction is to lose nothing
        for talker in talkers:
            talker.arrives.may_skip = True
        self.device.vanish()
        await self.some_time(0, 0.2)
        self.device.appear()
        await self.some_time(0.2, 0.5)
        for talker in talkers:
            talker.is_sending = False
        await asyncio.sleep(0.1)
        await self.settle_torn(talkers, before)

    async def settle_torn(self, talkers, before):
        """The gateway's counts of what the device took are what arrived and what was torn off; the next byte tells where."""
        await until(lambda: self.arrived_so_far(before), 30, "the line being quiet", every=0.1)
        for talker in talkers:
            await talker.client.send(talker.arrives.pattern.piece(talker.start + talker.said, 64))
        for talker in talkers:
            await until(
                lambda talker=talker: talker.arrives.position == talker.start + talker.said, 30, "the last bytes arriving"
            )
        await self.hear_all(talkers)
        for talker in talkers:
            await talker.leave()
            counts = await self.gone(talker.client, "client-lost", dropped=0, down=talker.client.received)
            assert counts["up"] == talker.said, f"{counts['up']} up of {talker.said}"
            gaps = talker.arrives.gaps
            assert talker.arrives.received + gaps == talker.said
            self.lost_by_fault += gaps
            self.moved += talker.arrives.received + talker.client.received

    def arrived_so_far(self, before):
        """True once nothing has come for a moment."""
        now = self.line.sorter.received
        same, self._last_seen = now == getattr(self, "_last_seen", None), now
        self.line.check()
        return same

    # The clients.

    async def fault_client_resets(self):
        async def during(talkers):
            victim = Talker(self, await self.connect(self.route), 3)
            await self.some_time()
            await victim.leave("reset")
            counts = await self.gone(victim.client, "client-lost")
            await until(lambda: victim.arrives.received >= counts["up"], 20, "what the victim's session put up arriving")
            assert victim.arrives.received == counts["up"] <= victim.said

        await self.traffic(during)

    async def fault_client_sends_and_closes(self):
        """All that it sent is delivered, whatever the device is doing."""

        async def during(talkers):
            client = await self.connect(self.route)
            start = self.random.randrange(1 << 30)
            arrives = self.line.sorter.expect(3, start)
            size = self.random.randint(1, 200_000)
            sending = asyncio.create_task(client.send(arrives.pattern.piece(start, size)))
            while not sending.done():
                with contextlib.suppress(TimeoutError):
                    await client.receive(within=0.01)  # what is unread at the close would make a reset of it
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
        async def during(talkers):
            for _ in range(5):
                talkers[0].reads = False
                await asyncio.sleep(self.random.random() * 0.02)
                talkers[0].reads = True
                await asyncio.sleep(self.random.random() * 0.05)

        await self.traffic(during, pace="dribble")

    async def fault_one_client_too_many(self):
        async def during(talkers):
            extra = await self.connect(self.route)
            words = await extra.words()
            assert "full" in words, words
            await self.gone(extra, "full", up=0, down=0)
            extra.close()

        await self.traffic(during, count=4)

    async def fault_client_finishes_and_listens(self):
        async def during(talkers):
            await talkers[0].pause()
            talkers[0].client.finish()
            await self.some_time()

        talkers = await self.talkers(2)
        self.line.pace = "normal"
        await during(talkers)
        await self.hear_all(talkers)
        await talkers[1].pause()
        for talker in talkers:
            received = talker.client.received
            await talker.leave()
            await self.gone(talker.client, "client-lost", "client-left", up=talker.said, down=received, dropped=0)
            self.moved += received + talker.said


class ServerRoom(LineRoom):
    """The same with a server behind the shared link, which may refuse, and whose cable may be torn with a reset."""

    route = "server"

    def make_device(self):
        return TCPDevice()

    async def fault_device_hangs_up_and_has_another_name(self):
        """A server that is away for longer, and refuses."""
        waited = self.gateway.links[self.route, "link waiting"]

        async def during(talkers):
            for talker in talkers:
                await talker.pause()
            await self.hear_all(talkers)
            self.device.vanish()
            await until(lambda: self.gateway.links[self.route, "link waiting"] > waited, 10, "a refusal")
            self.device.appear()
            for talker in talkers:
                talker.is_sending = True

        await self.traffic(during)

    async def fault_cable_torn_in_mid_traffic(self):
        talkers = await self.talkers(3)
        before = self.line.sorter.received
        self.line.pace = "normal"
        await self.some_time()
        await self.hear_all(talkers)  # the other direction is to lose nothing
        for talker in talkers:
            talker.arrives.may_skip = True
        self.device.vanish(resets=True)
        await self.some_time(0, 0.2)
        self.device.appear()
        await self.some_time(0.2, 0.5)
        for talker in talkers:
            talker.is_sending = False
        await asyncio.sleep(0.1)
        await self.settle_torn(talkers, before)


class SlowRoom(ServerRoom):
    """Who holds up others is ended. On a busy machine, where one process plays everybody, that may hit any of them."""

    route = "slow"
    clients = {"max": 4, "slow": "disconnect"}

    def faults(self):
        return {"client never reads": self.fault_client_never_reads}

    async def fault_client_never_reads(self):
        talkers = await self.talkers(2)
        stuck = await self.connect(self.route, receive_buffer=4096)
        self.line.pace = "flood"
        await self.gone(stuck, "too-slow")
        stuck.close()
        await self.some_time()
        for talker in talkers:
            talker.is_sending = False
        await asyncio.sleep(0.1)
        await self.line.quiet()

        def is_slow(talker):
            return (self.route, talker.client.name) in self.gateway.ended

        await until(
            lambda: all(is_slow(talker) or talker.heard.is_at(self.line.said) for talker in talkers),
            60, "everybody hearing all, or being ended", every=0.01,
        )
        slow = [talker for talker in talkers if is_slow(talker)]
        for talker in slow:
            await self.gone(talker.client, "too-slow")
            await talker.leave("close")
        await self.account([talker for talker in talkers if talker not in slow])


class DiscardRoom(LineRoom):
    """What is sent while the device is away is dropped, and counted to the byte."""

    route = "discard"
    device_policy = LineRoom.device_policy | {"absent": "discard"}

    async def away(self, talkers, for_a_while):
        for talker in talkers:
            await talker.pause()
        await self.hear_all(talkers)
        lost = self.gateway.links[self.route, "link lost"]
        self.device.vanish()
        await until(lambda: self.gateway.links[self.route, "link lost"] > lost, 10, "the link's loss")
        for talker in talkers:
            talker.arrives.may_skip = True
            talker.is_sending = True
        await for_a_while()
        self.device.appear()
        await self.some_time()
        await self.settle(talkers)

    async def settle(self, talkers):
        for talker in talkers:
            talker.is_sending = False
        await asyncio.sleep(0.1)
        for talker in talkers:
            await talker.client.send(talker.arrives.pattern.piece(talker.start + talker.said, 64))
        for talker in talkers:
            await until(
                lambda talker=talker: talker.arrives.position == talker.start + talker.said, 30, "the last bytes arriving"
            )
        await self.hear_all(talkers)
        for talker in talkers:
            arrives, received = talker.arrives, talker.client.received
            await talker.leave()
            await self.gone(talker.client, "client-lost", up=arrives.received, down=received, dropped=arrives.gaps)
            assert arrives.received + arrives.gaps == talker.said
            self.moved += arrives.received + received

    async def fault_device_hangs_up_between_bytes(self):
        talkers = await self.talkers(3)
        self.line.pace = "normal"
        await self.some_time()
        await self.away(talkers, lambda: self.some_time(0.1, 0.4))

    fault_device_hangs_up_and_has_another_name = fault_device_hangs_up_between_bytes
    fault_cable_torn_in_mid_traffic = None  # what is torn and what is discarded could not be told apart


class CloseRoom(LineRoom):
    """When the device goes, its clients go, and learn why; who comes meanwhile is told that it can't be opened."""

    route = "close"
    device_policy = LineRoom.device_policy | {"absent": "close", "open": "on-demand"}

    async def fault_device_hangs_up_between_bytes(self):
        talkers = await self.talkers(3)
        self.line.pace = "normal"
        await self.some_time()
        for talker in talkers:
            await talker.pause()
        await self.hear_all(talkers)
        self.device.vanish()
        for talker in talkers:
            await self.gone(talker.client, "device-lost", up=talker.said, down=talker.client.received, dropped=0)
            await talker.leave("close")
            self.moved += talker.said + talker.client.received
        early = await self.connect(self.route)
        await early.words()
        await self.gone(early, "open-failed", up=0, down=0)
        early.close()
        self.device.appear()
        talkers = await self.talkers(2)
        self.line.pace = "normal"
        await self.some_time()
        await self.account(talkers)

    fault_device_hangs_up_and_has_another_name = fault_device_hangs_up_between_bytes
    fault_cable_torn_in_mid_traffic = None  # as above, but for the counts


class DropRoom(ServerRoom):
    """Who is behind loses the oldest bytes, to the byte as counted; the others lose none and wait for nobody."""

    route = "drop"
    clients = {"max": 4, "slow": "drop-oldest"}

    async def fault_client_never_reads(self):
        async def during(talkers):
            victim = Talker(self, await self.connect(self.route, receive_buffer=4096), 3)
            victim.is_sending = False
            victim.heard.may_skip = True
            await self.some_time(0.05, 0.1)
            victim.reads = False
            self.line.pace = "flood"
            await self.some_time(0.3, 0.6)
            victim.reads = True
            await self.some_time(0.1, 0.3)
            await self.hear_all([*talkers, victim])
            received = victim.client.received
            await victim.leave()
            counts = await self.gone(victim.client, "client-lost", down=received)
            self.check_drops(victim, counts)
            assert counts["dropped"] > 0, "nothing was dropped"
            self.moved += received

        await self.traffic(during, count=2)

    async def talkers(self, count):
        talkers = await super().talkers(count)
        for talker in talkers:
            talker.heard.may_skip = True  # on a busy machine it may happen to any of them
        return talkers

    async def account(self, talkers, lost=False):
        for talker in talkers:
            await talker.pause()
        await self.hear_all(talkers)
        for talker in talkers:
            received = talker.client.received
            await talker.leave()
            counts = await self.gone(talker.client, "client-lost", up=talker.said, down=received)
            self.check_drops(talker, counts)
            self.moved += talker.said + received

    @staticmethod
    def check_drops(talker, counts):
        """A pattern tells its place but for whole repetitions."""
        assert (counts["dropped"] - talker.heard.gaps) % LENGTH == 0, f"{counts} with {talker.heard.gaps} missing"


class PenRoom(ServerRoom):
    """One may write. What others send is dropped and counted to the byte; everybody hears everything."""

    route = "pen"
    clients = {"max": 4, "writers": "one", "takeover": "newest"}

    def routes(self):
        routes = super().routes()
        routes["pen"]["listen"] = ["tcp://127.0.0.1:0", "tcp://127.0.0.2:0?role=monitor"]
        return routes

    def faults(self):
        return {"pen is taken": self.fault_taken, "monitor writes": self.fault_monitor}

    async def count_out(self, talker):
        """All of his bytes arrived up to some place; the rest is dropped."""
        received = talker.client.received
        await talker.leave()
        counts = await self.gone(talker.client, "client-lost", down=received)
        await until(lambda: talker.arrives.received >= counts["up"], 20, "what the session put up arriving")
        assert counts["up"] + counts["dropped"] == talker.said, f"{counts} of {talker.said}"
        assert talker.arrives.received == counts["up"]
        self.moved += received + counts["up"]
        return counts

    async def fault_taken(self):
        first = Talker(self, await self.connect(self.route), 0)
        await self.some_time()
        second = Talker(self, await self.connect(self.route), 1)
        await self.some_time()
        for talker in (first, second):
            talker.is_sending = False
        await asyncio.sleep(0.1)
        await second.pause()
        await self.hear_all([first, second])
        assert (await self.count_out(second))["dropped"] == 0
        await self.count_out(first)

    async def fault_monitor(self):
        writer = Talker(self, await self.connect(self.route), 0)
        monitor = Talker(self, await self.connect(self.route + "@2"), 1)
        self.line.pace = "normal"
        await self.some_time()
        for talker in (writer, monitor):
            talker.is_sending = False
        await writer.pause()
        await asyncio.sleep(0.1)
        await self.hear_all([writer, monitor])
        assert (await self.count_out(monitor))["up"] == 0
        assert (await self.count_out(writer))["dropped"] == 0


# --- plain proxies ---------------------------------------------------------------------------------------------------


class ProxyRoom(Room):
    """A link for each client. The far end of each is ours, too."""

    def __init__(self, *args):
        super().__init__(*args)
        self.up, self.down = Pattern(f"up {self.random.random()}"), Pattern(f"down {self.random.random()}")
        self._came = asyncio.Queue()
        self._dialling = asyncio.Lock()
        # A port where nobody listens. Bound all the same, or a connection might be given it and meet itself.
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
        """Up to `size` bytes or the end."""
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


PIECE_LIMIT = 1 << 18


# --- who gets in -----------------------------------------------------------------------------------------------------


class DoorRoom(Room):
    """Routes to simulated devices, each with a policy for who comes."""

    def routes(self):
        def echo(**clients):
            return {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": clients}

        return {
            "queue": echo(max=1, **{"when-full": "queue"}),
            "replace": echo(max=1, **{"when-full": "replace-oldest"}),
            "denied": echo(deny=["127.0.0.66"]),
            "idle": echo(**{"idle-timeout": "1s"}),
            "kick": echo(),
        }

    async def echoes(self, client):
        """Whether the client has the device: what it says comes back, after at most a notice."""
        word = f"<{self.random.randrange(1 << 40):x}>".encode()
        await client.send(word)
        heard = b""
        while word not in heard:
            data = await client.receive(within=20)
            assert data, f"{client.route}: ended before the echo: {heard}"
            heard += data
        self.moved += 2 * len(word)

    async def leave(self, client, *words):
        client.reset()
        await self.gone(client, *words)

    async def fault_queue(self):
        first = await self.connect("queue")
        await self.echoes(first)
        second = await self.connect("queue")
        third = await self.connect("queue")
        assert b"queue" in await second.receive(within=20)
        assert b"queue" in await third.receive(within=20)
        second.close()
        await self.gone(second, "queue-left", up=0, down=0)
        await self.leave(first, "client-lost")
        await self.echoes(third)
        await self.leave(third, "client-lost")

    async def fault_replace(self):
        first = await self.connect("replace")
        await self.echoes(first)
        second = await self.connect("replace")
        await self.echoes(second)
        await first.words()
        await self.gone(first, "replaced")
        first.close()
        await self.leave(second, "client-lost")

    async def fault_denied(self):
        client = await self.connect("denied", source="127.0.0.66")
        await client.words()
        await self.gone(client, "denied", up=0, down=0)
        client.close()

    async def fault_idle(self):
        client = await self.connect("idle")
        await self.echoes(client)
        await client.words()
        await self.gone(client, "idle")
        client.close()

    async def fault_kick(self):
        client = await self.connect("kick")
        await self.echoes(client)
        code, said = await self.gateway.command("kick", "--all", "kick", "--config", str(self.gateway.path))
        assert code == 0, said
        await client.words()
        await self.gone(client, "kicked")
        client.close()


# --- the gateway itself ----------------------------------------------------------------------------------------------


class ReloadRoom(Room):
    """Routes come, change and go while the other rooms are in full traffic; those must not notice."""

    def routes(self):
        return {"extra": self.extra()}

    def extra(self):
        route = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
        route["clients"] = {"max": self.random.randint(3, 9), "backlog": self.random.choice([0, 4096])}
        return route

    async def echo(self, client):
        await client.send(b"hello")
        heard = b""
        while not heard.endswith(b"hello"):
            data = await client.receive(within=20)
            assert data, "ended before the echo"
            heard += data

    async def fault_route_removed(self):
        client = await self.connect("extra")
        await self.echo(client)
        del self.gateway.routes["extra"]
        await self.gateway.reload()
        await client.words()
        await self.gone(client, "route-removed")
        client.close()
        self.gateway.routes["extra"] = self.extra()
        await self.gateway.reload()
        await until(lambda: "extra" in self.gateway.listening, 10, "the route's return")

    async def fault_listener_changed(self):
        client = await self.connect("extra")
        await self.echo(client)
        self.gateway.listening.pop("extra")
        self.gateway.routes["extra"]["listen"] = "tcp://127.0.0.3:0"
        await self.gateway.reload()
        await until(lambda: "extra" in self.gateway.listening, 10, "the new listener")
        await self.echo(client)  # whoever was there stays
        client.reset()
        await self.gone(client, "client-lost")
        self.gateway.listening.pop("extra")
        self.gateway.routes["extra"]["listen"] = "tcp://127.0.0.1:0"
        await self.gateway.reload()
        await until(lambda: "extra" in self.gateway.listening, 10, "the old listener")

    async def fault_policy_changed(self):
        client = await self.connect("extra")
        await self.echo(client)
        self.gateway.routes["extra"]["clients"] = self.extra()["clients"]
        await self.gateway.reload()
        await self.echo(client)
        client.reset()
        await self.gone(client, "client-lost")

    async def fault_broken_configuration(self):
        good = self.gateway.routes["extra"]["listen"]
        self.gateway.routes["extra"]["listen"] = "tpc://nowhere"
        await self.gateway.reload()
        self.gateway.routes["extra"]["listen"] = good
        client = await self.connect("extra")
        await self.echo(client)
        client.reset()
        await self.gone(client, "client-lost")
        self.gateway.write()


class LimitRoom(Room):
    """No descriptors, no memory. Nobody else is at work meanwhile: what they would meet is the limit, too."""

    is_alone = True

    def routes(self):
        return {
            "crowd": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": {"max": 100}},
            "big": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://flood", "clients": {"buffer": "16MiB"}},
        }

    async def fault_descriptor_limit(self):
        clients = []
        with self.gateway.limited(resource.RLIMIT_NOFILE, self.gateway.descriptors() + 3):
            for _ in range(12):
                clients.append(await self.connect("crowd"))
            await asyncio.sleep(0.2)
        served, turned_away = 0, 0
        for client in clients:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                await client.send(b"hello")
            data = await client.receive(within=20)
            if data and data.startswith(b"hello"):
                served += 1
                client.reset()
                await self.gone(client, "client-lost", up=5)
            else:
                turned_away += 1
                client.close()
        assert served >= 1 and turned_away >= 1, f"{served} served, {turned_away} turned away"
        after = await self.connect("crowd")
        await after.send(b"again")
        assert await after.receive(within=20) == b"again"
        after.reset()
        await self.gone(after, "client-lost")

    async def fault_memory_limit(self):
        # A ring of 16 MiB takes 32 MiB of addresses; what the gateway has now must do.
        with self.gateway.limited(resource.RLIMIT_AS, (self.gateway.memory("VmSize") + 4096) * 1024):
            client = await self.connect("big")
            await client.words()
            await self.gone(client, "internal")
            client.close()
        after = await self.connect("crowd")
        await after.send(b"again")
        assert await after.receive(within=20) == b"again"
        after.reset()
        await self.gone(after, "client-lost")


ALL = [LineRoom, ServerRoom, SlowRoom, DiscardRoom, CloseRoom, DropRoom, PenRoom, ProxyRoom, DoorRoom, ReloadRoom, LimitRoom]
