"""`baudway scan` without a Bluetooth adapter; Tests/Bluetooth tests its results."""
import subprocess

import pytest

from kit import GUARD, binary


@pytest.mark.parametrize("words, told", [
    (["--seconds", "0"], "--seconds"), (["--le", "--classic"], "exclude each other"), (["--service", "12"], "not a UUID"),
    (["--service", "Serial Port"], "not a UUID"), (["--adapter", "xx"], "--adapter: expected hci0"),
])
def test_usage_errors_are_reported(words, told):
    done = subprocess.run([binary(), "scan", *words], capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 64 and told in done.stderr and done.stdout == ""
