"""The command line apart from serving: help, version, usage errors, check's table."""
import json
import re
import subprocess

import pytest
from kit import GUARD, Gateway, binary

ECHO = {"listen": "tcp://127.0.0.1:4001", "endpoint": "sim://echo"}


def command(*words):
    return Gateway({"routes": {"echo": ECHO}}).command(*words)


def test_version():
    done = command("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"(baudway )?\d+\.\d+\.\d+\S*\n", done.stdout), done.stdout


def test_help_names_the_commands():
    done = command("--help")
    assert done.returncode == 0
    for word in ("serve", "check", "status", "reload", "kick", "health", "devices"):
        assert word in done.stdout


@pytest.mark.parametrize("words", [["nonsense"], ["serve", "--nonsense"], ["check", "a", "b"]])
def test_usage_errors(words):
    done = command(*words)
    assert done.returncode == 64, done  # EX_USAGE
    assert done.stderr


def test_check_prints_every_default():
    gateway = Gateway({"routes": {"echo": ECHO, "port": {**ECHO, "listen": "tcp://127.0.0.1:4002", "endpoint": "tty:///dev/ttyS77"}}})
    done = gateway.command("check", str(gateway.path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n") and not done.stdout.endswith("\n\n")
    for word in ("echo", "sim://echo", "tcp://127.0.0.1:4001", "/dev/ttyS77", "on-demand", "hold", "250ms", "30s"):
        assert word in done.stdout, f"{word} is not in:\n{done.stdout}"


def test_devices_lists_the_ports_of_this_machine():
    done = command("devices", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    table = command("devices")
    assert table.returncode == 0 and "\x1b" not in table.stdout
    for port in told["serial"]:
        # A configuration with the listed URL passes `check`.
        gateway = Gateway({"routes": {"port": {**ECHO, "endpoint": port["url"]}}})
        assert gateway.command("check", str(gateway.path)).returncode == 0
        assert port["url"] in table.stdout
    assert told["serial"] or "No serial ports." in table.stdout
    assert told["bluetooth"] or "No Bluetooth" in table.stdout


def printed_to(output, *words, gateway=None, **more):
    """Runs a command with `output` as its standard output."""
    gateway = gateway or Gateway({"routes": {"echo": ECHO}})
    words = [str(gateway.path) if word == "FILE" else word for word in words]
    return subprocess.run(
        [binary(), *words], env=gateway.environment, stdout=output, stderr=subprocess.PIPE, input="secret\n", text=True,
        timeout=GUARD, **more)


NOT_RUNNING = [["hash-password"], ["schema"], ["check", "FILE"], ["devices"], ["devices", "--json"], ["--version"], ["--help"]]
RUNNING = [["status", "FILE"], ["status", "--json", "FILE"], ["status", "--watch", "FILE"], ["reload", "FILE"],
           ["kick", "echo", "--all", "--config", "FILE"]]


@pytest.mark.parametrize("words", NOT_RUNNING, ids=" ".join)
def test_a_full_disk_is_an_error(words):
    with open("/dev/full", "w") as full:
        done = printed_to(full, *words)
    assert done.returncode == 74, done  # EX_IOERR
    assert "No space left on device" in done.stderr


def test_a_full_disk_is_an_error_for_commands_that_query_a_gateway():
    with Gateway({"routes": {"echo": {**ECHO, "listen": "tcp://127.0.0.1:0"}}}) as gateway, open("/dev/full", "w") as full:
        for words in RUNNING:
            done = printed_to(full, *words, gateway=gateway)
            assert done.returncode == 74, done
            assert "No space left on device" in done.stderr
        done = printed_to(full, "health", "FILE", gateway=gateway)
        assert done.returncode == 1 and "No space left on device" in done.stderr, done


def test_a_reader_that_closed_the_pipe_causes_no_message():
    for restore in (True, False):  # SIGPIPE by default, and ignored, as some starters leave it
        with subprocess.Popen(["/bin/true"], stdin=subprocess.PIPE) as reader:
            reader.wait(GUARD)
            done = printed_to(reader.stdin, "schema", restore_signals=restore)
        assert done.returncode in (-13, 74) and done.stderr == "", done
