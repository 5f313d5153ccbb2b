"""esptool and a simulated ESP32 board that enters download mode only on the right DTR and RTS at the right times (`esp32.py`): with a
reset recipe it does so over a slow network too. The controls have no recipes; Espressif's own server has one.
"""
import functools
import os
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import clients
import pytest
from esp32 import ESP32, Circuit
from kit import ROOT, free_port
from servers import SERVERS, Baudway, Server
from slow import SlowNetwork

# esptool waits 0.1 s for the answer to SYNC, and then drops it: too short for this network, whatever the server does.
SETTINGS = "[esptool]\nsync_timeout = 1\n"
VENV = ROOT / ".build" / "esptool" / "venv"
pytestmark = pytest.mark.skipif(not VENV.exists(), reason="esptool could not be installed")
# 256 KiB, of which a quarter cannot be compressed, as in real firmware a part cannot: 66 blocks.
IMAGE = b"".join(clients.shuffled(number, 4096) + bytes([number]) * 12288 for number in range(16))


class Espressifs(Server):
    """esp_rfc2217_server of esptool's package: it recognises the reset and replays it itself. It does not answer what it takes, so its
    clients need `ign_set_control`."""

    def __init__(self, path: str, environment: dict):
        self.port = free_port()
        super().__init__(VENV / "bin" / "esp_rfc2217_server", "-p", self.port, path, environment={**os.environ, **environment})


def board_server(kind: str, board: ESP32, recipe: bool):
    """The server for a board; ser2net and pyserial's have no recipes."""
    device = {"device": {"reset": "esp32"}} if recipe and kind == "baudway" else {}
    return SERVERS[kind](board.path, environment=board.environment, **device)


def esptool(port: str, *words, seconds: float = 150, environment=None) -> tuple[bool, str, float]:
    """Whether it succeeded, its output, its seconds."""
    start = time.monotonic()
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".cfg") as settings:
            settings.write(SETTINGS)
            settings.flush()
            done = subprocess.run(
                [VENV / "bin" / "esptool", "--chip", "esp32", "--no-stub", "--port", port, *words], capture_output=True, text=True,
                timeout=seconds, stdin=subprocess.DEVNULL,
                env={**os.environ, "ESPTOOL_CFGFILE": settings.name, **(environment or {})})
    except subprocess.TimeoutExpired as late:
        return False, f"not over within {seconds} s: {late.stdout}", seconds
    return done.returncode == 0, done.stdout + done.stderr, time.monotonic() - start


@pytest.fixture
def image(folder) -> str:
    path = os.path.join(folder, "image.bin")
    with open(path, "wb") as file:
        file.write(IMAGE)
    return path


def written(port: str, image: str, board: ESP32, *words, **more) -> float:
    """esptool writes the image and verifies it. Returns its seconds."""
    succeeded, output, seconds = esptool(port, *words, "write-flash", "--compress", "0", image, **more)
    assert succeeded and "Hash of data verified" in output, output
    assert board.flash[:len(IMAGE)] == IMAGE
    return seconds


# --- the board itself


def started(moves, **circuit):
    """Whether the chip starts in download mode after these moves of (milliseconds, DTR, RTS)."""
    board = Circuit(**circuit)
    starts = [board.move(time / 1000, dtr, rts) for time, dtr, rts in moves]
    starts.append(board.pass_time(moves[-1][0] / 1000 + 1))
    return [start[1] for start in starts if start]


def test_the_circuit_knows_the_right_times():
    classic = [(0, False, True), (100, True, True), (100.1, True, False), (150, False, False)]
    assert started(classic) == [True]
    assert started([(0, False, True), (100, True, True), (160, True, False), (210, False, False)]) == [False]  # EN rose before RTS went
    assert started([(0, False, True), (100, True, True), (101.9, True, False), (150, False, False)]) == [True]
    assert started([(0, False, True), (100, True, True), (100.1, True, False), (101, False, False)]) == [False]  # IO0 not held
    assert started([(0, False, True), (0.5, True, True), (0.6, True, False), (50, False, False)]) == []  # too short for a reset
    assert started([(0, False, True), (100, False, False)]) == [False]
    assert started([(0, True, True), (100, False, False)]) == []  # both at once: neither is pulled low


def test_esptool_at_the_port_itself(folder, image):
    """The control without any server."""
    with ESP32() as board:
        written(board.path, image, board, environment=board.environment)
        assert [mode for _, mode in board.starts] == ["download", "normal"]


@pytest.mark.waits
def test_espressifs_own_server_resets_the_board(folder, image):
    """The control with a recipe."""
    with ESP32() as board, Espressifs(board.path, board.environment) as served:
        written(served.url + "?ign_set_control", image, board)
        assert board.starts[-1][1] == "normal"


# --- through a slow network


def connects(kind: str, number: int, recipe: bool) -> tuple[bool, str]:
    with ESP32() as board, board_server(kind, board, recipe) as served, SlowNetwork(served.address, seed=number) as network:
        succeeded, output, _ = esptool(network.url, "--after", "no-reset", "read-mac")
        assert succeeded == (board.mode == "download"), f"{board.starts}, {output}"
        return succeeded, output


def count_of_connects(kind: str, recipe: bool, count: int) -> tuple[int, list]:
    with ThreadPoolExecutor(5) as pool:
        outcomes = list(pool.map(functools.partial(connects, kind, recipe=recipe), range(count)))
    return sum(succeeded for succeeded, _ in outcomes), [output for succeeded, output in outcomes if not succeeded]


@pytest.mark.only("baudway")
@pytest.mark.waits
@pytest.mark.timeout(900)
def test_with_a_recipe_each_connect_through_a_slow_network_succeeds(server):
    succeeded, failures = count_of_connects(server, recipe=True, count=20)
    assert succeeded == 20, failures


@pytest.mark.waits
@pytest.mark.timeout(900)
def test_without_a_recipe_no_connect_succeeds(server):
    """So the board is not too easy to please. (pyserial's client waits 50 ms for each answer, also without the slow network.)"""
    succeeded, _ = count_of_connects(server, recipe=False, count=5)
    assert succeeded == 0


@pytest.mark.only("baudway")
@pytest.mark.waits
@pytest.mark.timeout(600)
def test_256_kib_are_written_and_verified_through_a_slow_network(server, image):
    with ESP32() as board, board_server(server, board, recipe=True) as served, SlowNetwork(served.address) as network:
        written(network.url, image, board, seconds=500)


@pytest.mark.only("baudway")
@pytest.mark.waits
def test_the_board_behind_an_rfc2217_endpoint(server, image):
    """esptool → Baudway → Baudway at the board, which replays the reset: only a port of the machine itself keeps exact times."""
    with ESP32() as board, Baudway(board.path, environment=board.environment, device={"reset": "esp32"}) as far, \
            Baudway("", endpoint=f"rfc2217://127.0.0.1:{far.port}") as served:
        written(served.url, image, board)


@pytest.mark.only("baudway")
@pytest.mark.waits
@pytest.mark.timeout(900)
def test_writing_takes_no_longer_than_over_pyserials_server(server, image, figure):
    """Median of five each. The board is in download mode and has no reset circuit, since over the control it cannot be reset."""
    times = {"baudway": [], "pyserial": []}
    for _ in range(5):
        for kind in times:
            with ESP32(mode="download", hold=3600) as board, board_server(kind, board, recipe=False) as served:
                times[kind].append(written(served.url, image, board, "--before", "no-reset"))
    figure("esptool write-flash of 256 KiB", statistics.median(times["baudway"]), "s", aim=0.5, control=statistics.median(times["pyserial"]))
