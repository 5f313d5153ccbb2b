"""Every byte through real drivers, both ways at once, from a client of the host to the far end of the port."""
import hashlib
import random

import pytest

from kit import receive, run_all
from rig import UART, USB, FarEnd, GuestGateway, route


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def exchange(gateway: GuestGateway, far: FarEnd, size: int, seed: int):
    """Sends random bytes both ways at once; what arrives must be what was sent."""
    up, down = random.Random(seed).randbytes(size), random.Random(-seed).randbytes(size)
    with gateway.connect("port") as client:
        gateway.event("link open")
        client.settimeout(80)
        results = run_all(
            lambda: client.sendall(up), lambda: far.write(down),
            lambda: digest(far.read(size, 80)), lambda: digest(receive(client, size)), seconds=90)
        assert results[2:] == [digest(up), digest(down)]


def test_the_uart_carries_bytes_both_ways_at_once(guest):
    size = 64 << 10
    with FarEnd(guest, "uart") as far, GuestGateway(guest, {"routes": {"port": route(f"tty://{UART}")}}) as gateway:
        exchange(gateway, far, size, 1)
    report = gateway.events("session ended")[0]
    assert (int(report["up"]), int(report["down"]), int(report["dropped"])) == (size, size, 0)


def test_the_adapter_carries_bytes_both_ways_at_once(guest, adapter):
    size = 2 << 20
    with GuestGateway(guest, {"routes": {"port": route(f"tty://{USB}?baud=3000000")}}) as gateway:
        exchange(gateway, adapter, size, 2)
    report = gateway.events("session ended")[0]
    assert (int(report["up"]), int(report["down"]), int(report["dropped"])) == (size, size, 0)
