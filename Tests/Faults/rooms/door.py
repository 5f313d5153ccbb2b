"""Who gets in, in which order, and who must go. Simulated devices behind, each route with a policy of its own."""

from rooms.room import Room


class EchoRoom(Room):
    """What a client says comes back, once it has a place."""

    clients = {}

    def routes(self):
        return {self.title(): self.echo_route(**self.clients)}

    def echo_route(self, **clients):
        return {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": clients}

    def word(self):
        return f"<{self.random.randrange(1 << 40):x}>".encode()

    async def hears(self, client, word):
        """After at most a notice."""
        heard = b""
        while word not in heard:
            data = await client.receive(within=20)
            assert data, f"{client.route}: ended before the echo: {heard}"
            heard += data
        assert heard.endswith(word), heard
        self.moved += 2 * len(word)

    async def echoes(self, client):
        """Whether the client has the device."""
        word = self.word()
        await client.send(word)
        await self.hears(client, word)

    async def leave(self, client, *words, **counts):
        client.reset()
        await self.gone(client, *words, **counts)


class QueueRoom(EchoRoom):
    """They get places in the order they came, except for those who leave meanwhile."""

    clients = {"max": 2, "when-full": "queue"}

    async def arrive(self):
        """What he sends before he has a place waits with him. His word comes back to him alone, for each hears both."""
        client = await self.connect("queue")
        client.word = self.word()
        await client.send(client.word)
        return client

    async def has_place(self, client):
        heard = b""
        while client.word not in heard:
            data = await client.receive(within=20)
            assert data, f"ended before the echo: {heard}"
            heard += data
        self.moved += 2 * len(client.word)

    async def told_to_wait(self, client):
        heard = await client.receive(within=20)
        assert heard and b"queue" in heard, f"no place in the queue was told: {heard}"

    async def come(self, count):
        here = [await self.arrive() for _ in range(2)]
        for client in here:
            await self.has_place(client)
        waiting = [await self.arrive() for _ in range(count)]
        for client in waiting:
            await self.told_to_wait(client)
        return here, waiting

    async def fault_places_become_free(self):
        here, waiting = await self.come(self.random.randint(2, 6))
        while here:
            client = here.pop(self.random.randrange(len(here)))
            await self.leave(client, "client-lost", up=len(client.word))
            if waiting:
                here.append(waiting.pop(0))
                await self.has_place(here[-1])
                for other in waiting:
                    assert other.key not in self.gateway.numbers, "somebody was let in before his turn"

    async def fault_waiting_clients_leave(self):
        here, waiting = await self.come(self.random.randint(2, 6))
        self.random.shuffle(waiting)
        for client in waiting:
            client.close() if self.random.random() < 0.5 else client.reset()
            await self.gone(client, "queue-left", up=0, down=0)
        for client in here:
            await self.leave(client, "client-lost", up=len(client.word))


class ReplaceRoom(EchoRoom):
    """Who came first goes first."""

    clients = {"max": 3, "when-full": "replace-oldest"}

    async def fault_oldest_is_replaced(self):
        here = []
        for _ in range(self.random.randint(4, 10)):
            here.append(await self.connect("replace"))
            await self.echoes(here[-1])
            if len(here) > 3:
                oldest = here.pop(0)
                await oldest.words()
                await self.gone(oldest, "replaced", up=oldest.sent)
                oldest.close()
        for client in here:
            await self.leave(client, "client-lost", up=client.sent)


class DoorRoom(EchoRoom):
    """Addresses that are not wanted, and those who have been here long enough."""

    def routes(self):
        return {
            "denied": self.echo_route(deny=["127.0.0.66"]),
            "idle": self.echo_route(**{"idle-timeout": "1s"}),
            "kick": self.echo_route(),
        }

    async def fault_unwanted_address(self):
        client = await self.connect("denied", source="127.0.0.66")
        await client.words()
        await self.gone(client, "denied", up=0, down=0)
        client.close()

    async def fault_nothing_said_for_long(self):
        client = await self.connect("idle")
        await self.echoes(client)
        await client.words()
        await self.gone(client, "idle")
        client.close()

    async def fault_all_are_kicked(self):
        clients = [await self.connect("kick") for _ in range(3)]
        for client in clients:
            await self.echoes(client)
        await self.gateway.kick("kick")
        for client in clients:
            await client.words()
            await self.gone(client, "kicked")
            client.close()
