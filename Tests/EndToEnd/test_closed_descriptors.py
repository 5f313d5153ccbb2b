"""Standard descriptors that are closed at the start: the gateway's own descriptors must never get their numbers."""
import subprocess

import pytest
from kit import GUARD, Gateway, Server, binary, open_files, receive_all, until

IOERR = 74
ECHO = {"routes": {"echo": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}}


def shell(closing):
    """A prefix that closes a standard descriptor, in shell syntax."""
    return ["/bin/sh", "-c", f'exec "$0" "$@" {closing}']


def run(closing, *words, **more):
    return subprocess.run([*shell(closing), binary(), *words], capture_output=True, timeout=GUARD, **more)


def test_a_closed_standard_input_counts_as_end_of_input():
    heard = []

    def answer(client):
        heard.append(receive_all(client))
        client.sendall(b"bye")

    with Server(answer) as server:
        done = run("<&-", "connect", server.url)
    assert (heard, done.stdout, done.stderr, done.returncode) == ([b""], b"bye", b"", 0)


@pytest.mark.parametrize("closing", [">&-", "<&- >&-"])
@pytest.mark.parametrize("words", [["schema"], ["devices"], ["--help"], ["connect", "exec:/bin/echo"], ["scan", "--seconds", "1"]])
def test_a_closed_standard_output_is_an_error(words, closing):
    done = run(closing, *words, stdin=subprocess.DEVNULL)
    # Without an adapter scan has nothing to print.
    codes = (IOERR, 69, 77) if words[0] == "scan" else (IOERR,)
    assert done.returncode in codes and done.stderr, done


def test_a_closed_standard_output_is_an_error_for_status_too():
    with Gateway(ECHO) as gateway:
        done = run(">&-", "status", str(gateway.path), env=gateway.environment)
        assert done.returncode == IOERR and b"EBADF" in done.stderr, done


@pytest.mark.parametrize("closing", ["2>&-", "<&- >&- 2>&-"])
def test_a_gateway_serves_without_a_log(closing):
    gateway = Gateway(ECHO, prefix=shell(closing), stopping=False, ready=0)
    with gateway:
        health = [binary(), "health", str(gateway.path)]
        until(lambda: subprocess.run(health, env=gateway.environment, capture_output=True).returncode == 0, what="healthy")
        found = open_files(gateway.process.pid)
        for number in (0, 1, 2) if "<" in closing else (2,):
            assert found[number] == "/dev/null"
        gateway.process.terminate()
        assert gateway.process.wait(GUARD) == 0
