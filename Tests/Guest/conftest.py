"""One emulated machine for all tests: booting takes some seconds, and it uses a whole core while it works."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "EndToEnd"))

import machine as emulated  # noqa: E402
import rig  # noqa: E402
from figures import add_aims, figure, pytest_terminal_summary  # noqa: E402,F401


def pytest_addoption(parser):
    add_aims(parser)


def pytest_collection_modifyitems(items):
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def booted():
    guest = emulated.Machine.boot()
    yield guest
    guest.stop()


@pytest.fixture
def guest(booted):
    """Prints the guest's console if the test fails."""
    yield booted
    print("the machine's console:", booted.console()[-2000:], sep="\n")


@pytest.fixture(scope="session")
def plugged(booted):
    with rig.Adapter(booted) as adapter:
        yield adapter


@pytest.fixture
def adapter(plugged):
    """An FTDI adapter, plugged in as ttyUSB0, that has received nothing yet."""
    if plugged.nodes() != ["ttyUSB0"]:
        plugged.unplug()
        plugged.plug()
    plugged.echo = False
    plugged.data.clear()
    return plugged
