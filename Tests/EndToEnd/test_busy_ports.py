"""A port that another program has: who that is, and that it is ours as soon as the program lets go of it."""
import contextlib
import os
import subprocess
import sys
import time

import pytest
from kit import Gateway, Pty, reset

# Far beyond what the test waits: nothing but the program's end leads to a try.
RETRY = "30s..30s"

HOLD = """
import fcntl, os, sys
port = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
fcntl.flock(port, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path: str):
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline() == "held\n"
        yield program
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


def config(device: Pty) -> dict:
    return {"routes": {"port": {
        "listen": "tcp://127.0.0.1:0", "endpoint": device.url, "device": {"open": "always", "retry": RETRY}}}}


def aged(device: Pty) -> Pty:
    """A node that changed less than 100 ms before a failed opening is tried once more: it may have come in between."""
    time.sleep(0.3)
    return device


@pytest.mark.parametrize("end", ["closes", "killed"])
def test_a_port_is_opened_as_soon_as_its_program_has_closed_it(end):
    with Pty() as device, holder(device.path) as program, Gateway(config(aged(device))) as gateway:
        error = gateway.event("link waiting")["error"]
        assert f"in use by python3 (pid {program.pid})" in error or f"(pid {program.pid})" in error, error
        time.sleep(0.5)  # the watch is made off the lane
        assert len(gateway.events("link waiting")) == 1
        start = time.monotonic()
        if end == "closes":
            program.stdin.close()
        else:
            program.kill()
        gateway.event("link open", seconds=3)
        assert time.monotonic() - start < 2
        with gateway.connect("port") as client:
            client.sendall(b"ours")
            assert device.read(4) == b"ours"
            reset(client)


def test_a_port_is_opened_as_soon_as_a_lock_file_of_it_is_removed():
    with Pty() as device:
        lock = f"/var/lock/LCK..pts_{os.path.basename(device.path)}"
        if not os.access("/var/lock", os.W_OK):
            pytest.skip("no lock files can be made here: /var/lock is not writable")
        with open(lock, "w") as file:
            file.write(f"{os.getpid():10}\n")
        try:
            with Gateway(config(device)) as gateway:
                error = gateway.event("link waiting")["error"]
                assert f"(pid {os.getpid()}), says {lock}" in error
                time.sleep(0.5)
                start = time.monotonic()
                os.unlink(lock)
                gateway.event("link open", seconds=3)
                assert time.monotonic() - start < 2
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(lock)


def test_a_program_that_opens_and_closes_the_port_all_the_time_does_not_set_the_pace():
    with Pty() as device, holder(device.path), Gateway(config(device)) as gateway:
        gateway.event("link waiting")
        time.sleep(0.3)
        before, start = cpu(gateway.pid), time.monotonic()
        while time.monotonic() - start < 3:
            os.close(os.open(device.path, os.O_RDWR | os.O_NOCTTY))
            time.sleep(0.002)
        used = cpu(gateway.pid) - before
        assert used < 1, f"{used} s of CPU in 3 s"
        assert not gateway.events("link open")


def cpu(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")
