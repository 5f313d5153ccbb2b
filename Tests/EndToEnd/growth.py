#!/usr/bin/env python3
"""How the work of each command grows with the number of routes, in instructions: `growth.py [--binary FILE] [COUNT …]`.

Valgrind counts the instructions, so the figures are the same on a busy machine and on one without performance counters.
The routes are WebSockets that share one port (and, as `wss`, one certificate), so that each could be compared with all
others. A gateway runs under Valgrind and is asked over its control socket; `status` and `kick` also count the command's
own work. `metrics` is one answer of the admin listener; `events` is an event stream that is read while a client visits each
route, with the client's session.
"""
import argparse
import contextlib
import os
import pathlib
import re
import shutil
import socket
import string
import struct
import subprocess
import sys
import tempfile
import time

from kit import binary, free_port

COLUMNS = ["check", "start", "reload", "replace", "status", "kick", "metrics", "events", "start wss", "reload wss"]


def short(number: int) -> str:
    """`number` in base 36: so 16,000 routes fit into the 1 MiB limit of a configuration."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = (string.digits + string.ascii_lowercase)[digit] + digits
    return digits


def config(count: int, port: int, scheme: str = "ws", *, clients: int = 8, replaced: bool = False, admin: int = 0) -> str:
    """`clients` changes every route, `replaced` gives half of them another name and path, `admin` is that listener's port."""
    lines = [f"defaults: {{clients: {{max: {clients}}}}}"]
    if admin:
        lines.append(f"admin: {{listen: 'http://127.0.0.1:{admin}'}}")
    if scheme == "wss":
        lines.append("tls: {certificate: cert.pem, key: key.pem}")
    lines.append("routes:")
    for number in range(count):
        name = ("x" if replaced and number % 2 else "r") + short(number)
        lines.append(f" {name}: {{listen: {scheme}://127.0.0.1:{port}/{name}, endpoint: sim://echo}}")
    return "\n".join(lines) + "\n"


def of_command(program: str, *words: str, environment=None) -> int:
    """The instructions of a command that ends by itself."""
    with tempfile.NamedTemporaryFile("r") as log:
        done = subprocess.run(
            ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", f"--log-file={log.name}",
             program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, timeout=1200)
        assert done.returncode == 0, done.stderr[-2000:]
        return int(re.search(r"I\s+refs:\s+([\d,]+)", log.read())[1].replace(",", ""))


