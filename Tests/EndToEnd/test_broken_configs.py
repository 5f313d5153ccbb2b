"""A broken config: `serve` and `check` report every mistake with its place, exit with 78 (EX_CONFIG), and start
nothing."""
import os
import re
import subprocess

import pytest
from kit import GUARD, binary, free_port

GOOD = """\
version: 1
routes:
  good:
    listen: tcp://127.0.0.1:{port}
    endpoint: sim://echo
"""

BILLION = "x: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"x{n}: &{chr(97 + n)} [{', '.join(['*' + chr(96 + n)] * 9)}]\n" for n in range(1, 12))

# The name of the trap: what is added to the good file, and for each mistake its place and the expected words. Line
# numbers count from the first added line; None if only the file is named.
TRAPS = {
    "an unknown key": ("    endpiont: x\n", [(1, "endpiont")]),
    "an unknown key with a near one": ("    clients: {maxx: 3}\n", [(1, "did you mean 'max'")]),
    "a key said twice": ("    endpoint: sim://sink\n", [(1, "endpoint")]),
    "a route said twice": ("  good:\n    listen: tcp://127.0.0.1:0\n    endpoint: sim://echo\n", [(1, "good")]),
    "an unknown scheme": (
        "  bad:\n    listen: tcp://127.0.0.1:0\n    endpoint: tyy:///dev/ttyS0\n", [(3, "did you mean 'tty'")]),
    "an unknown parameter": (
        "  bad:\n    listen: tcp://127.0.0.1:0\n    endpoint: tty:///dev/ttyS0?buad=9600\n",
        [(3, "did you mean 'baud'")]),
    "a value that is none of the words": ("    clients: {slow: blok}\n", [(1, "did you mean 'block'")]),
    "a duration without its unit": ("    device: {connect-timeout: 10}\n", [(1, "connect-timeout")]),
    "a size with a strange unit": ("    clients: {buffer: 64kilo}\n", [(1, "buffer")]),
    "a size out of bounds": ("    clients: {buffer: 17MiB}\n", [(1, "buffer")]),
    "YAML 1.1's on": ("    clients: {max: on}\n", [(1, "max")]),
    "a number in base 60": ("    clients: {max: 4001:22}\n", [(1, "max")]),
    "an octal number": ("    clients: {max: 010}\n", [(1, "max")]),
    "an unset variable": (
        "  bad:\n    listen: tcp://127.0.0.1:0\n    endpoint: tcp://${BAUDWAY_TEST_UNSET}:1\n",
        [(3, "BAUDWAY_TEST_UNSET")]),
    "an alias bomb": (BILLION, [(None, "")]),
    "a NUL byte": ("    endpoint\0: x\n", [(None, "")]),
    "broken UTF-8": ("    \udcff\udcfe: x\n", [(None, "")]),
    "no YAML at all": ("  ]{\n", [(None, "")]),
    "two routes to one device": (
        "  a:\n    listen: tcp://127.0.0.1:0\n    endpoint: tty:///dev/tty\n"
        "  b:\n    listen: tcp://127.0.0.1:0\n    endpoint: tty:///dev/tty\n", [(None, "/dev/tty")]),
    "a key of another build": ("    dial: tls://centre:4001\n", [(1, "not in Baudway")]),
    "a setting that RFC 2217 cannot carry": (
        "  bad:\n    listen: tcp://127.0.0.1:0\n    endpoint: rfc2217://host:4001?hupcl=yes\n", [(3, "hupcl=no")]),
    "a device address of an Apple system": (
        "  bad:\n    listen: tcp://127.0.0.1:0\n"
        "    endpoint: ble://FFF0/6B4D3F1C-2F41-4D2E-8E9B-0D6C6A4A1B2C\n", [(3, "")]),
    "many mistakes at once": (
        "    clients: {maxx: 3, slow: blok}\n"
        "  bad:\n    listen: tpc://127.0.0.1:0\n    endpoint: tyy:///dev/ttyS0\n    device: {retry: fast}\n"
        "  worse:\n    endpoint: sim://nmae\n",
        [(1, "maxx"), (1, "blok"), (3, "tpc"), (4, "tyy"), (5, "retry"), (6, "listen"), (7, "nmae")]),
}

PROBLEM = re.compile(r"^(?P<file>.*config\.yaml):(?P<line>\d+):(?P<column>\d+): (?P<text>.+)$")


def run(command: str, path: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [binary(), command, path], capture_output=True, timeout=GUARD, stdin=subprocess.DEVNULL,
        env={**os.environ, "RUNTIME_DIRECTORY": os.path.dirname(path)})


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize("trap", TRAPS)
def test_a_broken_configuration_is_reported_with_every_mistake(folder, trap, command):
    addition, expected = TRAPS[trap]
    path = f"{folder}/config.yaml"
    good = GOOD.format(port=free_port())
    with open(path, "wb") as file:
        file.write(good.encode() + addition.encode("utf-8", "surrogateescape"))
    done = run(command, path)
    told = done.stderr.decode("utf-8")
    assert done.returncode == 78, told
    assert not re.search(r"\b(listening|started|listener waiting)\b", told), told
    problems = [match for line in told.splitlines() if (match := PROBLEM.match(line))]
    assert problems, told
    first = good.count("\n")
    for line, words in expected:
        assert any(
            words in p["text"] and (line is None or int(p["line"]) == first + line) for p in problems
        ), f"nothing about {words!r} in line {line and first + line}:\n{told}"


def test_a_missing_configuration_is_reported(folder):
    done = run("serve", f"{folder}/config.yaml")
    assert done.returncode in (66, 78), done.stderr  # EX_NOINPUT or EX_CONFIG
    assert b"config.yaml" in done.stderr
