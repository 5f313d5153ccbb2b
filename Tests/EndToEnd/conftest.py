"""Options of the end-to-end tests, a limit on each (a test that hangs is a test that failed), and the figures they took.

Time limits of the product are measured beside a control and printed at the end of each run with what is aimed at. What a
test asserts is ten times looser, because a busy machine is no bug; with --aims, on a quiet one, the aims themselves count.
"""
import os
import shutil
import tempfile

import pytest

FIGURES = []


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="wait in full where a shorter wait is the default")
    parser.addoption("--aims", action="store_true", help="fail where a figure misses its aim (for a quiet machine)")


def pytest_configure(config):
    config.addinivalue_line("markers", "root: needs root (namespaces, mounts)")


def pytest_collection_modifyitems(items):
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(90))
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root: makes network or mount namespaces"))


@pytest.fixture
def long(request) -> bool:
    return request.config.getoption("--long")


@pytest.fixture
def folder():
    """A short-named directory; pytest's own are too long for some socket and link paths."""
    path = tempfile.mkdtemp(prefix="bw-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def figure(request):
    """figure(what, value, unit, aim, control=None): noted, printed at the end; the aim is counted from the control."""
    def note(what, value, unit, aim, control=None):
        met = value <= aim + (control or 0)
        FIGURES.append((what, value, unit, aim, control, met))
        if request.config.getoption("--aims"):
            assert met, f"{what}: {value:.1f} {unit}, control {control}, aim {aim}"

    return note


def pytest_terminal_summary(terminalreporter):
    if not FIGURES:
        return
    terminalreporter.section("figures")
    for what, value, unit, aim, control, met in FIGURES:
        beside = f"control {control:.1f}, aim +{aim}" if control is not None else f"aim {aim}"
        terminalreporter.line(f"{what}: {value:.1f} {unit} ({beside}){'' if met else '  MISSED'}")
