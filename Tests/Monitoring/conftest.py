"""Debian's Prometheus, and the kit of the end-to-end tests."""
import pathlib
import shutil
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "EndToEnd"))


@pytest.fixture
def folder():
    """A directory with a short name; pytest's own are too long for some socket and link paths."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="bwm-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
