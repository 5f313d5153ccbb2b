"""Limits of the process: too small to start, few descriptors under a flood, little memory, memory that is returned; and
a listening socket that another process shuts down."""
import contextlib
import json
import os
import pathlib
import re
import resource
import socket
import subprocess
import tempfile
import time

import pytest

from certificates import Authority
from test_activation import Activated
from kit import GUARD, Gateway, binary, until

SIM = {"log": {"format": "json"}, "routes": {"e": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}}


def limited(**limits):
    """A prefix that sets limits, hard and soft: `nofile=16`, `as=61440000`."""
    return ["prlimit", *(f"--{name}={value}:{value}" for name, value in limits.items())]


# --- too small to start --------------------------------------------------------------------------------------------


def start(limits, config=SIM, seconds=GUARD):
    """Exit code and output; 0 if it serves, which `health` checks. Nothing may hang."""
    gateway = Gateway(config, prefix=limited(**limits), stopping=False)
    try:
        gateway.start()
        try:
            until(lambda: gateway.process.poll() is not None or gateway.events("listening"), seconds, f"a start at {limits}")
        finally:
            running = gateway.process.poll() is None
            answer = ask(gateway) if running else None
            if running:
                gateway.process.kill()
            code = gateway.process.wait(GUARD)
        if running:
            assert answer["healthy"], answer
            return 0, ""
        gateway._reader.join(GUARD)  # its last line may still be in the pipe
        return code, "\n".join(gateway.lines)
    finally:
        gateway._folder.cleanup()


def ask(gateway, request="health", seconds=GUARD):
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(seconds)
        control.connect(str(gateway.folder / "control.sock"))
        control.sendall(request.encode() + b"\n")
        answer = b""
        while piece := control.recv(65536):
            answer += piece
    return json.loads(answer)


def test_too_few_descriptors_are_reported_before_the_start():
    code, said = start({"nofile": 16})
    assert code == 71, (code, said)
    limit, needed = re.search(r"the limit of (\d+) open files is too small to start: (\d+) are needed", said).groups()
    assert limit == "16"
    # Exactly that many are needed.
    assert start({"nofile": int(needed)})[0] == 0
    assert start({"nofile": int(needed) - 1})[0] == 71


@pytest.mark.measured
def test_too_little_address_space_is_reported_before_the_start():
    code, said = start({"as": 60000 << 10})
    assert code == 71, (code, said)
    limit, needed = re.search(r"the limit of (\d+) KiB of address space is too small to start: (\d+) KiB", said).groups()
    assert limit == "60000"
    assert start({"as": int(needed) + 512 << 10})[0] == 0


@pytest.mark.measured
@pytest.mark.parametrize("mebibytes", [80, 120, 140, 160, 200, 260, 330, 400])
def test_no_limit_of_address_space_makes_the_start_hang(mebibytes):
    """Also if malloc reserves the space that a thread's stack needs for an arena."""
    code, said = start({"as": mebibytes << 20})
    assert code in (0, 71), (code, said)


def as_nobody():
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.mark.root("runs the gateway as a user that has no processes yet")
def test_too_few_threads_are_reported_before_the_start(tmp_path):
    """Root has no process limit, so this tests as an ordinary user."""
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"version": 1, "control": {"socket": "off"}, **SIM}))
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        os.chmod(folder, 0o755)
    ended = subprocess.run(
        [*as_nobody(), *limited(nproc=1), binary(), "serve", str(path)], capture_output=True, text=True, timeout=GUARD)
    assert ended.returncode == 71, ended
    assert "the system refused" in ended.stderr and " threads (" in ended.stderr and "TasksMax" in ended.stderr


