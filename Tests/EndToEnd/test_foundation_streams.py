"""Programs with Foundation's streams (Sources/Examples/FoundationStreams), over every scheme that needs no radio: each sends
bytes to an endpoint that echoes, and compares."""
import os
import subprocess
import threading
import tty

import pytest
from certificates import Authority
from kit import GUARD, Gateway, Pty, run_all, until
from test_library_examples import environment, program

# Under ThreadSanitizer 3 MiB take ten seconds a test: so only with Tests/run --long.
COUNT = int(os.environ.get("STREAM_BYTES", 256 << 10 if os.environ.get("BAUDWAY_EXAMPLES_PRELOAD") else 3 << 20))
KINDS, LOOPS = ["delegate", "polling", "transfer"], ["main", "foreign"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def urls(authority, tmp_path_factory):
    """A URL of an echo for each scheme that needs a server: listeners of a gateway."""
    pair = authority.issue("gw.test", "localhost", "127.0.0.1")
    tls = {"tls": {"certificate": str(pair.certificate), "key": str(pair.key)}}
    socket = tmp_path_factory.mktemp("sockets") / "echo"
    listeners = {"tcp": "tcp://127.0.0.1:0", "tls": "tls://127.0.0.1:0", "ws": "ws://127.0.0.1:0/", "wss": "wss://127.0.0.1:0/",
                 "unix": f"unix://{socket}"}
    routes = {name: {"listen": url, "endpoint": "sim://echo"} | (tls if name in ("tls", "wss") else {}) for name, url in listeners.items()}
    with Gateway({"routes": routes}) as gateway:
        found = {"unix": f"unix://{socket}"}
        for name in listeners.keys() - found.keys():
            host, port = gateway.address(name)
            found[name] = f"{name}://{host}:{port}/" + (f"?ca={authority.certificate}" if name in ("tls", "wss") else "")
        yield found


def echo(descriptor: int):
    try:
        while data := os.read(descriptor, 65536):
            while data:
                data = data[os.write(descriptor, data):]
    except OSError:
        pass  # the test is over


def run(kind: str, url: str, loop: str, count: int = COUNT) -> str:
    done = subprocess.run([program("foundation-streams"), kind, url, str(count), loop], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=2 * GUARD, env=environment())
    assert done.returncode == 0, done.stdout
    assert f"{count} bytes, the same" in done.stdout
    return done.stdout


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss", "unix"])
def test_streams_of_a_server(urls, scheme, kind, loop):
    assert urls[scheme].split("?")[0].rstrip("/") in run(kind, urls[scheme], loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("url", ["sim://echo", "exec:/bin/cat"])
def test_streams_of_this_machine(url, kind, loop):
    run(kind, url, loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_a_serial_port(kind, loop):
    with Pty() as port:
        threading.Thread(target=echo, args=(port.master,), daemon=True).start()
        run(kind, port.url, loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_a_pty(kind, loop, folder):
    link = f"{folder}/port"

    def user():
        until(lambda: os.path.exists(link), what="the pty")
        descriptor = os.open(link, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(descriptor)
        echo(descriptor)
        os.close(descriptor)

    run_all(user, lambda: run(kind, f"pty://{link}", loop), seconds=2 * GUARD)


def test_a_failure_says_what_to_do():
    done = subprocess.run([program("foundation-streams"), "delegate", "tyy:///dev/ttyUSB0", "1"], capture_output=True, text=True, timeout=GUARD,
                          env=environment())
    assert done.returncode == 1 and "did you mean 'tty'?" in done.stdout
