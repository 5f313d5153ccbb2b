"""Collects the tests' measurements. A conftest imports it.

The product's time limits are measured next to a control and printed at the end of each run with their aims. Tests
assert ten times the aim, because a busy machine is not a bug; with --aims, on a quiet machine, the aims themselves must
be met.
"""
import pytest

FIGURES = []


def add_aims(parser):
    parser.addoption("--aims", action="store_true", help="fail where a figure misses its aim (for a quiet machine)")


@pytest.fixture
def figure(request):
    """figure(what, value, unit, aim, control=None): records a value, printed at the end; the aim is relative to the
    control."""
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
