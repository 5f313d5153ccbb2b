"""The configuration changes during traffic: routes are added, changed and removed, and other routes do not notice."""

import os

from actors.clients import LocalClient
from actors.devices import PtyDevice
from actors.waits import until
from rooms.admission import EchoRoom
from rooms.shared_line import SharedLineRoom


class ReloadRoom(EchoRoom):
    """Changes of a route that leads to an echo."""

    name = "extra"

    def routes(self):
        return {self.name: self.extra()}

    def extra(self):
        return self.echo_route(max=self.random.randint(3, 9), backlog=self.random.choice([0, 4096]))

    def changing(self, **options):
        """By a signal or by the command, at random."""
        return self.gateway.changing(by=self.random.choice(["signal", "command"]), **options)

    async def listens(self):
        await until(lambda: self.gateway.is_listening(self.name), 10, "listening on all that the configuration says")

    async def guest(self):
        client = await self.connect(self.name)
        await self.echoes(client)
        return client

    async def stays(self, client):
        await self.echoes(client)
        await self.leave(client, "client-lost")

    async def fault_route_removed_and_added(self):
        client = await self.guest()
        async with self.changing() as routes:
            del routes[self.name]
        await client.words()
        await self.gone(client, "route-removed")
        client.close()
        async with self.changing() as routes:
            routes[self.name] = self.extra()
        await self.listens()

    async def with_listeners(self, listen):
        client = await self.guest()
        async with self.changing() as routes:
            before, routes[self.name]["listen"] = routes[self.name]["listen"], listen
        await self.listens()
        await self.echoes(client)  # a connected client stays
        return client, before

    async def back_to(self, listen, client):
        async with self.changing() as routes:
            routes[self.name]["listen"] = listen
        await self.listens()
        await self.stays(client)

    async def fault_listener_moved(self):
        client, before = await self.with_listeners("tcp://127.0.0.1:0?role=writer")
        await self.back_to(before, client)

    async def fault_listener_added_and_removed(self):
        """A client keeps its session when its listener is removed."""
        path = f"{self.folder}/{self.name}.listener"
        client, before = await self.with_listeners(["tcp://127.0.0.1:0", "unix://" + path])
        local = await LocalClient.connect(self.gateway, self.name, path)
        await self.echoes(client)
        await self.echoes_on(local)
        async with self.changing() as routes:
            routes[self.name]["listen"] = before
        await self.listens()
        await until(lambda: not os.path.exists(path), 10, "the socket's file being gone")
        await self.echoes_on(local)
        local.close()
        await self.gone(local, "client-left", "client-lost", up=local.sent)
        await self.stays(client)

    async def echoes_on(self, client):
        """The client also receives the echo of what others sent before."""
        word = self.word()
        await client.send(word)
        heard = b""
        while word not in heard:
            data = await client.receive(within=20)
            assert data, f"ended before the echo: {heard}"
            heard += data

    async def fault_policy_changed(self):
        client = await self.guest()
        async with self.changing() as routes:
            routes[self.name]["clients"] = self.extra()["clients"] | self.some_policy()
        await self.stays(client)
        async with self.changing() as routes:
            routes[self.name]["clients"] = self.extra()["clients"]

    def some_policy(self):
        return self.random.choice([
            {"slow": self.random.choice(["block", "disconnect", "drop-oldest"])},
            {"writers": "one", "takeover": self.random.choice(["newest", "refuse", "idle:1s"])},
            {"when-full": self.random.choice(["queue", "replace-oldest"])},
            {"max": 1},  # connected clients stay
            {"buffer": self.random.choice(["4KiB", "1MiB"])},
            {"idle-timeout": "1h", "keepalive": False},
            {"banner": "welcome\\n", "notices": False},
        ])

    async def fault_address_denied(self):
        client = await self.guest()
        async with self.changing() as routes:
            routes[self.name]["clients"] |= {"deny": ["127.0.0.0/8"]}
        await client.words()
        await self.gone(client, "denied", up=client.sent)
        client.close()
        async with self.changing() as routes:
            del routes[self.name]["clients"]["deny"]

    async def fault_listener_for_monitors_only(self):
        """Clients that may no longer write are sent away; new ones may read."""
        client = await self.guest()
        async with self.changing() as routes:
            routes[self.name]["listen"] += "?role=monitor"
        await client.words()
        await self.gone(client, "denied", up=client.sent)
        client.close()
        monitor = await self.connect(self.name)
        await monitor.send(b"hush")
        await monitor.all_is_there()
        monitor.reset()
        counts = await self.gone(monitor, "client-lost", up=0)
        assert counts["dropped"] >= 4  # and perhaps bytes that were kept for it
        async with self.changing() as routes:
            routes[self.name]["listen"] = self.extra()["listen"]

    async def fault_writers_forbidden(self):
        """From then on what they send is dropped."""
        client = await self.guest()
        before = client.sent
        async with self.changing() as routes:
            routes[self.name]["clients"]["writers"] = "none"
        await client.send(self.word())
        await client.all_is_there()
        client.reset()
        await self.gone(client, "client-lost", up=before, dropped=client.sent - before)
        async with self.changing() as routes:
            del routes[self.name]["clients"]["writers"]

    async def fault_link_of_another_kind(self):
        """Its clients can't stay: it becomes another route."""
        client = await self.guest()
        async with self.changing() as routes:
            routes[self.name]["link"] = "per-client"
            routes[self.name]["clients"] = {}
        await client.words()
        await self.gone(client, "route-removed", up=client.sent)
        client.close()
        await self.listens()
        client = await self.guest()
        async with self.changing() as routes:
            routes[self.name] = self.extra()
        await client.words()
        await self.gone(client, "route-removed", up=client.sent)
        client.close()
        await self.listens()

    async def fault_defaults_changed(self):
        """This changes every route, and no link or session is affected."""
        client = await self.guest()
        async with self.changing():
            self.gateway.defaults["device"]["drain"] = f"{self.random.randint(5, 20)}s"
        await self.stays(client)

    async def fault_broken_configuration(self):
        client = await self.guest()
        async with self.changing(outcome="reload failed") as routes:
            routes[self.name]["listen"] = "tpc://nowhere"
        await self.stays(client)


