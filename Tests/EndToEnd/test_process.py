"""The gateway as process 1 of a container, and in a terminal that goes away."""
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import termios
import time

import pytest

from kit import Deadline, binary, until

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
NEW_PIDS = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def write(folder, routes):
    path = folder / "config.yaml"
    path.write_text(json.dumps({"version": 1, "log": {"repeats": "all"}, "control": {"socket": "off"}, "routes": routes}))
    path.chmod(0o644)
    return str(path)


def children(pid):
    """The states of a process's children, by number."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            fields = open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split() if name.isdigit() else None
        except OSError:
            continue
        if fields and int(fields[1]) == pid:
            found[int(name)] = fields[0]
    return found


@pytest.mark.skipif(subprocess.run([*NEW_PIDS, "true"], capture_output=True).returncode != 0, reason="no PID namespaces here")
def test_process_1_reaps_what_programs_leave_behind_and_knows_how_the_programs_ended(tmp_path):
    program = tmp_path / "meter"
    program.write_text("#!/bin/sh\nsetsid sh -c 'sleep 0.2; exit 3' &\n(sleep 0.1 &)\necho hello\nread line\nexit 7\n")
    program.chmod(0o755)
    path = write(tmp_path, {"meter": {"listen": f"unix://{tmp_path}/s", "endpoint": f"exec:{program}"}})
    gateway = subprocess.Popen([*NEW_PIDS, binary(), "serve", path], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        os.set_blocking(gateway.stderr.fileno(), False)
        log = bytearray()
        said = lambda word: log.extend(gateway.stderr.read() or b"") or log.count(word)
        until(lambda: said(b" listening "), 60, "listening")
        for number in range(5):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(f"{tmp_path}/s")
                assert client.recv(6) == b"hello\n"
                client.sendall(b"\n")
                while client.recv(100):
                    pass
        until(lambda: said(b" ended route=") >= 5, 60, "five ends")
        assert log.count(b"status 7") >= 5 and b"unknown status" not in log, log.decode()
        first = next(iter(children(gateway.pid)))
        until(lambda: not children(first), 60, "no child left")
        os.kill(first, signal.SIGTERM)
        assert gateway.wait(60) == 0
    finally:
        gateway.kill()
        gateway.wait()
        gateway.stderr.close()


def in_terminal(*words):
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup(1) has it ignored, for all of this run
        os.execvp(words[0], words)
    return pid, terminal


def read_until(terminal, word):
    text = b""
    while word not in text:
        text += os.read(terminal, 4096)
    return text


def ended(pid, seconds):
    deadline = Deadline(seconds)
    while not deadline.passed:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    return None


def test_it_ends_in_order_when_its_terminal_is_closed_and_a_signal_before_that_is_a_reload(tmp_path):
    path = write(tmp_path, {"one": ECHO})
    pid, terminal = in_terminal(binary(), "serve", path)
    status = None
    try:
        read_until(terminal, b" listening ")
        write(tmp_path, {"one": ECHO, "two": ECHO})
        os.kill(pid, signal.SIGHUP)
        read_until(terminal, b"route=two ")
        os.close(terminal)
        status = ended(pid, 60)
        assert status == 0
    finally:
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# A shell whose background job is the gateway; it ends with its terminal.
SHELL = """import os, sys
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600), 2)
    os.execv(sys.argv[2], sys.argv[2:])
print("gateway", pid, "started", flush=True)
sys.stdin.read()
"""


@pytest.mark.waits
def test_it_ends_when_its_terminal_goes_in_the_middle_of_the_reload_that_its_shell_caused(tmp_path):
    # A reload that removes a route gives its client 5 s to read what is kept for it.
    slow = {"listen": f"unix://{tmp_path}/s", "endpoint": "sim://flood"}
    path = write(tmp_path, {"one": ECHO, "slow": slow})
    log = tmp_path / "log"
    said = lambda word: log.exists() and word in log.read_bytes()
    shell, terminal = in_terminal("python3", "-c", SHELL, str(log), binary(), "serve", path)
    pid = int(read_until(terminal, b" started").split()[1])
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            until(lambda: said(b"listening route=slow "), 60, "listening")
            client.connect(f"{tmp_path}/s")
            waiting = lambda: fcntl.ioctl(client, termios.FIONREAD, bytes(4))
            until(lambda: waiting() != bytes(4) and len({(time.sleep(0.1), waiting())[1] for _ in range(5)}) == 1, 60, "a full client")
            write(tmp_path, {"one": ECHO})
            os.kill(pid, signal.SIGHUP)
            until(lambda: said(b" listener closed route=slow "), 60, "the middle of a reload")
            os.close(terminal)  # the kernel sends SIGHUP to the shell, and none to its job
            os.waitpid(shell, 0)
            until(lambda: said(b" info stopped"), 60, "the gateway's end")
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def test_after_nohup_it_stays_when_its_terminal_is_closed(tmp_path):
    path = write(tmp_path, {"one": {**ECHO, "listen": f"unix://{tmp_path}/s"}})
    log = tmp_path / "log"
    pid, terminal = in_terminal("sh", "-c", f"exec nohup {binary()} serve {path} 2>{log} >/dev/null </dev/null")
    try:
        until(lambda: log.exists() and b" listening " in log.read_bytes(), 60, "listening")
        os.close(terminal)
        until(lambda: b" reloaded" in log.read_bytes(), 60, "a reload")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(f"{tmp_path}/s")
            client.sendall(b"x")
            assert client.recv(1) == b"x"
        os.kill(pid, signal.SIGTERM)
        assert ended(pid, 60) == 0
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
