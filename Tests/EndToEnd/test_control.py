"""Watching and controlling a running gateway: status, reload, kick, and serve --watch."""
import collections
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time

import pytest
from kit import GUARD, Deadline, Gateway, Pty, binary, connect, free_port, receive_all, reset, round_trip, until

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
OWN = {**ECHO, "link": "per-client"}


def status(gateway) -> dict:
    done = gateway.command("status", str(gateway.path), "--json")
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


def route(gateway, name: str) -> dict:
    return next(r for r in status(gateway)["routes"] if r["route"] == name)


# --- status ----------------------------------------------------------------------------------------------------------


def test_status_prints_a_readable_table():
    with Gateway({"routes": {"echo": ECHO, "away": {**ECHO, "endpoint": "tty:///dev/none", "device": {"open": "always"}}}}) as gateway:
        with gateway.connect("echo") as client:
            round_trip(client, b"x" * 2048)
            done = gateway.command("status", str(gateway.path))
            assert (done.returncode, done.stderr) == (0, "")
            lines = done.stdout.splitlines()
            assert re.fullmatch(rf"baudway \S+, pid {gateway.pid}, up \S+( \S+)?: healthy, 2 routes, 1 client", lines[0]), lines[0]
            assert any(re.match(r"echo +open \S+ +sim://echo +tcp://127.0.0.1:\d+ +1/8 +2.0 KiB +2.0 KiB +-$", l) for l in lines), lines
            assert any(re.match(r"away +(waiting|opening) .*tty:///dev/none", l) for l in lines), lines
            assert any("ENOENT" in l and l.startswith("  ") for l in lines), lines
            name = "%s:%d" % client.getsockname()
            assert any(re.match(rf" +\d+ +echo +{name} .* 2.0 KiB +2.0 KiB +- +-$", l) for l in lines), lines
            assert "\x1b" not in done.stdout  # colours are for terminals


def test_status_shows_bytes_drops_and_the_holder_of_the_writer_role():
    config = {"routes": {"echo": {**ECHO, "clients": {"writers": "one"}}}}
    with Gateway(config) as gateway:
        with gateway.connect("echo") as first, gateway.connect("echo") as second:
            round_trip(first, b"x" * 1000)
            second.sendall(b"y" * 500)  # without the writer role: read, dropped and counted
            until(lambda: route(gateway, "echo")["totals"]["dropped"] == 500, what="500 bytes dropped")
            picture = route(gateway, "echo")
            writers = {c["session"]: (c["writer"], c["up"], c["dropped"]) for c in picture["clients"]}
            opened = [e["session"] for e in gateway.events("session opened")]
            assert writers == {opened[0]: (True, 1000, 0), opened[1]: (False, 0, 500)}
            assert picture["totals"]["up"] == 1000
            assert [s for s in gateway.command("status", str(gateway.path)).stdout.splitlines() if s.endswith(" writer")]


def test_every_ending_has_the_same_word_in_log_and_status():
    config = {"routes": {"own": OWN, "one": {**OWN, "clients": {"max": 1}}, "gone": {**OWN, "endpoint": f"tcp://127.0.0.1:{free_port()}"}}}
    with Gateway(config) as gateway:
        with gateway.connect("own") as client:
            round_trip(client)
        client = gateway.connect("own")
        round_trip(client)
        reset(client)
        with gateway.connect("gone") as client:
            receive_all(client)
        with gateway.connect("one") as holder:
            round_trip(holder)
            with gateway.connect("one") as refused:
                assert b"full" in receive_all(refused)
            assert gateway.command("kick", "one", "--all", "-c", str(gateway.path)).returncode == 0
            assert receive_all(holder) == b""
        gateway.event("session ended", count=5)
        told = collections.Counter((e["route"], e["reason"]) for e in gateway.events("session ended"))
        shown = {(r["route"], word): count for r in status(gateway)["routes"] for word, count in r["totals"]["ended"].items()}
        assert shown == dict(told)
        words = {word for _, word in told}
        assert words == {"client-left", "client-lost", "open-failed", "full", "kicked"}, words


