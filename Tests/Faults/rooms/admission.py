"""Which clients are accepted, in which order, and which are sent away. Simulated devices, each route with its own
policy."""

from rooms.room import Room


class EchoRoom(Room):
    """What a client sends comes back, once it has a slot."""

    clients = {}

    def routes(self):
        return {self.title(): self.echo_route(**self.clients)}

    def echo_route(self, **clients):
        return {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": clients}

    def word(self):
        return f"<{self.random.randrange(1 << 40):x}>".encode()

    async def hears(self, client, word):
        """Waits for the echo of `word`, after at most a notice."""
        heard = b""
        while word not in heard:
            data = await client.receive(within=20)
            assert data, f"{client.route}: ended before the echo: {heard}"
            heard += data
        assert heard.endswith(word), heard
        self.moved += 2 * len(word)

    async def echoes(self, client):
        """Checks that the client has the device."""
        word = self.word()
        await client.send(word)
        await self.hears(client, word)

    async def leave(self, client, *words, **counts):
        client.reset()
        await self.gone(client, *words, **counts)


class QueueRoom(EchoRoom):
    """Clients get slots in the order they came, except for those that leave meanwhile."""

    clients = {"max": 2, "when-full": "queue"}

    async def arrive(self):
        """What it sends before it has a slot waits with it. Its word is unique, because each client receives the echo
        of both."""
        client = await self.connect("queue")
        client.word = self.word()
        await client.send(client.word)
        return client

    async def gets_slot(self, client):
        heard = b""
        while client.word not in heard:
            data = await client.receive(within=20)
            assert data, f"ended before the echo: {heard}"
            heard += data
        self.moved += 2 * len(client.word)

    async def gets_queue_notice(self, client):
        heard = await client.receive(within=20)
        assert heard and b"queue" in heard, f"no place in the queue was reported: {heard}"

    async def fill_and_queue(self, count):
        here = [await self.arrive() for _ in range(2)]
        for client in here:
            await self.gets_slot(client)
        waiting = [await self.arrive() for _ in range(count)]
        for client in waiting:
            await self.gets_queue_notice(client)
        return here, waiting

    async def fault_slots_become_free(self):
        here, waiting = await self.fill_and_queue(self.random.randint(2, 6))
        while here:
            client = here.pop(self.random.randrange(len(here)))
            await self.leave(client, "client-lost", up=len(client.word))
            if waiting:
                here.append(waiting.pop(0))
                await self.gets_slot(here[-1])
                for other in waiting:
                    assert other.key not in self.gateway.numbers, "a client got a slot before its turn"

    async def fault_waiting_clients_leave(self):
        here, waiting = await self.fill_and_queue(self.random.randint(2, 6))
        self.random.shuffle(waiting)
        for client in waiting:
            client.close() if self.random.random() < 0.5 else client.reset()
            await self.gone(client, "queue-left", up=0, down=0)
        for client in here:
            await self.leave(client, "client-lost", up=len(client.word))


class ReplaceRoom(EchoRoom):
    """The oldest client is replaced first."""

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


class AdmissionRoom(EchoRoom):
    """Addresses that are refused, and clients whose session has lasted long enough."""

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

    async def fault_client_is_idle(self):
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
