"""Waits with a time limit. Used by actors and rooms."""

import asyncio


async def until(condition, within, what, every=0.005):
    """Calls `condition` repeatedly until its result is true, and returns the result."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not (answer := condition()):
        if loop.time() > end:
            raise AssertionError(f"not within {within} s: {what}")
        await asyncio.sleep(every)
    return answer


async def cancelled(task):
    """Ends a task, whatever it waits for, and ignores its errors: it was in the middle of a fault."""
    for _ in range(100):
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)
        if task.done():
            break
    assert task.done(), "a task that does not end"
    if not task.cancelled():
        task.exception()
