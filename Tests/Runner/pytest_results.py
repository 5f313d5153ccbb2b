"""A pytest plug-in for the runner: writes each test's outcome, one JSON object a line, to the file in BAUDWAY_RESULTS."""
import json
import os

import pytest

_file = open(os.environ["BAUDWAY_RESULTS"], "w", buffering=1)  # noqa: SIM115 - for the life of the process
_worst = {}  # test → (outcome, seconds so far)
_wrong_bytes = False
_root = ""


def pytest_configure(config):
    global _root
    _root = str(config.rootpath)


def pytest_assertrepr_compare(op, left, right):
    """Two byte strings that should be equal, and neither begins the other: a wrong byte, which is never chance. (Bytes that are
    missing at the end may only be late.)"""
    global _wrong_bytes
    kinds = (bytes, bytearray, memoryview)
    if op == "==" and isinstance(left, kinds) and isinstance(right, kinds):
        left, right = bytes(left), bytes(right)
        if not left.startswith(right) and not right.startswith(left):
            _wrong_bytes = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart():
    global _wrong_bytes
    _wrong_bytes = False


def pytest_runtest_logreport(report):
    """One of set-up, call and tear-down: a test has passed if all three have."""
    rank = {"passed": 0, "skipped": 1, "failed": 2}
    outcome, seconds = _worst.get(report.nodeid, ("passed", 0))
    if rank[report.outcome] > rank[outcome]:
        outcome = report.outcome
    _worst[report.nodeid] = outcome, seconds + report.duration
    if report.when == "teardown":
        outcome, seconds = _worst.pop(report.nodeid)
        _write(test=report.nodeid, outcome=outcome, seconds=round(seconds, 3), wrong_bytes=outcome == "failed" and _wrong_bytes)


def pytest_collectreport(report):
    if report.failed:
        _write(test=report.nodeid, outcome="failed", seconds=0, wrong_bytes=False)


def pytest_sessionfinish():
    _write(ended=True)


def _write(**entry):
    if "test" in entry:
        entry["test"] = os.path.join(_root, entry["test"])
    _file.write(json.dumps(entry) + "\n")