def test_commands_without_a_running_gateway_fail():
    gateway = Gateway({"routes": {"echo": ECHO}})
    for words in (["status"], ["reload"], ["kick", "echo", "--all", "-c"]):
        done = gateway.command(*words, str(gateway.path))
        assert done.returncode == 69, done  # EX_UNAVAILABLE
        assert "no gateway answers at" in done.stderr and not done.stdout


class AbstractSocketGateway(Gateway):
    """With an abstract control socket, as when there is no folder for one."""

    @property
    def environment(self) -> dict:
        return {k: v for k, v in os.environ.items() if k != "RUNTIME_DIRECTORY"}

    def __enter__(self):
        if os.path.exists("/run/baudway"):
            pytest.skip("auto means /run/baudway here")
        os.chmod(self.folder, 0o755)
        return super().__enter__()

    def asked(self, *words, user: int | None = None) -> subprocess.CompletedProcess:
        """Runs a command in the configuration's folder."""
        other = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        return subprocess.run(
            [binary(), *words], env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=GUARD, **other)


NOBODY = 65534


def test_status_finds_the_gateway_after_its_configuration_is_removed():
    with AbstractSocketGateway({"routes": {"echo": ECHO}}) as gateway:
        gateway.path.unlink()
        done = gateway.asked("status", "config.yaml")
        assert (done.returncode, done.stderr) == (0, ""), done


@pytest.fixture
def another_user_can_run_it():
    """Skips the test if only its owner can enter the checkout."""
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", "test", "-x", binary()]
    if subprocess.run(as_nobody).returncode:
        pytest.skip("another user may not run it here")


