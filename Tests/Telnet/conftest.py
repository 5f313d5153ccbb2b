"""Which servers the tests run against, and what is shared by all."""
import pathlib
import shutil
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "EndToEnd")]

import servers  # noqa: E402
from figures import add_aims, figure, pytest_terminal_summary  # noqa: E402,F401


def pytest_addoption(parser):
    add_aims(parser)
    parser.addoption(
        "--servers", default="baudway", help="baudway (default), ser2net and pyserial, separated by commas: the last two are controls")


def pytest_configure(config):
    config.addinivalue_line("markers", "waits: does little but wait, for some seconds; Tests/run has these beside the others")
    config.addinivalue_line("markers", "only(*servers): says nothing about other servers")
    if not (servers.STATE / "versions").exists():
        raise pytest.UsageError("run Tests/Telnet/prepare first")


def pytest_generate_tests(metafunc):
    if "server" in metafunc.fixturenames:
        names = metafunc.config.getoption("--servers").split(",")
        if only := metafunc.definition.get_closest_marker("only"):
            names = [name for name in names if name in only.args]
        metafunc.parametrize("server", names)


def pytest_collection_modifyitems(items):
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def folder():
    """A directory with a short name; pytest's own are too long for some socket and link paths."""
    path = tempfile.mkdtemp(prefix="bwt-")
    yield path
    shutil.rmtree(path, ignore_errors=True)
