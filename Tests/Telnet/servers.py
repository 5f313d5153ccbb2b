"""Servers of RFC 2217 for one port, each the same to a test: `url` and `address` are for clients, `environment` is added for the server.

`Baudway` is under test. ser2net and pyserial's example server are controls: a test that fails with all of them is wrong, and figures
are compared with theirs.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "EndToEnd"))

from kit import ROOT, Gateway, connect, free_port, until  # noqa: E402

STATE = ROOT / ".build" / "telnet"
PYSERIAL = STATE / "pyserial-3.5"
PYTHON = STATE / "venv" / "bin" / "python"  # has pyserial and pyserial-asyncio
SER2NET = STATE / "ser2net" / "usr" / "sbin" / "ser2net"


def program_environment() -> dict:
    """For Python programs with pyserial's sources."""
    return {**os.environ, "PYTHONPATH": str(PYSERIAL), "PYTHONWARNINGS": "ignore"}


class Process:
    """A program that runs until the block ends, with its output in a file."""

    def __init__(self, *words, environment=None):
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT, env=environment)

    def text(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(5)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.kill()
        if kind:
            print(self.process.args[0], "printed:", self.text()[-3000:])
        self.output.close()


class Server:
    """A program that listens on `port`. Some accept one client only, so the wait for it does not connect."""

    def __init__(self, *words, environment=None):
        self.process = Process(*words, environment=environment)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        return f"rfc2217://127.0.0.1:{self.port}"

    def connect(self):
        return connect(self.address)

    def __enter__(self):
        try:
            until(lambda: listens(self.port) or self.process.process.poll() is not None, 20, "listening")
            assert self.process.process.poll() is None, self.process.text()
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *error):
        self.process.__exit__(*error)


def listens(port: int) -> bool:
    """Whether a process of this machine listens on a TCP port, on any of its addresses."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in open(f"/proc/net/{name}").readlines()[1:]]
    return any(row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port for row in rows)


def ser2net_config(
        port: int, connector: str, host: str = "127.0.0.1", accepter: str = "telnet(rfc2217),tcp(nodelay)") -> str:
    return (
        f"%YAML 1.1\n---\nconnection: &con\n  accepter: {accepter},{host},{port}\n  enable: on\n"
        f"  options:\n    kickolduser: true\n  connector: {connector}\n")


def serialdev(path: str) -> str:
    """gensio's words for a local port, without lock files, which may be left by others in the same place."""
    return f"serialdev(nouucplock=true),{path},115200n81,local"


class Ser2net(Server):
    def __init__(self, path: str, connector: str | None = None, environment: dict | None = None, **more):
        self.port = free_port()
        self.folder = tempfile.TemporaryDirectory(prefix="bwt-")
        config = pathlib.Path(self.folder.name, "ser2net.yaml")
        config.write_text(ser2net_config(self.port, connector or serialdev(path), **more))
        super().__init__(SER2NET, "-n", "-d", "-c", config, environment={**os.environ, **(environment or {})})

    def __exit__(self, *error):
        super().__exit__(*error)
        self.folder.cleanup()


class Pyserial(Server):
    """The example server in its sources. It accepts one client after the other, and looks at modem lines once a second."""

    def __init__(self, path: str, environment: dict | None = None):
        self.port = free_port()
        super().__init__(
            "/usr/bin/python3", PYSERIAL / "examples" / "rfc2217_server.py", "-p", self.port, path,
            environment={**program_environment(), **(environment or {})})


class Baudway:
    """`more` is for the route; `query` for the endpoint's URL, or an `endpoint` of another scheme."""

    def __init__(self, path: str, query: str = "", endpoint: str | None = None, listen: str = "telnet://127.0.0.1:0",
                 environment: dict | None = None, **more):
        endpoint = endpoint or f"tty://{path}{query}"
        words = [f"{name}={value}" for name, value in (environment or {}).items()]
        prefix = ["env", *words] if words else []
        self.gateway = Gateway({"routes": {"port": {"listen": listen, "endpoint": endpoint, **more}}}, prefix=prefix)

    @property
    def address(self) -> tuple[str, int]:
        return self.gateway.address("port")

    @property
    def port(self) -> int:
        return self.address[1]

    @property
    def url(self) -> str:
        return f"rfc2217://127.0.0.1:{self.port}"

    def connect(self):
        return connect(self.address)

    def __enter__(self):
        self.gateway.__enter__()
        return self

    def __exit__(self, *error):
        self.gateway.__exit__(*error)


SERVERS = {"baudway": Baudway, "ser2net": Ser2net, "pyserial": Pyserial}
