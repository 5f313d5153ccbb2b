"""A gateway that crashes by its own fault leaves one line with the place, and ends by the signal."""
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from kit import GUARD, Gateway, binary, free_port

FATAL = ["SIGILL", "SIGTRAP", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE"]
LINE = re.compile(
    r"baudway: ended by (SIG\w+) at offset 0x[0-9a-f]+ of [\w.+-]+(; on the stack:( 0x[0-9a-f]+)+)?; version [\w.-]+, build (\w+)")


@pytest.mark.parametrize("name", FATAL)
def test_serve_reports_a_fatal_signal_in_one_line_and_ends_by_it(name):
    with Gateway({"routes": {"echo": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}}, stopping=False) as gateway:
        with gateway.connect("echo") as client:
            client.sendall(b"?")
            assert client.recv(1) == b"?"
            gateway.signal(getattr(signal, name))
            assert gateway.wait() == -getattr(signal, name)
    found = [line for line in gateway.lines if "ended by" in line]
    assert len(found) == 1 and (match := LINE.fullmatch(found[0])), gateway.lines[-3:]
    assert match.group(1) == name
    notes = subprocess.run(["readelf", "-n", binary()], capture_output=True, text=True, timeout=GUARD).stdout
    if build := re.search(r"Build ID: (\w+)", notes):
        assert match.group(4) == build.group(1)


def test_the_symbols_of_a_release_resolve_the_addresses_of_a_crash():
    symbols = pathlib.Path(binary()).with_name("baudway.debug")
    sections = subprocess.run(["readelf", "-WS", binary()], capture_output=True, text=True, timeout=GUARD, check=True).stdout
    if " .debug_info " in sections:
        pytest.skip("this is a debug build, whose symbols are in it; a release's are kept beside it")
    assert symbols.exists(), "a release without its symbols: Deploy/build keeps them beside it"
    with Gateway({"routes": {"echo": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}}, stopping=False) as gateway:
        gateway.signal(signal.SIGILL)
        gateway.wait()
    line = next(line for line in gateway.lines if "ended by" in line)
    place = pathlib.Path(__file__).parents[2] / "Deploy" / "place"

    def look_up(line):
        return subprocess.run([place, "--debug", symbols, line], capture_output=True, text=True, timeout=120)

    found = look_up(line)  # at an external signal all threads wait in libraries
    assert found.returncode == 0 and re.search(r"called from 0x[0-9a-f]+:\n    \w.* at ", found.stdout), found
    names = subprocess.run(["nm", symbols], capture_output=True, text=True, timeout=GUARD).stdout
    offset = int(re.search(r"^([0-9a-f]+) [Tt] \S*10GatewayKit5RouteC8admitted\S*F$", names, re.M)[1], 16)
    found = look_up(re.sub(r"offset 0x[0-9a-f]+ of [^;]+", f"offset {offset + 4:#x} of baudway", line))
    assert found.returncode == 0 and re.search(r"^at 0x.*\n    .* at Sources/GatewayKit/Routes/Route\.swift:\d+", found.stdout, re.M), found
    other = look_up(line.replace("build ", "build 00"))
    assert other.returncode == 65 and "is of build" in other.stderr


def test_an_unread_standard_error_does_not_delay_a_crash():
    inside, outside = os.pipe()
    os.set_blocking(outside, False)
    try:
        while True:
            os.write(outside, bytes(4096))
    except BlockingIOError:
        os.set_blocking(outside, True)
    port = free_port()
    program = subprocess.Popen(
        [binary(), "serve", "/dev/stdin"], stdin=subprocess.PIPE, stderr=outside)
    try:
        program.stdin.write(b"routes: { echo: { listen: 'tcp://127.0.0.1:%d', endpoint: 'sim://echo' } }" % port)
        program.stdin.close()
        time.sleep(0.5)  # its log no longer grows
        program.send_signal(signal.SIGSEGV)
        assert program.wait(GUARD) == -signal.SIGSEGV
    finally:
        program.kill()
        program.wait()
        os.close(inside)
        os.close(outside)


def test_connect_ends_by_a_fatal_signal_without_a_message():
    program = subprocess.Popen(
        [binary(), "connect", "sim://nmea?rate=50"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "SWIFT_BACKTRACE": "enable=no"})  # disables the toolchain's own report, where it exists
    try:
        assert program.stdout.read(1) == b"$"  # it runs
        program.send_signal(signal.SIGSEGV)
        _, errors = program.communicate(timeout=GUARD)
        assert program.returncode == -signal.SIGSEGV and b"ended by" not in errors
    finally:
        program.kill()
        program.wait()
