"""mpremote and MicroPython itself, its unix port, as the device. A soft reset ends the unix port, where a board starts again: hence `resume`."""
import pathlib
import subprocess

import pytest
from clients import shuffled
from micropython import Board
from servers import STATE, Baudway

MPREMOTE = STATE / "venv" / "bin" / "mpremote"


def mpremote(url: str, *words) -> str:
    done = subprocess.run(
        [str(MPREMOTE), "connect", url, "resume", *map(str, words)], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.only("baudway")
@pytest.mark.parametrize("scheme, listen", [("rfc2217", "telnet://127.0.0.1:0"), ("socket", "tcp://127.0.0.1:0")])
def test_mpremote_runs_code_and_copies_files_both_ways(server, scheme, listen, folder):
    image, back = pathlib.Path(folder, "image.bin"), pathlib.Path(folder, "back.bin")
    image.write_bytes(shuffled(8, 4096))
    with Board(folder) as board, Baudway(board.path, listen=listen) as served:
        url = f"{scheme}://127.0.0.1:{served.port}"
        assert mpremote(url, "eval", "6 * 7") == "42"
        assert mpremote(url, "exec", "import sys; print(sys.implementation.name)") == "micropython"
        mpremote(url, "fs", "cp", image, ":board.bin")
        assert pathlib.Path(folder, "board.bin").read_bytes() == image.read_bytes()
        mpremote(url, "fs", "cp", ":board.bin", back)
        assert back.read_bytes() == image.read_bytes()