@pytest.mark.parametrize("limits", [{"nofile": 10}, {"as": 60000 << 10}])
@pytest.mark.parametrize("command", [["connect", "sim://echo"], ["scan", "--seconds", "1"]])
def test_other_commands_report_small_limits_too(command, limits):
    ended = subprocess.run(
        [*limited(**limits), binary(), *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GUARD)
    assert ended.returncode == 71, ended
    assert "too small to start" in ended.stderr


def hidden(folder, *words, **more):
    """Runs the gateway in a namespace in which nothing is in `folder`."""
    command = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {folder}; exec "$@"', "sh", binary(), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=GUARD, **more)


@pytest.mark.root("mounts")
@pytest.mark.parametrize("words", [["health", "--control", "@nobody"], ["serve", "/nonexistent.yaml"]])
def test_without_proc_no_command_succeeds(words):
    """A probe must not be told that all is well."""
    ended = hidden("/proc", *words)
    assert (ended.returncode, ended.stderr) == (71, "baudway: can't read its own command line; is /proc mounted?\n")


@pytest.mark.root("mounts")
def test_without_dev_connect_works():
    ended = hidden("/dev", "connect", "sim://echo", "--silence", "1s", input="hello\n")
    assert (ended.returncode, ended.stdout) == (0, "hello\n"), ended


# --- a listening socket that is shut down --------------------------------------------------------------------------


def cpu(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def echo(address, family=socket.AF_INET):
    with socket.socket(family) as client:
        client.settimeout(GUARD)
        client.connect(address)
        client.sendall(b"hello")
        assert client.recv(10) == b"hello"


def free_port():
    """For a port that a configuration names: one that the kernel chose is released when its socket is shut down."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("kind", ["tcp", "ws", "unix"])
@pytest.mark.parametrize("how", [socket.SHUT_RD, socket.SHUT_RDWR])
def test_a_listening_socket_that_another_process_shuts_down_is_bound_again(kind, how, folder, quick):
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family) as given:
        given.bind(f"{folder}/s" if kind == "unix" else ("127.0.0.1", 0 if kind == "ws" else free_port()))
        given.listen(16)
        address = given.getsockname()
        listen = f"unix://{folder}/s" if kind == "unix" else f"{kind}://127.0.0.1:{address[1]}"
        config = {"routes": {"e": {"listen": listen, "endpoint": "sim://echo"}}}
        with Activated(config, [given]) as gateway:
            upgrade(address[1]) if kind == "ws" else echo(address, family)
            before = cpu(gateway.pid)
            given.shutdown(how)
            lost = until(lambda: gateway.events("listener waiting"), what="a line that says so")[0]
            assert "EINVAL" in lost["error"] and "shut down" in lost["error"], lost
            assert not ask(gateway)["healthy"]
            until(lambda: len(gateway.events("listening")) == 2, what="the address again")
            assert ask(gateway)["healthy"]
            upgrade(address[1]) if kind == "ws" else echo(address, family)
            # Again: the pause is longer, and meanwhile there is no log line and no busy loop.
            with contextlib.suppress(OSError):  # already another socket, if this one could not listen again
                given.shutdown(how)
            time.sleep(0.3)
            quick(cpu(gateway.pid) - before, 0.5, "of the processor's time")


@pytest.mark.waits
def test_a_socket_that_is_shut_down_repeatedly_is_bound_with_growing_pauses(folder):
    with socket.socket() as given:
        given.bind(("127.0.0.1", free_port()))
        given.listen(16)
        config = {"routes": {"e": {"listen": f"tcp://127.0.0.1:{given.getsockname()[1]}", "endpoint": "sim://echo"}}}
        with Activated(config, [given]) as gateway:
            pauses = []
            for turn in range(3):
                given.shutdown(socket.SHUT_RDWR)
                line = until(lambda: gateway.events("listener waiting")[turn:], what="a loss")[0]
                pauses.append(line["retry"])
                until(lambda: len(gateway.events("listening")) == turn + 2, what="the address again")
            assert pauses == [1, 2, 4], pauses


# --- few descriptors, little memory --------------------------------------------------------------------------------


HALF_HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n"
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"


def flood(port, addresses, each, first=HALF_HEAD):
    """Connections from loopback addresses that send a beginning and no more."""
    clients = []
    for number in range(each):
        for last in range(addresses):
            client = socket.socket()
            client.settimeout(GUARD)
            with contextlib.suppress(OSError):
                client.bind((f"127.0.1.{last + 1}", 0))
                client.connect(("127.0.0.1", port))
                client.sendall(first)
                clients.append(client)
    return clients


def many_refused(gateway):
    """The handshake counts once 100 were refused: a connected client may not be accepted yet."""
    return until(lambda: (counts := ask(gateway, "status")["handshakes"])["refused"] >= 100 and counts, what="100 refusals")


def port_of(gateway, route):
    line = next(e for e in gateway.events("listening") if e["route"] == route)
    return int(line["listen"].rsplit(":", 1)[1].rstrip("/"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("limits"))


def few(authority):
    chain, key = authority.issue("gw.test", "DNS:gw.test")
    return {
        "defaults": {"tls": {"certificate": str(chain), "key": str(key)}},
        "routes": {
            "web": {"listen": "ws://127.0.0.1:0", "endpoint": "sim://echo"},
            "safe": {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo"},
            "raw": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", "clients": {"max": 10}},
            "program": {"listen": "tcp://127.0.0.1:0", "endpoint": "exec:/bin/cat"},
        },
    }


@pytest.mark.parametrize("first, route", [(HALF_HEAD, "web"), (HALF_HELLO, "safe")])
def test_half_open_handshakes_leave_descriptors_for_other_clients(authority, first, route, quick):
    with Gateway(few(authority), prefix=limited(nofile=300), stopping=False) as gateway:
        crowd = flood(port_of(gateway, route), 7, 100, first)
        try:
            began = time.monotonic()
            assert ask(gateway)["healthy"]
            quick(time.monotonic() - began, 5, "health")
            served = []
            for _ in range(10):
                client = socket.create_connection(("127.0.0.1", port_of(gateway, "raw")), 5)
                client.sendall(b"hello")
                assert client.recv(10) == b"hello"
                served.append(client)
            echo(("127.0.0.1", port_of(gateway, "program")))
            counts = many_refused(gateway)
            assert counts["unfinished"] <= counts["most"] < 150, counts
            # A client of another address is accepted although the maximum is reached.
            if route == "web":
                upgrade(port_of(gateway, "web"))
            for client in served:
                client.close()
        finally:
            for client in crowd:
                client.close()


def upgrade(port):
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        client.sendall(
            HALF_HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 101"), "no upgrade"


def raw_route(gateway):
    return next(route for route in ask(gateway, "status")["routes"] if route["route"] == "raw")


def crowded(authority, **limits):
    """A route that accepts as many clients as there are descriptors."""
    config = {**few(authority), "limits": limits}
    config["routes"]["raw"] = {"listen": "tcp://127.0.0.1:0", "link": "per-client", "endpoint": "sim://echo"}
    return config


def refused(gateway):
    """Refusals by reason."""
    return ask(gateway, "status").get("refused", {})


def test_a_crowded_route_leaves_descriptors_for_the_first_client_of_others(authority):
    with Gateway(crowded(authority), prefix=limited(nofile=300), stopping=False) as gateway:
        crowd = flood(port_of(gateway, "raw"), 7, 60, b"x")
        try:
            assert ask(gateway)["healthy"]
            echo(("127.0.0.1", port_of(gateway, "program")))
            upgrade(port_of(gateway, "web"))
            # A connected client may not be accepted yet.
            until(lambda: raw_route(gateway)["totals"]["ended"].get("full", 0) > 50, what="50 refusals")
            assert len(raw_route(gateway)["clients"]) > 150
            # As documented: counted by its reason, in addition to its ending word.
            ended = gateway.events("session ended", reason="full")
            assert all("limits.reserve-descriptors" in line["error"] for line in ended), ended[0]
            full = raw_route(gateway)["totals"]["ended"]["full"]
            assert refused(gateway)["descriptors"] >= full > 50
        finally:
            for client in crowd:
                client.close()


def test_handshakes_refused_for_lack_of_descriptors_get_that_reason(authority):
    """Clients of one route use up what is not reserved; a handshake at another is refused."""
    config = {**crowded(authority), "limits": {"handshakes": 10000, "handshakes-per-address": 1000}}
    with Gateway(config, prefix=limited(nofile=300), stopping=False) as gateway:
        crowd = flood(port_of(gateway, "web"), 7, 60)
        try:
            assert many_refused(gateway)["most"] == 10000
            lines = until(lambda: gateway.events("session ended", route="web"), what="a line")
            assert all("limits.reserve-descriptors" in line["error"] for line in lines), lines[0]
            def counts():
                answer = ask(gateway, "status")
                return answer["refused"], {"descriptors": answer["handshakes"]["refused"]}
            until(lambda: (pair := counts())[0] == pair[1], what=f"one count: {counts()}")
        finally:
            for client in crowd:
                client.close()


def test_a_reload_turns_the_descriptor_reserve_on_and_off(authority):
    with Gateway(crowded(authority, **{"reserve-descriptors": "off"}), prefix=limited(nofile=300), stopping=False) as gateway:
        crowd = flood(port_of(gateway, "raw"), 7, 36, b"x")  # fewer than there are descriptors
        try:
            until(lambda: len(raw_route(gateway)["clients"]) == len(crowd), what="all of them")
            assert "descriptors" not in refused(gateway)
            gateway.configure(crowded(authority))
            answer = ask(gateway, "reload")
            assert answer["settings"] == ["limits.reserve-descriptors"], answer
            # The first clients may get low numbers, which the status requests have released.
            crowd += flood(port_of(gateway, "raw"), 7, 2, b"x")
            until(lambda: refused(gateway).get("descriptors", 0) > 4, what="refusals")
        finally:
            for client in crowd:
                client.close()


def test_a_memory_limit_bounds_handshakes(authority):
    """A limit of address space, which a test can set everywhere; and a number in the configuration."""
    limit = 1 << 30
    with Gateway(few(authority), prefix=limited(**{"as": limit}), stopping=False) as gateway:
        assert ask(gateway, "status")["handshakes"]["most"] < 8000
    config = {**few(authority), "limits": {"handshakes": 200}}
    with Gateway(config, stopping=False) as gateway:
        crowd = flood(port_of(gateway, "safe"), 40, 20, HALF_HELLO)
        try:
            counts = many_refused(gateway)
            assert counts["most"] == 200 and counts["unfinished"] <= 200, counts
            # Each address keeps its share.
            lines = [e for e in gateway.events("session ended") if "limits.handshakes" in e.get("error", "")]
            assert lines, "no line says why"
        finally:
            for client in crowd:
                client.close()


@contextlib.contextmanager
def memory_cgroup(limit):
    """A prefix that runs a process with this much memory, if a cgroup can be made."""
    for base, file in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        folder = pathlib.Path(base) / f"bw-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if not (folder / file).exists():
                folder.rmdir()
                continue
            try:
                (folder / file).write_text(str(limit))
                yield ["/bin/sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
            finally:
                until(lambda: not (folder / "cgroup.procs").read_text(), what="the cgroup to be empty")
                folder.rmdir()
            return
    pytest.skip("no cgroup of memory can be made here")


@pytest.mark.measured
@pytest.mark.timed
@pytest.mark.heavy
@pytest.mark.root("makes a cgroup")
def test_four_thousand_half_open_handshakes_fit_into_a_cgroup_of_120_mb(authority):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 5000:
        pytest.skip("takes 5,000 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with memory_cgroup(120_000_000) as prefix, Gateway(few(authority), prefix=prefix, stopping=False) as gateway:
            crowd = flood(port_of(gateway, "safe"), 40, 100, HALF_HELLO)
            try:
                assert len(crowd) == 4000
                began = time.monotonic()
                assert ask(gateway)["healthy"]
                assert time.monotonic() - began < 5
                counts = ask(gateway, "status")["handshakes"]
                assert 100 < counts["most"] < 450 and counts["unfinished"] <= counts["most"], counts
                echo(("127.0.0.1", port_of(gateway, "raw")))
                upgrade(port_of(gateway, "web"))
            finally:
                for client in crowd:
                    client.close()
            assert gateway.process.poll() is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_check_reports_what_clients_can_cost(authority, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"version": 1, **few(authority)}))
    said = subprocess.run(
        [*limited(nofile=300), binary(), "check", str(path)], capture_output=True, text=True, timeout=GUARD).stdout
    most, each, total = map(int, re.search(
        r"# handshakes: at most (\d+) unfinished at a time, (\d+) KiB each: at most (\d+) MiB", said).groups())
    assert most < 150 and total == most * each >> 10
    assert re.search(r"# memory: at most \d+ MiB for clients of all routes", said)


# --- memory returns ------------------------------------------------------------------------------------------------


def anonymous(gateway):
    """In KiB."""
    text = pathlib.Path(f"/proc/{gateway.pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss_Anon: +(\d+)", text, re.M)[1])


def wave(port, count):
    import ssl
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    clients = [context.wrap_socket(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(count)]
    for client in clients:
        client.close()


@pytest.mark.measured
@pytest.mark.waits
def test_memory_returns_after_a_wave_of_clients():
    # A new name in a folder on the way to a certificate wakes the gateway, and other tests make folders in /tmp.
    with tempfile.TemporaryDirectory(prefix="bw-", dir="/var/tmp") as folder:
        memory_returns(few(Authority(pathlib.Path(folder))))


def memory_returns(config: dict):
    config["routes"]["safe"].update({"link": "per-client", "clients": {"max": 5000}})
    config["limits"] = {"handshakes-per-address": 1000}
    with Gateway(config, stopping=False) as gateway:
        port = port_of(gateway, "safe")
        wave(port, 200)
        until(lambda: not ask(gateway, "status")["routes"][2]["clients"], what="they have gone")
        before = anonymous(gateway)
        wave(port, 1200)
        after = anonymous(gateway)
        limit = before + max(before // 10, 4096)
        assert after > limit, f"{before} KiB before the wave, {after} after it: too small to see anything"
        until(lambda: anonymous(gateway) <= limit, what=f"memory as before: {before}, {after}, {anonymous(gateway)} KiB")
        gateway.falls_asleep(3)


def arenas(gateway):
    """Number of malloc(3)'s arenas besides the first: each reserves 64 MiB at a multiple of that, and uses the
    beginning."""
    maps = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) (rw-p|---p) 0+ 00:00 0", pathlib.Path(f"/proc/{gateway.pid}/maps").read_text(), re.M)
    maps = [(int(start, 16), int(end, 16), rights) for start, end, rights in maps]
    return sum(used[1:] == (rest[0], "rw-p") and rest[2] == "---p" and used[0] % (64 << 20) == 0 and rest[1] - used[0] == 64 << 20
               for used, rest in zip(maps, maps[1:]))


@pytest.mark.measured
def test_malloc_uses_one_arena(authority):
    """Each arena would keep pages of every wave of clients."""
    with Gateway(few(authority), stopping=False) as gateway:
        for _ in range(3):
            wave(port_of(gateway, "safe"), 3)
        assert arenas(gateway) == 0
