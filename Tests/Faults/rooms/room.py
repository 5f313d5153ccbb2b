"""What all rooms have in common."""

from actors.clients import Client


class Room:
    """A route (or a few), its far end, and the faults that are done there: methods `fault_…`, one scenario each.

    A scenario makes its clients, does its fault in the middle of traffic, and ends when every byte and every ending is
    accounted for. `done` counts scenarios by name, `moved` the bytes that arrived in their right place.
    """

    workers = 1  # scenarios at a time; more than one only if they do not interfere
    copies = 1  # of the room in a long run, for rooms with many slow kinds of faults

    def __init__(self, gateway, random, folder, copy=0):
        self.everybodys_gateway, self.random, self.folder = gateway, random, folder
        self.route = f"{self.title()}-{copy}" if copy else self.title()
        self.moved = 0
        self.faults = {
            name.removeprefix("fault_").replace("_", " "): getattr(self, name)
            for name in dir(type(self))
            if name.startswith("fault_") and getattr(type(self), name)
        }
        self.done = dict.fromkeys(self.faults, 0)
        self.under_way = dict.fromkeys(self.faults, 0)
        self.lost_by_fault = 0  # bytes lost with a torn cable, which the sessions' counts account for

    @property
    def gateway(self):
        return self.everybodys_gateway

    @property
    def gateways(self):
        """The gateways that only this room uses."""
        return []

    @classmethod
    def title(cls):
        return cls.__name__.removesuffix("Room").lower()

    def routes(self):
        """Name → configuration."""
        raise NotImplementedError

    async def prepare(self):
        pass

    async def start(self):
        pass

    async def stop(self):
        pass

    def begun(self, name):
        return self.done[name] + self.under_way[name]

    def next_fault(self):
        """One of the faults done least often; after the first round not strictly, so that every order can occur."""
        least = min(map(self.begun, self.faults))
        return self.random.choice([name for name in self.faults if self.begun(name) <= least + (least > 0)])

    def missing(self, often):
        """The fault done least often, unless that is often enough."""
        name = min(self.faults, key=self.begun)
        return name if self.begun(name) < often else None

    async def connect(self, route, **options):
        return await Client.connect(self.gateway, route, **options)

    async def gone(self, client, *words, within=45, up=None, down=None, dropped=None):
        """Checks that the client's session has ended with one of `words` and these counts."""
        entry = await self.gateway.ending(client, within)
        found = {key: int(entry[key]) for key in ("up", "down", "dropped")}
        assert entry["reason"] in words, f"{client.route}: ended {entry['reason']}, not {'/'.join(words)}: {entry}"
        for key, want in (("up", up), ("down", down), ("dropped", dropped)):
            assert want is None or found[key] == want, f"{client.route}: {key} is {found[key]}, not {want}: {entry}"
        return found
