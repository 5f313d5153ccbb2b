"""`baudway scan` where there is nothing to listen with; what it hears is shown in Tests/Bluetooth."""
import subprocess

import pytest

from kit import binary


@pytest.mark.parametrize("words, told", [
    (["--seconds", "0"], "--seconds"), (["--le", "--classic"], "exclude each other"), (["--service", "12"], "no UUID"),
    (["--service", "Serial Port"], "no UUID"), (["--adapter", "xx"], "--adapter: expected hci0"),
])
def test_mistakes_are_told(words, told):
    done = subprocess.run([binary(), "scan", *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 64 and told in done.stderr and done.stdout == ""
