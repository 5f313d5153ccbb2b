"""A stuck part delays no other route: a dead name server, and a log that is not read."""
import fcntl
import os
import signal
import socket
import subprocess
import time

import pytest
from kit import GUARD, Gateway, connect, parse_json, receive_all, round_trip, until

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
# Seconds for a byte there and back while something else is stuck; the aim is a tenth of it.
LIMIT = 0.5


def worst_round_trip(client, seconds: float) -> float:
    worst, start = 0.0, time.monotonic()
    while time.monotonic() - start < seconds:
        worst = max(worst, round_trip(client))
        time.sleep(0.01)
    return worst


def started(pipe) -> tuple[str, int]:
    """Reads the log only until the gateway has started, and not after that; returns where it listens."""
    text = b""
    while b'"listening"' not in text or b'"started"' not in text:
        piece = os.read(pipe, 65536)
        assert piece, text
        text += piece
    entries = [entry for line in text.decode().splitlines() if (entry := parse_json(line))]
    listening = next(entry for entry in entries if entry["event"] == "listening")
    return "127.0.0.1", int(listening["listen"].rsplit(":", 1)[1])


@pytest.mark.root("mounts an /etc/resolv.conf of its own")
@pytest.mark.waits
def test_a_dead_name_server_delays_no_other_route(folder, figure, quick):
    """Names are resolved by a server that receives requests and never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dead:
        dead.bind(("127.0.0.99", 53))
        with open(f"{folder}/resolv.conf", "w") as file:
            file.write("nameserver 127.0.0.99\n")
        with open(f"{folder}/nsswitch.conf", "w") as file:
            file.write("hosts: files dns\n")
        mounts = "".join(f"mount --bind {folder}/{name} /etc/{name} && " for name in ("resolv.conf", "nsswitch.conf"))
        prefix = ["unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh"]
        lost = {"listen": "tcp://127.0.0.1:0", "endpoint": "tcp://nowhere.example:9", "device": {"connect-timeout": "3s"}}
        with Gateway({"routes": {"echo": ECHO, "lost": lost}}, prefix=prefix) as gateway, \
                gateway.connect("echo") as client:
            quiet = worst_round_trip(client, 1)
            waiting = [gateway.connect("lost") for _ in range(20)]
            until(lambda: dead.recv(512), what="a question to the name server")
            worst = worst_round_trip(client, 2)
            figure("worst round trip beside a dead name server", 1000 * worst, "ms", aim=50, control=1000 * quiet)
            quick(worst, LIMIT, "the worst round trip")
            # Waiting clients are disconnected in time.
            for one in waiting:
                assert receive_all(one) == b""
                one.close()
            for number in range(1, 21):
                assert gateway.event("session ended", route="lost", count=number)["reason"] == "open-failed"


@pytest.mark.root("mounts an /etc/resolv.conf of its own")
def test_names_that_the_machine_knows_itself_do_not_wait_for_a_dead_name_server(folder):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dead, socket.create_server(("127.0.0.1", 0)) as server:
        dead.bind(("127.0.0.98", 53))
        server.settimeout(60)
        texts = {"resolv.conf": "nameserver 127.0.0.98\n", "nsswitch.conf": "hosts: dns files\n", "hosts": "127.0.0.1 meter_box\n"}
        for name, text in texts.items():
            with open(f"{folder}/{name}", "w") as file:
                file.write(text)
        mounts = "".join(f"mount --bind {folder}/{name} /etc/{name} && " for name in texts)
        prefix = ["unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh"]
        routes = {f"n{n}": {"listen": f"unix://{folder}/n{n}", "endpoint": f"tcp://nowhere{n}.example:9", "link": "shared",
                            "device": {"open": "always"}} for n in range(40)}
        port = server.getsockname()[1]
        for name in ("localhost", "meter_box", "127.0.0.1"):
            routes[name] = {"listen": f"unix://{folder}/{name}", "endpoint": f"tcp://{name}:{port}"}
        with Gateway({"routes": routes}, prefix=prefix) as gateway:
            until(lambda: dead.recv(512), what="a question to the name server")
            for name in ("localhost", "meter_box", "127.0.0.1"):
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(60)
                    client.connect(f"{folder}/{name}")
                    one, _ = server.accept()
                    one.sendall(b"+")
                    assert client.recv(1) == b"+"
                    one.close()
            assert not any("Too many" in line for line in gateway.lines)


def test_an_unread_log_delays_no_client(figure, quick):
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    gateway = Gateway({"routes": {"echo": ECHO}}, stderr=write)
    gateway.start()
    os.close(write)
    try:
        address = started(read)
        with connect(address) as client:
            quiet = worst_round_trip(client, 0.5)
            worst = 0.0
            for _ in range(400):
                with connect(address) as passer_by:
                    worst = max(worst, round_trip(passer_by))
                worst = max(worst, round_trip(client))
            figure("worst round trip with a stuck log", 1000 * worst, "ms", aim=50, control=1000 * quiet)
            quick(worst, LIMIT, "the worst round trip")
        # As soon as the log is read again, it continues.
        with os.fdopen(read, "rb") as pipe:
            gateway.follow(pipe)
            gateway.event("session ended")
            with connect(address) as client:
                round_trip(client)
                gateway.event("session opened", client="%s:%d" % client.getsockname())
            gateway.signal(signal.SIGTERM)
            assert gateway.wait() == 0
            gateway._reader.join(GUARD)
    finally:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait()


def test_an_unread_log_does_not_prevent_a_stop():
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    gateway = Gateway({"routes": {"echo": ECHO}}, stderr=write)
    gateway.start()
    os.close(write)
    try:
        address = started(read)
        for _ in range(100):
            with connect(address) as client:
                round_trip(client)
        gateway.signal(signal.SIGTERM)
        assert gateway.process.wait(GUARD) == 0
    except subprocess.TimeoutExpired:
        pytest.fail("did not stop while its log was stuck")
    finally:
        os.close(read)
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait()
