#!/usr/bin/env python3
"""Faults under traffic, from a seed: checks the position of every byte and the ending of every session. README.md has
the details.

Prints what was moved and done; exit code 1 at the first failed check, with the seed and the log's end.
"""

import argparse
import asyncio
import collections
import itertools
import os
import random
import sys
import tempfile
import time
import traceback

import rooms
from actors.clients import Client
from actors.gateway import Gateway
from actors.waits import until

WORDS = """client-left endpoint-left client-lost open-failed device-lost full queue-left denied replaced kicked idle
too-slow route-removed shutdown internal""".split()


# Each kind of fault belongs to one room. A short run does each at least once, the long run the promised number of
# times.
LONG, OFTEN = 1800, 100
MANY_ROOMS = 120  # from this many seconds on, a room has as many copies as it asks for


class Run:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.needed = OFTEN if options.seconds >= LONG else 1
        self.failed, self.failure = asyncio.Event(), None

    def copies(self, kind):
        return kind.copies if self.options.seconds >= MANY_ROOMS else 1

    async def work(self, room):
        """One scenario after another; after the time is over, only faults that were not done often enough."""
        while not self.failed.is_set():
            name = room.next_fault()
            if time.monotonic() > self.end:
                name = room.missing(-(-self.needed // self.copies(type(room))))
                if name is None or time.monotonic() > self.latest:
                    return
            room.under_way[name] += 1
            try:
                await asyncio.wait_for(room.faults[name](), 180)
                room.done[name] += 1
            except Exception as error:
                self.failed.set()
                self.failure = self.failure or f"{room.title()}, fault '{name}': {type(error).__name__}: {error}"
                traceback.print_exc()
                raise
            finally:
                room.under_way[name] -= 1

    async def run(self):
        with tempfile.TemporaryDirectory(prefix="bw-far-") as folder:
            self.gateway = Gateway(self.options.binary, self.options.log)
            names = self.options.rooms.split(",") if self.options.rooms else [kind.title() for kind in rooms.ALL]
            self.rooms = [
                kind(self.gateway, random.Random(self.random.random()), folder, copy)
                for kind in rooms.ALL
                if kind.title() in names
                for copy in range(self.copies(kind))
            ]
            self.gateway.routes["last"] = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
            for room in self.rooms:
                await room.prepare()
                self.gateway.routes |= room.routes()
            self.gateways = [self.gateway, *(one for room in self.rooms for one in room.gateways)]
            try:
                return await self.judge()
            finally:
                for gateway in self.gateways:
                    gateway.close()

    async def judge(self):
        await self.gateway.start()
        for room in self.rooms:
            await room.start()
        await asyncio.sleep(1)
        self.before = [gateway.descriptors() for gateway in self.gateways]
        self.early = None
        began = time.monotonic()
        self.end = began + self.options.seconds
        self.latest = self.end + max(60, self.options.seconds / 10)
        workers = [asyncio.create_task(self.work(room)) for room in self.rooms for _ in range(room.workers)]
        watcher = asyncio.create_task(self.watch(began))
        while not all(worker.done() for worker in workers) and not self.failed.is_set():
            await asyncio.sleep(0.2)
            if self.early is None and time.monotonic() - began > self.options.seconds / 4:
                self.early = [gateway.memory() for gateway in self.gateways]
        watcher.cancel()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        problems = [self.failure] if self.failure else await self.end_well()
        for gateway in self.gateways:
            problems += gateway.problems
        self.report(time.monotonic() - began, problems)
        return not problems

    async def end_well(self):
        """Resources are released, every kind of fault was done, and every ending occurred."""
        problems = []
        for room in self.rooms:
            await room.stop()
        for gateway, before, early in zip(self.gateways, self.before, self.early):
            problems += await self.gave_back(gateway, before, early)
        problems += await self.status_agrees()
        problems += await self.shut_down()
        for gateway in self.gateways[1:]:
            if code := await gateway.stop():
                problems.append(f"exit code {code}")
        for gateway in self.gateways:
            if never := gateway.opened - gateway.over:
                problems.append(f"{len(never)} sessions never ended, such as {sorted(never)[:5]}")
        rare = [f"{name} {count}" for name, count in self.kinds().items() if count < self.needed]
        if rare:
            problems.append(f"done less than {self.needed} times: " + "; ".join(rare))
        if not self.options.rooms:
            problems += [f"no session ended {word}" for word, count in self.endings().items() if not count]
        return problems

    async def gave_back(self, gateway, before, early):
        problems = []
        try:
            # Each lane has an inotify instance once it has watched something.
            await until(lambda: gateway.descriptors() <= before + 2, 45, "descriptors as before", every=0.5)
        except AssertionError:
            problems.append(f"descriptors: {before} before, {gateway.descriptors()} after")
        after = gateway.memory()
        print(f"descriptors {before} before and {gateway.descriptors()} after; memory {early} KiB early, {after} at the end")
        if self.options.seconds >= 60 and after > early * 1.25 + 4096:
            problems.append(f"memory: {early} KiB early, {after} KiB at the end")
        return problems

    async def status_agrees(self):
        """`status` counts the same words per ending as the log."""
        shown, told = await self.gateway.endings_in_status(), dict(self.gateway.endings_now)
        differ = sorted(key for key in {*shown, *told} if shown.get(key) != told.get(key))
        words = len({word for _, word in shown})
        print(f"status tells of {sum(shown.values())} endings by {words} words; {len(differ)} routes and words differ from the log")
        return [f"{key}: {shown.get(key, 0)} in status, {told.get(key, 0)} in the log" for key in differ]

    async def shut_down(self):
        """The last client sees the shutdown."""
        problems = []
        last = await Client.connect(self.gateway, "last")
        await last.send(b"x")
        await last.receive()
        stopping = asyncio.create_task(self.gateway.stop())
        while await last.receive():
            pass
        last.close()
        entry = await self.gateway.ending(last)
        if entry["reason"] != "shutdown":
            problems.append(f"the last client's session ended {entry['reason']}")
        if code := await stopping:
            problems.append(f"exit code {code}")
        return problems

    def endings(self):
        return {word: sum(gateway.endings[word] for gateway in self.gateways) for word in WORDS}

    def kinds(self):
        """How often each kind of fault was done."""
        counts = collections.Counter()
        for room in self.rooms:
            for name, count in room.done.items():
                counts[f"{room.title()}: {name}"] += count
        return counts

    @property
    def moved(self):
        return sum(room.moved for room in self.rooms)

    @property
    def done(self):
        return sum(sum(room.done.values()) for room in self.rooms)

    async def watch(self, began):
        while True:
            await asyncio.sleep(30)
            print(
                f"{time.monotonic() - began:6.0f} s  {self.moved / (1 << 30):.2f} GiB, "
                f"{self.done} faults, {self.gateway.memory()} KiB",
                flush=True,
            )

    def report(self, seconds, problems):
        kinds = self.kinds()
        for title, group in itertools.groupby(kinds.items(), lambda kind: kind[0].partition(":")[0]):
            print(f"{title}: " + ", ".join(f"{name.partition(': ')[2]} {count}" for name, count in group))
        rarest = "; ".join(f"{name} {count}" for name, count in kinds.most_common()[:-6:-1])
        print(f"{len(kinds)} kinds of faults, each at least {min(kinds.values())} times; the rarest: {rarest}")
        print("endings: " + ", ".join(f"{word} {count}" for word, count in self.endings().items()))
        print(
            f"seed {self.options.seed}: {seconds:.0f} s, {self.moved} bytes moved ({self.moved / (1 << 30):.2f} GiB), "
            f"{self.done} faults done, {sum(room.lost_by_fault for room in self.rooms)} bytes torn off with a cable, "
            f"{'0 bytes lost' if not problems else 'NOT AS IT MUST BE'}"
        )
        for problem in problems:
            print(f"problem: {problem}")
        if problems:
            print("the log's end:", *list(self.gateway.tail)[-40:], sep="\n  ")


def main():
    names = ",".join(kind.title() for kind in rooms.ALL)
    parser = argparse.ArgumentParser(prog="Tests/Faults/run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=25, help="how long (default 25)")
    parser.add_argument("--seed", type=int, help="another one each time when nothing is said; it is printed")
    parser.add_argument("--rooms", help=f"only these: {names}")
    parser.add_argument("--log", help="keep the gateway's log here")
    parser.add_argument("--binary", default=os.environ.get("BAUDWAY"), help="the gateway; else $BAUDWAY")
    options = parser.parse_args()
    if not options.binary:
        parser.error("no gateway: name its binary in BAUDWAY, or use ./run, which builds it")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {options.seed}", flush=True)
    sys.exit(0 if asyncio.run(Run(options).run()) else 1)


if __name__ == "__main__":
    main()
