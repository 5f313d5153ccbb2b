"""Programs of a library user (Tests/Library/probe), without a gateway."""
import json
import os
from collections import Counter

import pytest

from radio import NUS, NUS_SERVICE, PRIVATE, SERIAL
from rig import library_probe
from test_left import no_link_is_left

pytestmark = pytest.mark.usefixtures("replugged")

GATT = f"ble://{NUS_SERVICE}/{NUS}?address-type=random"
COUNT = int(os.environ.get("OPENINGS", "150"))  # Tests/run --long: 300
LOOKED_UP = f"rfcomm://{SERIAL}?uuid={PRIVATE}"


def asks(guest, url: str):
    assert guest.ask(f"{library_probe()} ask '{url}' hello", 60) == "hello\n"


@pytest.mark.parametrize("url", [GATT, f"ble://{NUS_SERVICE}?name=test-nus", LOOKED_UP], ids=["ble", "ble by name", "rfcomm"])
def test_the_program_of_the_readme_exchanges_bytes_with_a_device(air, guest, url):
    asks(guest, url)


def keys(guest) -> str:
    """The keys of bonds that the kernel has."""
    return guest.ask("cd /sys/kernel/debug/bluetooth/hci0 && cat link_keys long_term_keys identity_resolving_keys")


@pytest.mark.timeout(500)
@pytest.mark.parametrize("url, steps", [
    (LOOKED_UP, ["getting an adapter ready", "connecting to the service list", "connecting to channel 5"]),
    (GATT, ["getting an adapter ready", "connecting to C0:", "looking up service"]),
], ids=["rfcomm", "ble"])
def test_openings_cancelled_at_random_moments_leave_nothing(air, guest, figure, url, steps):
    bonds = keys(guest)
    done = guest.run(f"{library_probe()} cancel '{url}' {COUNT}", 450)
    print(done.stdout.decode(), done.stderr.decode())
    assert done.returncode == 0
    result = json.loads(done.stdout)
    cancelled = result["cancelled"]
    assert result["failed"] == 0 and result["opened"] + sum(cancelled.values()) == COUNT
    for step in steps:
        assert any(name.startswith(step) and count > 0 for name, count in cancelled.items()), f"never cancelled: {step}"
    before, after = map(Counter, result["descriptors"])
    assert set(after - before) <= {"anon_inode:[timerfd]"}  # Dispatch makes one when the program first waits, and keeps it
    before, after = result["threads"]
    assert after <= before + 1  # of Dispatch's, which come and go
    no_link_is_left(guest, air)
    assert keys(guest) == bonds
    assert guest.run("ls /var/lib/baudway").returncode != 0  # where a gateway keeps bonds
    scheme = url.split(":")[0]
    figure(f"{scheme}: from a cancellation to its end, median", result["median"], "ms", aim=50)
    figure(f"{scheme}: from a cancellation to its end, longest", result["slowest"], "ms", aim=50)
    assert result["slowest"] < 500
    asks(guest, url)
