#!/usr/bin/env python3
"""Faults under traffic, by a seed: every byte's place and every session's ending is checked. README.md has the details.

Prints what was moved and done; exit code 1 at the first thing that is not as it must be, with the seed and the log's end.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time

import rooms
from actors import Client, Gateway, until

WORDS = """client-left endpoint-left client-lost open-failed device-lost full queue-left denied replaced kicked idle
too-slow route-removed shutdown internal""".split()


class Calm:
    """Rooms share it while they work; one that must be alone waits until nobody does."""

    def __init__(self):
        self._busy, self._alone = 0, False
        self._changed = asyncio.Condition()

    async def enter(self, alone):
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone)
            if alone:
                self._alone = True
                await self._changed.wait_for(lambda: self._busy == 0)
            else:
                self._busy += 1

    async def leave(self, alone):
        async with self._changed:
            if alone:
                self._alone = False
            else:
                self._busy -= 1
            self._changed.notify_all()


class Run:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.end = time.monotonic() + options.seconds
        self.calm = Calm()

    async def work(self, room):
        alone = getattr(room, "is_alone", False)
        while time.monotonic() < self.end and not self.failed.is_set():
            name = room.next_fault()
            if alone and room.done[name] and not self.options.seconds > 60:
                # One of a kind is enough for a short run: all others wait meanwhile.
                if all(room.done.values()):
                    return
            await self.calm.enter(alone)
            try:
                await asyncio.wait_for(room.faults()[name](), 180)
                room.done[name] += 1
            except BaseException as error:
                if not isinstance(error, asyncio.CancelledError):
                    self.failed.set()
                    self.failure = f"{type(room).__name__}, fault '{name}': {type(error).__name__}: {error}"
                    import traceback

                    traceback.print_exc()
                raise
            finally:
                await self.calm.leave(alone)
            if alone:
                await asyncio.sleep(max(1.0, self.options.seconds / 400))

    async def run(self):
        self.failed, self.failure = asyncio.Event(), None
        with tempfile.TemporaryDirectory(prefix="bw-far-") as folder:
            box = []
            names = self.options.rooms.split(",") if self.options.rooms else None
            all_rooms = [
                kind(box, random.Random(self.random.random()), folder)
                for kind in rooms.ALL
                if not names or kind.__name__.removesuffix("Room").lower() in names
            ]
            routes = {"last": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}
            for room in all_rooms:
                if hasattr(room, "prepare"):
                    await room.prepare()
                routes |= room.routes()
            self.gateway = Gateway(self.options.binary, routes, self.options.log)
            box.append(self.gateway)
            try:
                return await self.judge(all_rooms)
            finally:
                self.gateway.close()

    async def judge(self, all_rooms):
        await self.gateway.start()
        for room in all_rooms:
            await room.start()
        await asyncio.sleep(1)
        descriptors, memory = self.gateway.descriptors(), None
        began = time.monotonic()
        workers = [asyncio.create_task(self.work(room)) for room in all_rooms]
        watcher = asyncio.create_task(self.watch(all_rooms, began))
        while not all(worker.done() for worker in workers) and not self.failed.is_set():
            await asyncio.sleep(0.2)
            if memory is None and time.monotonic() - began > self.options.seconds / 4:
                memory = self.gateway.memory()
        watcher.cancel()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        problems = [self.failure] if self.failure else []
        if not problems:
            problems += await self.end_well(all_rooms, descriptors, memory)
        problems += self.gateway.problems
        self.report(all_rooms, time.monotonic() - began, problems)
        return not problems

    async def end_well(self, all_rooms, descriptors, memory):
        """What was taken is given back; the last client hears of the shutdown."""
        problems = []
        for room in all_rooms:
            await room.stop()
        try:
            await until(lambda: self.gateway.descriptors() <= descriptors, 45, "descriptors as before", every=0.5)
        except AssertionError:
            problems.append(f"descriptors: {descriptors} before, {self.gateway.descriptors()} after")
        after = self.gateway.memory()
        print(f"descriptors {descriptors} before and {self.gateway.descriptors()} after; memory {memory} KiB early, {after} at the end")
        if memory and self.options.seconds >= 60 and after > memory * 1.25 + 4096:
            problems.append(f"memory: {memory} KiB early, {after} KiB at the end")
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
        if never := self.gateway.opened - self.gateway.over:
            problems.append(f"{len(never)} sessions never ended, such as {sorted(never)[:5]}")
        if not self.options.rooms:
            problems += [f"no session ended {word}" for word in WORDS if not self.gateway.endings[word]]
        return problems

    async def watch(self, all_rooms, began):
        while True:
            await asyncio.sleep(30)
            moved = sum(room.moved for room in all_rooms)
            print(
                f"{time.monotonic() - began:6.0f} s  {moved / (1 << 30):.2f} GiB, "
                f"{sum(sum(room.done.values()) for room in all_rooms)} faults, {self.gateway.memory()} KiB",
                flush=True,
            )

    def report(self, all_rooms, seconds, problems):
        moved = sum(room.moved for room in all_rooms)
        torn = sum(room.lost_by_fault for room in all_rooms)
        for room in all_rooms:
            done = ", ".join(f"{name} {count}" for name, count in room.done.items())
            print(f"{type(room).__name__.removesuffix('Room').lower()}: {done}")
        print("endings: " + ", ".join(f"{word} {self.gateway.endings[word]}" for word in WORDS))
        print(
            f"seed {self.options.seed}: {seconds:.0f} s, {moved} bytes moved ({moved / (1 << 30):.2f} GiB), "
            f"{sum(sum(room.done.values()) for room in all_rooms)} faults done, {torn} bytes torn off with a cable, "
            f"{'0 bytes lost' if not problems else 'NOT AS IT MUST BE'}"
        )
        for problem in problems:
            print(f"problem: {problem}")
        if problems:
            print("the log's end:", *list(self.gateway.tail)[-40:], sep="\n  ")


def main():
    parser = argparse.ArgumentParser(prog="Tests/Faults/run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=25, help="how long (default 25)")
    parser.add_argument("--seed", type=int, help="another one each time when nothing is said; it is printed")
    parser.add_argument("--rooms", help="only these: line,server,slow,discard,close,drop,pen,proxy,door,reload,limit")
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
