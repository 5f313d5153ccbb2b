"""Programs of `exec:` if the gateway is killed and cannot end them: its guard kills them."""
import os
import pathlib
import signal
import time
from urllib.parse import quote

import pytest
from kit import GUARD, Gateway, open_files, receive_all, receive_until, until


def shell(script: str, query: str = "") -> str:
    return f"exec:/bin/sh?arg=-c&arg={quote(script)}{query}"


def route(endpoint: str, **more) -> dict:
    return {"listen": "tcp://127.0.0.1:0", "endpoint": endpoint, **more}


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False


def pipes(pid: int) -> set[str]:
    return {target for target in open_files(pid).values() if target.startswith("pipe:")}


def guards(gateway: int) -> list[int]:
    """The guards that share a pipe with the gateway."""
    ours, found = pipes(gateway), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                comm = pathlib.Path(f"/proc/{name}/comm").read_text()
            except OSError:
                continue
            if comm == "exec-guard\n" and pipes(int(name)) & ours:
                found.append(int(name))
    return found


def its_guard(gateway: int) -> int:
    """The only guard, once it has its name: a program may have written something before that."""
    until(lambda: guards(gateway), what="a guard")
    (guard,) = guards(gateway)
    return guard


# Ignores every signal that can be ignored, with a child that does the same.
DEAF = "trap '' TERM HUP INT; (while :; do sleep 0.1; done) & echo $$ $!.; while :; do sleep 0.1; done"


@pytest.mark.parametrize("query", ["", "&pty=yes"])
def test_programs_and_children_end_with_the_gateway(query):
    with Gateway({"routes": {"deaf": route(shell(DEAF, query))}}, stopping=False) as gateway:
        clients = [gateway.connect("deaf") for _ in range(3)]
        pids = [int(word) for c in clients for word in receive_until(c, b".").decode().strip().rstrip(".").split()]
        assert len(pids) == 6 and all(map(alive, pids))
        guard = its_guard(gateway.pid)
        gateway.signal(signal.SIGKILL)
        until(lambda: not any(map(alive, pids)), what="all gone")
        until(lambda: not alive(guard), what="and the guard")
        for client in clients:
            client.close()


# "It may have joined another group of its session": the gateway's own.
STRAY = "import os, time; os.setpgid(0, os.getpgid(os.getppid())); print(os.getpid(), end='.', flush=True); time.sleep(600)"


def test_a_program_that_left_its_process_group_is_killed_too():
    endpoint = f"exec:/usr/bin/python3?arg=-c&arg={quote(STRAY)}"
    with Gateway({"routes": {"stray": route(endpoint)}}, stopping=False) as gateway, gateway.connect("stray") as client:
        pid = int(receive_until(client, b".").decode().rstrip("."))
        try:
            assert os.getpgid(pid) == os.getpgid(gateway.pid) and alive(pid)
            gateway.signal(signal.SIGKILL)
            until(lambda: not alive(pid), what="gone")
        finally:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_signals_to_the_gateways_group_do_not_end_the_guard_before_the_gateway():
    deaf = shell(DEAF)
    with Gateway({"routes": {"deaf": route(deaf)}}, prefix=("setsid",), stopping=False) as gateway, gateway.connect("deaf") as client:
        pids = [int(word) for word in receive_until(client, b".").decode().rstrip(".\n").split()]
        pid = gateway.process.pid
        guard = its_guard(pid)
        assert os.getsid(guard) == guard != os.getsid(pid)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(guard, number)
        os.kill(pid, signal.SIGSTOP)
        os.killpg(os.getpgid(pid), signal.SIGINT)
        time.sleep(0.2)
        assert alive(guard)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(alive, pids)), what="all gone")
        gateway.process.wait(GUARD)


def test_an_orderly_stop_leaves_no_guard_and_no_program():
    with Gateway({"routes": {"cat": route("exec:/bin/cat")}}) as gateway:
        assert guards(gateway.pid) == []  # not before it is needed
        with gateway.connect("cat") as client:
            client.sendall(b"x")
            receive_until(client, b"x")
            guard = its_guard(gateway.pid)
        gateway.stop()
        until(lambda: not alive(guard), what="the guard's end")


def test_a_single_guard_serves_many_programs_and_kills_no_other_process():
    # A process that has a former program's number must not be killed. The system assigns numbers in turn, so the
    # guard's own would be among them.
    with Gateway({"routes": {"echo": route("exec:/bin/echo?arg=hello")}}, stopping=False) as gateway:
        for _ in range(150):
            with gateway.connect("echo") as client:
                assert receive_all(client) == b"hello\n"
        guard = its_guard(gateway.pid)
        assert len(open_files(guard)) == 1
        gateway.event("session ended", count=150)
        gateway.signal(signal.SIGKILL)
        until(lambda: not alive(guard), what="the guard's end")


@pytest.mark.measured
def test_the_guard_is_small():
    with Gateway({"routes": {"cat": route("exec:/bin/cat")}}) as gateway, gateway.connect("cat") as client:
        client.sendall(b"x")
        receive_until(client, b"x")
        guard = its_guard(gateway.pid)
        memory = dict(
            line.split(":") for line in pathlib.Path(f"/proc/{guard}/smaps_rollup").read_text().splitlines()[1:])
        kilobytes = {key: int(memory[key].split()[0]) for key in ("Pss_Anon", "Private_Dirty", "Pss_Shmem")}
        print("the guard's memory in KiB:", kilobytes)
        assert kilobytes["Pss_Anon"] + kilobytes["Pss_Shmem"] < 1024, kilobytes


@pytest.mark.root("chooses the number of the next process")
def test_a_reused_process_number_is_not_killed():
    last = pathlib.Path("/proc/sys/kernel/ns_last_pid")
    with Gateway({"routes": {"tell": route(shell("echo $$"))}}, stopping=False) as gateway:
        with gateway.connect("tell") as client:
            pid = int(receive_all(client))
        gateway.event("session ended")
        until(lambda: not os.path.exists(f"/proc/{pid}"), what="reaped")
        bystander = None
        for _ in range(200):
            last.write_text(str(pid - 1))
            child = os.fork()
            if child == 0:
                try:
                    os.setpgid(0, 0)
                    signal.pause()
                finally:
                    os._exit(0)
            if child == pid:
                bystander = child
                break
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert bystander, "the number was not to be had"
        try:
            until(lambda: os.getpgid(bystander) == bystander)
            guard = its_guard(gateway.pid)
            gateway.signal(signal.SIGKILL)
            until(lambda: not alive(guard), what="the guard's end")
            assert alive(bystander)
        finally:
            os.kill(bystander, signal.SIGKILL)
            os.waitpid(bystander, 0)