@pytest.mark.root("runs a gateway as another user")
def test_root_queries_another_users_gateway_by_its_abstract_address(another_user_can_run_it):
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    with AbstractSocketGateway({"routes": {"echo": ECHO}}, prefix=as_nobody) as gateway:
        done = gateway.asked("health", "--control", f"@baudway/{NOBODY}/{gateway.path}")
        assert (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.root("asks as another user")
def test_a_user_without_permission_gets_a_clear_error(another_user_can_run_it):
    with AbstractSocketGateway({"routes": {"echo": ECHO}}) as abstract, Gateway({"routes": {"echo": ECHO}}) as other:
        for address in (f"@baudway/0/{abstract.path}", f"{other.folder}/control.sock"):
            for words, code in (["status"], 77), (["kick", "echo", "--all"], 77), (["health"], 1):  # EX_NOPERM
                done = abstract.asked(*words, "--control", address, user=NOBODY)
                assert done.returncode == code, done
                assert "no permission to use the gateway at" in done.stderr and "no gateway" not in done.stderr


def test_a_control_socket_without_its_folder_is_reported_with_the_missing_path(folder):
    with Gateway({"control": {"socket": f"{folder}/none/c.sock"}, "routes": {"echo": ECHO}}) as gateway:
        assert "create its folder first" in gateway.event("control socket failed")["error"]


def test_status_finds_the_gateway_after_its_configuration_is_broken():
    with Gateway({"control": {"socket": "/tmp/bw-control-%d.sock" % os.getpid()}, "routes": {"echo": ECHO}}) as gateway:
        gateway.path.write_text(gateway.path.read_text().replace('"endpoint"', '"endpiont"'))
        assert route(gateway, "echo")["state"]["word"] == "closed"


# --- reload ----------------------------------------------------------------------------------------------------------


def test_reload_prints_the_changes_after_they_are_applied():
    port = free_port()
    with Gateway({"routes": {"stays": ECHO, "goes": ECHO, "changes": ECHO}}) as gateway, gateway.connect("changes") as client:
        round_trip(client)
        late = {**ECHO, "listen": f"tcp://127.0.0.1:{port}"}
        gateway.configure({"routes": {"stays": ECHO, "changes": {**ECHO, "clients": {"max": 3, "slow": "block"}}, "comes": late}})
        done = gateway.command("reload", str(gateway.path))
        assert (done.returncode, done.stderr) == (0, ""), done
        assert done.stdout.splitlines() == [
            "added    comes", "removed  goes", "changed  changes: clients.max, clients.slow", "1 route untouched"]
        with connect(("127.0.0.1", port)) as new:
            round_trip(new)
        round_trip(client)
        done = gateway.command("reload", str(gateway.path), "--json")
        assert json.loads(done.stdout) == {
            "reloaded": True, "added": [], "removed": [], "changed": [], "untouched": 3, "settings": []}


def test_a_failed_reload_reports_all_errors_and_changes_nothing():
    with Gateway({"routes": {"echo": ECHO}}) as gateway, gateway.connect("echo") as client:
        gateway.path.write_text("version: 1\nroutes:\n  echo:\n    lisen: x\n    endpoint: sim://ecko\n")
        done = gateway.command("reload", str(gateway.path))
        assert done.returncode == 78 and not done.stdout, done  # EX_CONFIG
        assert re.search(r"^\S*config\.yaml:4:5: routes\.echo: unknown key 'lisen'", done.stderr, re.M), done.stderr
        assert re.search(r"^\S*config\.yaml:5:\d+: routes\.echo\.endpoint: ", done.stderr, re.M), done.stderr
        round_trip(client)
        assert gateway.event("reload failed")


def test_reload_changes_format_and_level_of_the_log():
    with Gateway({"routes": {"echo": ECHO}}) as gateway:
        gateway.configure({"log": {"format": "text", "level": "debug"}, "routes": {"echo": ECHO}})
        done = gateway.command("reload", str(gateway.path))
        assert "changed  log.level" in done.stdout and "changed  log.format" in done.stdout
        client = gateway.connect("echo")
        until(lambda: any(re.match(r"\S+Z debug link opening ", line) for line in gateway.lines), what="a debug line as text")
        assert not any(e["level"] == "debug" for e in gateway.entries)
        gateway.configure({"log": {"format": "json", "level": "info"}, "routes": {"echo": ECHO}})
        assert gateway.command("reload", str(gateway.path)).returncode == 0
        assert gateway.event("reloaded", count=1)["changes"] == "log.level log.format"
        # Lines written as text are missing in the account of sessions.
        gateway.stopping = False
        reset(client)
        gateway.stop()


@pytest.mark.parametrize("how", ["write", "rename", "swap"])
def test_a_watched_file_is_reloaded(how):
    """The ways to write: in place like an editor, renamed over, and like Kubernetes, which swaps the folder behind
    links."""
    gateway = Gateway({"routes": {"echo": ECHO}}, stopping=False)
    new = json.dumps({"version": 1, "log": {"format": "json", "repeats": "all"}, "routes": {"echo": ECHO, "new": ECHO}})
    if how == "swap":
        for name in ("one", "two"):
            (gateway.folder / name).mkdir()
        gateway.path.rename(gateway.folder / "one" / "config.yaml")
        (gateway.folder / "two" / "config.yaml").write_text(new)
        (gateway.folder / "..data").symlink_to("one")
        gateway.path.symlink_to("..data/config.yaml")
    gateway.prefix = []
    gateway.process = subprocess.Popen(
        [binary(), "serve", "--watch", str(gateway.path)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=gateway.environment)
    gateway.follow(gateway.process.stderr)
    try:
        with gateway.connect("echo") as client:
            round_trip(client)
            gateway.event("started")
            # The test cannot see when the watch is set up, and a change before that is missed, so it is repeated.
            deadline = Deadline(GUARD)
            while not gateway.events("listening", route="new"):
                assert not deadline.passed, gateway.lines
                if how == "write":
                    gateway.path.write_text(new)
                elif how == "rename":
                    (gateway.folder / "new.yaml").write_text(new)
                    (gateway.folder / "new.yaml").rename(gateway.path)
                else:
                    (gateway.folder / "..tmp").symlink_to("two")
                    (gateway.folder / "..tmp").rename(gateway.folder / "..data")
                time.sleep(0.5)
            round_trip(client)
            with gateway.connect("new") as other:
                round_trip(other)
            assert not gateway.events("reload failed")
            gateway.path.resolve().write_text("routes: {")
            assert gateway.event("reload failed")
            round_trip(client)
        gateway.stop()
    finally:
        gateway.__exit__(None, None, None)


# --- reset -----------------------------------------------------------------------------------------------------------


def test_reset_says_why_nothing_was_reset():
    with Pty() as device, Gateway({"routes": {
            "port": {**ECHO, "endpoint": device.url, "device": {"reset": "esp32"}},
            "echo": {**ECHO, "device": {"open": "always"}}, "own": OWN}}) as gateway:
        def asked(*words):
            return gateway.command("reset", *words, "-c", str(gateway.path))

        gateway.event("link open", route="echo")
        for words, code, reason in (
                (["port"], 1, "port was not reset: the link is closed; connect a client, or set 'device.open' to always"),
                (["echo"], 1, "echo was not reset: the route has no 'device.reset'; name a recipe: esp32, "),
                (["echo", "avr"], 1, "this endpoint has no DTR and RTS"), (["own", "avr"], 1, "a link of its own"),
                (["none", "avr"], 64, "there is no route 'none'"), (["port", "esp23"], 64, "did you mean 'esp32'?"),
                (["port", "custom(dtr=of)"], 64, "step 1, 'dtr=of': expected dtr=on, dtr=off")):
            done = asked(*words)
            assert (done.returncode, done.stdout) == (code, "") and reason in done.stderr, done
        # A pty has no modem lines.
        with gateway.connect("port"):
            gateway.event("link open", route="port")
            done = asked("port", "--json")
            assert done.returncode == 1 and not done.stderr
            answer = json.loads(done.stdout)
            assert (answer["reset"], answer["route"]) == (False, "port") and "the port has no DTR and RTS" in answer["error"]
            failed = gateway.event("device reset")
            assert (failed["route"], failed["recipe"], failed["level"]) == ("port", "esp32", "warning")


# --- release and reopen ----------------------------------------------------------------------------------------------


def test_a_released_port_is_free_for_another_program_until_it_is_reopened():
    with Pty() as device, Gateway({"routes": {"port": {**ECHO, "endpoint": device.url}, "own": OWN}}) as gateway:
        def asked(*words):
            return gateway.command(*words, "-c", str(gateway.path))

        with gateway.connect("port") as client:
            gateway.event("link open", route="port")
            client.sendall(b"before")
            assert device.read(6) == b"before"
            done = asked("release", "port")
            assert (done.returncode, done.stdout, done.stderr) == (0, "port was released\n", "")
            assert gateway.event("link released")["level"] == "info"
            audit = gateway.event("admin release")
            assert audit["route"] == "port" and audit["client"].startswith("control socket, user ") and "error" not in audit
            # The gateway locks the ports that it has open.
            with open(device.path, "r+b", buffering=0) as port:
                fcntl.flock(port, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.ioctl(port, termios.TIOCEXCL)
                fcntl.ioctl(port, termios.TIOCNXCL)  # a pty keeps it beyond the close
            state = route(gateway, "port")["state"]
            assert (state["word"], state["released"]) == ("waiting", True) and "retry" not in state
            assert "released; 'baudway reopen port' opens it again" in gateway.command("status", str(gateway.path)).stdout
            # Clients are held, new ones, too.
            client.sendall(b"held")
            with gateway.connect("port") as late:
                gateway.event("session opened", count=2, route="port")
                late.sendall(b" too")
                assert asked("release", "port").returncode == 0 and not gateway.events("link open")[1:]
                until(lambda: sum(c["queued-up"] for c in route(gateway, "port")["clients"]) == 8, what="their input")
                done = asked("reopen", "port")
                assert (done.returncode, done.stdout) == (0, "port is opening\n"), done
                gateway.event("link open", count=2, route="port")
                assert device.read(8) in (b"held too", b" tooheld")
        for words, code, reason in (
                (["release", "own"], 1, "own was not released: each client of this route has a link of its own"),
                (["release", "none"], 64, "there is no route 'none'"), (["reopen", "none"], 64, "there is no route 'none'")):
            done = asked(*words)
            assert (done.returncode, done.stdout) == (code, "") and reason in done.stderr, done
        assert json.loads(asked("reopen", "port", "--json").stdout)["reopened"] is True


def test_clients_of_a_released_port_end_where_an_absent_device_ends_them():
    with Pty() as device, Gateway({"routes": {"port": {**ECHO, "endpoint": device.url, "device": {"absent": "close"}}}}) as gateway:
        with gateway.connect("port") as client:
            gateway.event("link open")
            assert gateway.command("release", "port", "-c", str(gateway.path)).returncode == 0
            receive_all(client)
            assert gateway.event("session ended")["reason"] == "device-lost"
        with gateway.connect("port") as client:
            assert receive_all(client) == b"baudway: the device of port is released\r\n"
            assert gateway.event("session ended", count=2)["error"] == "the port was released"


def test_a_reload_does_not_reopen_a_released_port():
    with Pty() as device:
        config = {"routes": {"port": {**ECHO, "endpoint": device.url, "device": {"open": "always"}}}}
        with Gateway(config) as gateway:
            gateway.event("link open")
            assert gateway.command("release", "port", "-c", str(gateway.path)).returncode == 0
            config["routes"]["port"]["endpoint"] += "?baud=9600"
            gateway.configure(config)
            assert gateway.command("reload", str(gateway.path)).returncode == 0
            assert route(gateway, "port")["state"]["released"] is True and len(gateway.events("link open")) == 1
            assert gateway.command("reopen", "port", "-c", str(gateway.path)).returncode == 0
            gateway.event("link open", count=2)
            assert route(gateway, "port")["state"]["line"].startswith("9600")


# --- kick ------------------------------------------------------------------------------------------------------------


def test_kick_disconnects_only_the_named_clients():
    with Gateway({"routes": {"own": OWN, "other": OWN}}) as gateway:
        clients = [gateway.connect("own") for _ in range(3)] + [gateway.connect("other")]
        for client in clients:
            round_trip(client)
        by_name = {c["client"]: c["session"] for c in route(gateway, "own")["clients"]}
        numbers = [by_name["%s:%d" % c.getsockname()] for c in clients[:3]]
        done = gateway.command("kick", "own", str(numbers[1]), "-c", str(gateway.path))
        assert (done.returncode, done.stdout) == (0, f"session {numbers[1]} of own ended\n"), done
        assert receive_all(clients[1]) == b""
        assert gateway.event("session ended")["reason"] == "kicked"
        round_trip(clients[0])
        done = gateway.command("kick", "own", str(numbers[1]), str(numbers[2]), "-c", str(gateway.path))
        assert done.returncode == 1 and f"no session {numbers[1]}" in done.stderr, done
        assert receive_all(clients[2]) == b""
        done = gateway.command("kick", "own", "--all", "-c", str(gateway.path))
        assert (done.returncode, done.stdout) == (0, f"session {numbers[0]} of own ended\n"), done
        assert gateway.command("kick", "own", "--all", "-c", str(gateway.path)).stdout == "own has no clients\n"
        assert gateway.command("kick", "nope", "--all", "-c", str(gateway.path)).returncode == 64
        assert gateway.command("kick", "own", "-c", str(gateway.path)).returncode == 64
        round_trip(clients[3])
        for client in clients:
            client.close()


def test_kick_prints_what_it_has_ended_also_if_a_later_request_fails(tmp_path):
    """A request names 30 sessions at most."""
    address = str(tmp_path / "control")
    with socket.socket(socket.AF_UNIX) as gateway:
        gateway.bind(address)
        gateway.listen()
        gateway.settimeout(GUARD)
        numbers = [str(number) for number in range(1, 41)]
        command = subprocess.Popen(
            [binary(), "kick", "own", *numbers, "--control", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for answer in (json.dumps({"kicked": list(range(1, 31))}) + "\n", ""):
            connection = gateway.accept()[0]
            with connection, connection.makefile() as requests:
                assert json.loads(requests.readline())["request"] == "kick"
                connection.sendall(answer.encode())
        out, errors = command.communicate(timeout=GUARD)
    assert command.returncode == 69 and "no gateway answers" in errors, errors  # EX_UNAVAILABLE
    assert out == "".join(f"session {number} of own ended\n" for number in range(1, 31)), out


# --- watching --------------------------------------------------------------------------------------------------------


class Terminal:
    """A program on a terminal of `rows` and `columns`: what it writes, and the terminal's state afterwards."""

    def __init__(self, *words, env, rows=24, columns=100):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        slave = self.slave

        def control():  # makes a new session, so that ^C and ^Z reach it
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            words, stdin=self.slave, stdout=self.slave, stderr=self.slave, env={**env, "TERM": "xterm"}, preexec_fn=control)
        self.output = b""

    def read_until(self, pattern: bytes, seconds: float = GUARD, count: int = 1):
        deadline = Deadline(seconds)
        while len(re.findall(pattern, self.output, re.S)) < count:
            assert not deadline.passed, f"no {count} {pattern!r} in {self.output[-2000:]!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.output += os.read(self.master, 65536)

    def end(self) -> int:
        code = self.process.wait(GUARD)
        while select.select([self.master], [], [], 0.1)[0]:
            self.output += os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.before
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


ENTER, LEAVE, HOME = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[H"


@pytest.mark.parametrize("end", [b"\x03", signal.SIGTERM, signal.SIGHUP])
def test_watch_draws_each_second_and_restores_the_terminal(end):
    with Gateway({"routes": {"gps": {**ECHO, "endpoint": "sim://nmea?rate=10"}}}) as gateway, gateway.connect("gps") as client:
        with Terminal(binary(), "status", str(gateway.path), "--watch", env=gateway.environment) as terminal:
            # Rates appear from the third screen on.
            terminal.read_until(re.escape(HOME), count=3)
            terminal.read_until(rb"DOWN/S.*gps")
            if isinstance(end, bytes):
                os.write(terminal.master, end)
            else:
                terminal.process.send_signal(end)
            assert terminal.end() == 0
            out = terminal.output
            assert out.startswith(ENTER + b"\x1b[?25l") and out.rstrip().endswith(b"\x1b[?25h" + LEAVE), out[-200:]
            assert out.count(ENTER) == out.count(LEAVE) == 1
            assert b"\x1b[2J" not in out and b"\x1b[J" in out  # drawn over, never cleared: no flicker
        client.recv(1)


# Plays the shell: the kernel only stops a job that has a shell to continue it.
SHELL = """
import os, sys
if (job := os.fork()) == 0:
    os.setpgid(0, 0)
    os.execv(sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]))
"""


def test_watch_can_be_suspended_and_resumed():
    with Gateway({"routes": {"echo": ECHO}}) as gateway:
        words = ["/usr/bin/python3", "-c", SHELL, binary(), "status", str(gateway.path), "--watch"]
        with Terminal(*words, env=gateway.environment) as terminal:
            terminal.read_until(re.escape(HOME))
            shell = terminal.process.pid
            job = int(open(f"/proc/{shell}/task/{shell}/children").read())
            os.kill(job, signal.SIGTSTP)
            terminal.read_until(re.escape(LEAVE))
            until(lambda: open(f"/proc/{job}/stat").read().rpartition(")")[2].split()[0] == "T", what="stopped")
            assert termios.tcgetattr(terminal.slave) == terminal.before
            os.kill(job, signal.SIGCONT)
            terminal.read_until(re.escape(ENTER), count=2)
            os.kill(job, signal.SIGINT)
            assert terminal.end() == 0


def test_watch_never_draws_beyond_the_terminal():
    routes = {f"route-{n:02}": ECHO for n in range(30)}
    with Gateway({"routes": routes}) as gateway:
        with Terminal(binary(), "status", str(gateway.path), "--watch", env=gateway.environment, rows=10, columns=40) as terminal:
            terminal.read_until(re.escape(HOME) + rb".*\x1b\[J")
            terminal.process.send_signal(signal.SIGINT)
            terminal.end()
            picture = terminal.output.split(HOME)[1].split(b"\x1b[J")[0]
            lines = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]|\r", b"", picture).split(b"\n")
            assert len(lines) == 10 and all(len(line.decode()) <= 40 for line in lines), lines
            assert re.search(r"… \d+ more lines", lines[-1].decode())


@pytest.mark.parametrize("columns", [100, 80])
def test_watch_keeps_the_important_columns_on_a_narrow_terminal(columns):
    name = "a-route-with-a-name-of-some-length"
    with Gateway({"routes": {name: {**ECHO, "listen": "tcp://127.0.0.1:0?role=monitor", "endpoint": "sim://nmea?rate=50"}}}) as gateway:
        with gateway.connect(name) as client:
            words = [binary(), "status", str(gateway.path), "--watch"]
            with Terminal(*words, env=gateway.environment, columns=columns) as terminal:
                client.recv(1)
                terminal.read_until(re.escape(HOME), count=4)
                terminal.process.send_signal(signal.SIGINT)
                terminal.end()
                picture = terminal.output.split(HOME)[3].split(b"\x1b[J")[0]
                lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", picture.decode()).split("\n")
                assert all(len(line) <= columns for line in lines), lines
                (routes, clients) = [n for n, line in enumerate(lines) if line.split()[:1] in (["ROUTE"], ["SESSION"])][:2]
                for head, row in ((routes, routes + 1), (clients, clients + 1)):
                    heads = lines[head].split()
                    assert {"UP/S", "DOWN/S", "DROPPED"} <= set(heads), lines
                    assert "a-ro" in lines[row] and "1/8" in lines[routes + 1], lines
                assert lines[clients + 1].endswith(" monitor"), lines
                assert re.search(r"127.0.*%d" % client.getsockname()[1], lines[clients + 1]), lines


def test_watch_waits_for_a_stopped_gateway():
    gateway = Gateway({"routes": {"echo": ECHO}})
    with gateway:
        terminal = Terminal(binary(), "status", str(gateway.path), "--watch", env=gateway.environment)
        terminal.read_until(rb"healthy")
    with terminal:
        terminal.read_until(rb"no gateway answers at")
        assert terminal.process.poll() is None
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0


def test_watch_into_a_pipe_prints_one_table_after_the_other():
    with Gateway({"routes": {"echo": ECHO}}) as gateway:
        watch = subprocess.Popen(
            [binary(), "status", str(gateway.path), "--watch", "--json"], env=gateway.environment, stdout=subprocess.PIPE)
        try:
            for _ in range(3):
                assert json.loads(watch.stdout.readline())["routes"][0]["route"] == "echo"
        finally:
            watch.kill()
            watch.wait()
            watch.stdout.close()


# --- the socket ------------------------------------------------------------------------------------------------------


@pytest.mark.measured
@pytest.mark.heavy
def test_slow_readers_of_a_long_status_delay_no_client():
    """An answer of any size is produced while it is read: the gateway does not store it, and carries bytes
    meanwhile."""
    count = 2000
    with Gateway({"routes": {"crowd": {**OWN, "clients": {"max": count}}, "echo": ECHO}}) as gateway:
        address = gateway.address("crowd")
        crowd = [connect(address) for _ in range(count)]
        gateway.event("session opened", count=count)
        with gateway.connect("echo") as client:
            before = memory(gateway.pid)
            slow = [socket.socket(socket.AF_UNIX) for _ in range(12)]
            for one in slow:
                one.connect(str(gateway.folder / "control.sock"))
                one.sendall(b"status\n")
            for _ in range(20):
                round_trip(client)
            assert len(status(gateway)["routes"][0]["clients"]) == count
            assert memory(gateway.pid) - before < 16 << 20
            for one in slow:
                one.close()
        for one in crowd:
            reset(one)


def memory(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
