"""Options and marks of the end-to-end tests, and a time limit for each: a test that hangs has failed."""
import os
import shutil
import tempfile

import figures
import pytest
from figures import add_aims, figure  # noqa: F401


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="wait in full where a shorter wait is the default")
    add_aims(parser)


def pytest_configure(config):
    config.addinivalue_line("markers", "both: expects other answers for root than for other users, so Tests/run runs it as both")
    config.addinivalue_line("markers", "root(reason): needs root, and what for")
    config.addinivalue_line("markers", "counts: counts instructions, for minutes, and times nothing; Tests/run has these beside steps like it")
    config.addinivalue_line("markers", "timed: asserts that something takes less than a few seconds, so a slow or busy machine fails it")
    config.addinivalue_line("markers", "measured: asserts how much memory, processor time or how many wake-ups the gateway takes")
    config.addinivalue_line("markers", "raced: sleeps so that something happens first, because nothing tells that it has happened")
    config.addinivalue_line("markers", "waits: does little but wait, for some seconds")
    config.addinivalue_line("markers", "heavy: keeps the machine busy for many seconds")


def pytest_collection_modifyitems(items):
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))
        root = item.get_closest_marker("root")
        if root and not root.args:
            raise pytest.UsageError(f"{item.nodeid}: its marker 'root' does not say why it takes root")
        if root and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason=f"needs root: {root.args[0]}"))


def pytest_terminal_summary(terminalreporter):
    """Lists the skipped tests by name: pytest's own -rs prints only their lines."""
    figures.pytest_terminal_summary(terminalreporter)
    for report in terminalreporter.stats.get("skipped", []):
        name = report.nodeid.removeprefix("Tests/EndToEnd/").replace("::", ": ")
        terminalreporter.line(f"skipped: {name}: {report.longrepr[2].removeprefix('Skipped: ')}")


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.timed)], ids=["what", "how-fast"])
def quick(request):
    """`quick(took, 4)` asserts that `took` is less than 4 s. A test with this fixture runs twice: for what happens, at any
    speed; and with the mark `timed`, for how fast."""
    def judge(took: float, limit: float, what: str = ""):
        print(f"took {took:.3f} s, limit {limit} s", what)
        assert took < limit or not request.param, f"{took:.3f} s of {limit} s: {what}"

    return judge


@pytest.fixture
def long(request) -> bool:
    return request.config.getoption("--long")


@pytest.fixture
def folder():
    """A directory with a short name; pytest's own are too long for some socket and link paths."""
    path = tempfile.mkdtemp(prefix="bw-")
    yield path
    shutil.rmtree(path, ignore_errors=True)
