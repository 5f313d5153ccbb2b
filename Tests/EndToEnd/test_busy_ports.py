"""A port that another program holds: the program is named, and the gateway opens the port as soon as it is released."""
import contextlib
import os
import subprocess
import sys
import time

import pytest
from kit import Gateway, Pty, lock_file, open_files, reset, until, watches

# Longer than the test waits: only the program's end leads to a new try.
RETRY = "10m..10m"

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
    """A node that changed less than 100 ms before a failed open is tried once more: it may have appeared in between."""
    time.sleep(0.3)
    return device


@pytest.mark.parametrize("end", ["closes", "killed"])
def test_a_port_is_opened_as_soon_as_its_program_has_closed_it(end):
    with Pty() as device, holder(device.path) as program, Gateway(config(aged(device))) as gateway:
        error = gateway.event("link waiting")["error"]
        assert f"in use by python3 (pid {program.pid})" in error or f"(pid {program.pid})" in error, error
        until(lambda: watches(gateway.pid, device.path), 20, "a watch")  # it is set up off the lane
        assert len(gateway.events("link waiting")) == 1
        if end == "closes":
            program.stdin.close()
        else:
            program.kill()
        gateway.event("link open")
        with gateway.connect("port") as client:
            client.sendall(b"ours")
            assert device.read(4) == b"ours"
            reset(client)


@pytest.mark.parametrize("exclusive", ["yes", "no"])
def test_a_program_without_a_lock_is_named_and_strict_waits_for_it(exclusive):
    with Pty() as device:
        reader = subprocess.Popen(["cat", device.path], stdout=subprocess.DEVNULL)
        try:
            until(lambda: open(f"/proc/{reader.pid}/comm").read() == "cat\n", 20, "cat")
            until(lambda: device.path in open_files(reader.pid).values(), 20, "open")
            name = f"cat (pid {reader.pid})"
            shared = config(device)
            shared["routes"]["port"]["endpoint"] += f"?exclusive={exclusive}"
            with Gateway(shared) as gateway:
                gateway.event("link open")
                assert name in gateway.event("port shared")["with"]
                assert f"port shared with {name}" in gateway.command("status", str(gateway.path)).stdout
            strict = config(aged(device))
            strict["routes"]["port"]["endpoint"] += "?exclusive=strict"
            with Gateway(strict) as gateway:
                assert name in gateway.event("link waiting")["error"]
                assert not gateway.events("link open")
                until(lambda: watches(gateway.pid, device.path), 20, "a watch")
                reader.kill()
                reader.wait()
                gateway.event("link open", seconds=60)
        finally:
            reader.kill()
            reader.wait()


# Has a pty of the same path open, in another mount namespace with an instance of devpts of its own.
ELSEWHERE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x00020000) == 0  # CLONE_NEWNS
assert libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None) == 0  # MS_REC | MS_PRIVATE
assert libc.mount(b"devpts", b"/dev/pts", b"devpts", 0, b"newinstance,ptmxmode=0666") == 0
masters = []
while not os.path.exists(sys.argv[1]) and len(masters) < 1000:
    masters.append(os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY))
    libc.unlockpt(masters[-1])
port = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.root("only root can make another mount namespace")
def test_a_program_with_a_pty_of_the_same_path_in_another_container_is_not_named():
    with Pty() as device, holder(device.path) as program:
        other = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE, device.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert other.stdout.readline() == "open\n"
            with Gateway(config(aged(device))) as gateway:
                error = gateway.event("link waiting")["error"]
                assert f"(pid {program.pid})" in error and f"(pid {other.pid})" not in error, error
        finally:
            other.kill()
            other.wait()
            other.stdout.close()


def test_a_port_is_opened_as_soon_as_its_lock_file_is_removed():
    with Pty() as device:
        lock = lock_file(device.path)
        if not os.access("/var/lock", os.W_OK):
            pytest.skip("no lock files can be made here: /var/lock is not writable")
        lock.write_text(f"{os.getpid():10}\n")
        try:
            with Gateway(config(device)) as gateway:
                error = gateway.event("link waiting")["error"]
                assert f"(pid {os.getpid()}), according to {lock}" in error
                until(lambda: watches(gateway.pid, lock.parent), 20, "a watch")
                lock.unlink()
                gateway.event("link open")
        finally:
            lock.unlink(missing_ok=True)


@pytest.mark.measured
def test_a_program_that_keeps_reopening_the_port_causes_little_work():
    with Pty() as device, holder(device.path), Gateway(config(device)) as gateway:
        gateway.event("link waiting")
        until(lambda: watches(gateway.pid, device.path), 20, "a watch")
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
