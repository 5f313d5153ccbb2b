"""Waiting with an end. Used by actors and rooms."""

import asyncio


async def until(condition, within, what, every=0.005):
    """Asks `condition` again and again until it says something true, which is returned."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not (answer := condition()):
        if loop.time() > end:
            raise AssertionError(f"not within {within} s: {what}")
        await asyncio.sleep(every)
    return answer


async def cancelled(task):
    """Ends a task, whatever it is waiting for, and lets its errors be: it was in the middle of a fault."""
    for _ in range(100):
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)
        if task.done():
            break
    assert task.done(), "a task that does not end"
    if not task.cancelled():
        task.exception()
