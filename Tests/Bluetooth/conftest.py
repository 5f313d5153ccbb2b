"""One emulated machine and one set of devices for all tests."""
import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "Guest"), str(TESTS / "EndToEnd")]

import machine as emulated  # noqa: E402
import radio  # noqa: E402
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


@pytest.fixture(scope="session")
def devices(booted):
    booted.ask(f"modprobe -a {radio.MODULES}", 60)
    air = radio.Air(booted)
    yield air
    air.close()


@pytest.fixture
def air(devices, booted):
    """The adapter is present and on, and every device answers. Prints the guest's console if the test fails."""
    devices.reset()
    yield devices
    print("the machine's console:", booted.console()[-2000:], sep="\n")


@pytest.fixture
def replugged(air):
    """An adapter without links. Linux 6.1 sometimes keeps one for good, without a socket: when it is made in the moment
    when another one is ended, the kernel's wait for it misses its event, and runs into its limit of four seconds."""
    air.pull()
    air.plug()


@pytest.fixture
def guest(booted):
    return booted
