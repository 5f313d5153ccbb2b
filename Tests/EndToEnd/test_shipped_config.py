"""The shipped config.yaml, unedited: what a new user sees first."""
import os
import re
import subprocess

import pytest
from kit import ROOT, Gateway, until

pytestmark = pytest.mark.both

SENTENCE = re.compile(r"^\$(G[A-Z]{4}),([^*]*)\*([0-9A-F]{2})$")


def checksum(body: str) -> int:
    value = 0
    for character in body.encode():
        value ^= character
    return value


def test_nc_prints_valid_nmea_sentences():
    # Its ports are fixed. In its own network namespace it does not conflict with a gateway that already runs on this
    # machine.
    own = os.geteuid() == 0
    prefix = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if own else []
    gateway = Gateway(ROOT / "config.yaml", text=True, ready=1, prefix=prefix)
    with gateway:
        until(lambda: gateway.events("listening", route="gps"), what="gps listening")
        host, port = gateway.address("gps")
        assert (host, port) == ("127.0.0.1", 4001)
        inside = ["nsenter", f"--net=/proc/{gateway.pid}/ns/net"] if own else []
        with subprocess.Popen([*inside, "nc", host, str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as nc:
            lines = [nc.stdout.readline().decode("ascii").removesuffix("\r\n") for _ in range(5)]
            nc.kill()
        # The first line may have begun before nc connected.
        for line in lines[1:]:
            match = SENTENCE.match(line)
            assert match, line
            assert checksum(line[1:line.index("*")]) == int(match[3], 16), line


def test_check_accepts_the_shipped_configuration():
    done = Gateway(ROOT / "config.yaml").command("check", str(ROOT / "config.yaml"))
    assert done.returncode == 0, done.stderr
    assert "gps" in done.stdout and "sim://nmea" in done.stdout