class ChangedRoom(SharedLineRoom):
    """Changes of a line in full traffic, which loses nothing."""

    def make_device(self):
        return PtyDevice(f"{self.folder}/{self.route}")

    def __init__(self, *args):
        super().__init__(*args)
        self.elsewhere = PtyDevice(f"{self.folder}/{self.route}-2")

    async def fault_line_settings_changed(self):
        """They are applied to the open port."""
        opened = self.gateway.links[self.route, "link open"]

        async def during(_):
            for _ in range(2):
                async with self.gateway.changing() as routes:
                    routes[self.route]["endpoint"] = {
                        "url": self.device.url, "baud": self.random.choice([9600, 115200, 921600]), "data": 8
                    }
                await self.some_time(0, 0.1)

        await self.traffic(during)
        assert self.gateway.links[self.route, "link open"] == opened, "the port was opened again"

    async def fault_policies_changed(self):
        async def during(writers):
            self.line.pace = "flood"
            for _ in range(2):
                writers[0].reads = not writers[0].reads  # so that some output has to be kept
                async with self.gateway.changing() as routes:
                    routes[self.route]["clients"] = {
                        "max": self.random.randint(1, 9), "slow": "block", "buffer": self.random.choice(["4KiB", "64KiB", "1MiB"])
                    }
                    routes[self.route]["device"] |= {"linger": self.random.choice(["0", "5s"]), "drain": "10s"}
                await self.some_time(0, 0.1)
            async with self.gateway.changing() as routes:
                routes[self.route]["clients"] = dict(self.clients)

        await self.traffic(during)

    async def fault_endpoint_changed(self):
        """The link moves to another device, and its clients with it. What they send arrives at one or the other."""

        async def during(writers):
            for writer in writers:
                await writer.pause()
            await self.hear_all(writers)
            old, new = self.device, self.elsewhere
            new.appear()
            opened = self.gateway.links[self.route, "link open"]
            async with self.gateway.changing() as routes:
                for writer in writers:
                    await writer.client.send(writer.next_piece(20000))
                routes[self.route]["endpoint"] = new.url
                await self.some_time(0, 0.02)
            await until(lambda: self.gateway.links[self.route, "link open"] > opened, 10, "the link to the other device")
            while data := old.read():
                self.line.sorter.take(data)
            self.device = self.line.device = new
            self.elsewhere = old
            old.vanish()
            for writer in writers:
                writer.is_sending = True

        await self.traffic(during)