class CountedGateway:
    """A gateway in its own folder, healthy once made; under Valgrind if it is counted."""

    def __init__(self, program: str, text: str, certificate=None, is_counted=True):
        self.program = program
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bw-growth-"))
        self.path = self.folder / "config.yaml"
        self.path.write_text(text)
        for source, name in zip(certificate or (), ("cert.pem", "key.pem")):
            shutil.copy(source, self.folder / name)
        self.environment = {**os.environ, "RUNTIME_DIRECTORY": str(self.folder)}
        self.log = open(self.folder / "log", "w+b")
        prefix = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={self.folder}/counts", "--vgdb=yes",
                  f"--vgdb-prefix={self.folder}/vgdb"]
        self.process = subprocess.Popen(
            [*(prefix if is_counted else []), program, "serve", str(self.path)],
            stdout=subprocess.DEVNULL, stderr=self.log, env=self.environment)
        try:
            self.wait()
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float = 1200):
        end = time.monotonic() + seconds
        while not self.ask("health").startswith('{"healthy":true'):
            assert self.process.poll() is None and time.monotonic() < end, (self.folder / "log").read_bytes()[-2000:]
            time.sleep(0.2)

    def rest(self, seconds: float = 1200):
        """Waits until no thread has run for half a second: when it is healthy or has answered, follow-up work may still
        run."""
        end, quiet = time.monotonic() + seconds, 0
        while quiet < 10:
            states = [path.read_text().rsplit(")", 1)[1].split()[0] for path in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/stat")]
            quiet = 0 if {"R", "D"} & set(states) else quiet + 1
            assert self.process.poll() is None and time.monotonic() < end, states
            time.sleep(0.05)

    def total(self) -> int:
        """All instructions so far, once it is at rest."""
        self.rest()
        done = subprocess.run(
            ["vgdb", f"--pid={self.process.pid}", f"--vgdb-prefix={self.folder}/vgdb", "status", "internal"],
            capture_output=True, text=True, timeout=600)
        # One line per thread, "events-3: 4711"; lines of single calls have two numbers.
        counts = [int(n) for n in re.findall(r"^events-\d+: (\d+)$", done.stdout, re.M)]
        assert counts, done.stdout + done.stderr
        return sum(counts)

    def ask(self, request: str, *, may_be_late: bool = False) -> str:
        """The control socket's answer; the commands themselves time out before Valgrind is done. Empty if there is none
        yet. A request that `may_be_late` gets that answer after a minute."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(1200)
            try:
                control.connect(str(self.folder / "control.sock"))
            except OSError:
                return ""
            control.sendall(f"{request}\n".encode())
            pieces = []
            while piece := control.recv(1 << 20):
                pieces.append(piece)
        answer = b"".join(pieces).decode()
        assert '"stuck":true' not in answer, answer[:500]
        assert '"error"' not in answer or (may_be_late and "it may finish later" in answer), answer[:500]
        return answer

    def reloads(self) -> int:
        """How many reloads it has logged."""
        return (self.folder / "log").read_bytes().count(b" reloaded ")

    def close(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def answer_of(admin: int, path: str) -> bytes:
    """The whole answer of the admin listener."""
    with socket.create_connection(("127.0.0.1", admin), timeout=1200) as client:
        client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(1 << 20), b""))


def metrics(admin: int, count: int):
    text = answer_of(admin, "/metrics")
    found = re.findall(rb"^baudway_route_up{.*} (\d)$", text, re.M)
    assert found == [b"1"] * count, (len(found), text[:300])


UPGRADE = ("GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
           "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")


def visit(stream, port: int, count: int):
    """A client connects to each route and leaves it, and the event stream reports it before the next one comes."""
    for number in range(count):
        with socket.create_connection(("127.0.0.1", port), timeout=1200) as client:
            client.sendall(UPGRADE.format(path=f"r{short(number)}").encode())
            assert b" 101 " in client.recv(4096)
            # Leaves with a reset.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while (line := stream.readline()) != b"event: session ended\n":
            assert line and line != b"event: lost\n", line


def measure(program: str, count: int, certificate=None, *, columns=COLUMNS) -> dict[str, int]:
    """The instructions of each of `columns` for a gateway of `count` routes."""
    with tempfile.TemporaryDirectory(prefix="bw-growth-") as folder:
        # Valgrind 3.19 fails on the newer debug information of an unoptimised build.
        plain = str(pathlib.Path(folder, "baudway"))
        subprocess.run(["strip", "--strip-debug", "-o", plain, program], check=True, timeout=600)
        return _measure(plain, count, certificate, columns)


def _measure(program, count, certificate, columns) -> dict[str, int]:
    found, port = {}, free_port()
    text = config(count, port)
    if "check" in columns:
        with tempfile.TemporaryDirectory(prefix="bw-growth-") as folder:
            path = pathlib.Path(folder, "config.yaml")
            path.write_text(text)
            found["check"] = of_command(program, "check", str(path))
    for scheme in ["ws", "wss"] if certificate else ["ws"]:
        found |= _gateway(program, count, free_port(), scheme, certificate, columns)
    return {name: found[name] for name in columns if name in found}


def _gateway(program, count, port, scheme, certificate, columns) -> dict[str, int]:
    found = {}
    admin = {"admin": free_port()} if scheme == "ws" else {}
    with contextlib.closing(CountedGateway(program, config(count, port, scheme, **admin), certificate)) as gateway:
        def counted(action) -> int:
            before = gateway.total()
            action()
            return gateway.total() - before

        def reload(**changes):
            gateway.path.write_text(config(count, port, scheme, **admin, **changes))
            before = gateway.reloads()
            if '"reloaded":true' not in gateway.ask("reload", may_be_late=True):
                gateway.rest()
                assert gateway.reloads() == before + 1

        if scheme == "wss":
            found["start wss"] = gateway.total()
            found["reload wss"] = counted(lambda: reload(clients=9))
            return found
        found["start"] = gateway.total()
        found["status"] = counted(lambda: gateway.ask("status"))
        found["kick"] = counted(lambda: gateway.ask("kick r0 --all"))
        if "metrics" in columns:
            found["metrics"] = counted(lambda: metrics(admin["admin"], count))
        if "events" in columns:
            with socket.create_connection(("127.0.0.1", admin["admin"]), timeout=1200) as client, client.makefile("rb") as stream:
                client.sendall(b"GET /api/v1/events HTTP/1.0\r\n\r\n")
                while stream.readline() != b"retry: 3000\n":
                    pass
                found["events"] = counted(lambda: visit(stream, port, count))
        found["reload"] = counted(lambda: reload(clients=9))
        if "replace" in columns:
            found["replace"] = counted(lambda: reload(clients=9, replaced=True))
    # The commands' own work: they read the configuration to find the control socket, and the answer.
    with contextlib.closing(CountedGateway(program, config(count, port, scheme), certificate, is_counted=False)) as gateway:
        for words in (["status", str(gateway.path)], ["kick", "r0", "--all", "--config", str(gateway.path)]):
            found[words[0]] += of_command(program, *words, environment=gateway.environment)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts", nargs="*", type=int, default=[1000, 2000, 4000, 8000, 16000])
    parser.add_argument("--binary", default=None)
    parser.add_argument("--certificate", nargs=2, metavar=("CHAIN", "KEY"), help="for the two columns of wss")
    options = parser.parse_args()
    program = options.binary or binary()
    print("Million instructions, and in brackets how many times as many as in the row above.\n")
    print("| routes | " + " | ".join(COLUMNS) + " |\n|" + "---:|" * (len(COLUMNS) + 1), flush=True)
    last = {}
    for count in options.counts:
        found = measure(program, count, options.certificate)
        cells = [
            f"{found[name] / 1e6:,.0f}" + (f" ({found[name] / last[name]:.2f})" if name in last else "") if name in found else "–"
            for name in COLUMNS]
        print(f"| {count:,} | " + " | ".join(cells) + " |", flush=True)
        last = found


if __name__ == "__main__":
    sys.exit(main())
