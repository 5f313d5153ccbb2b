"""serialx, sync and async, over `rfc2217://` and `socket://`: bytes of all values both ways, settings, modem lines, a purge, and a
client that is killed.
"""
import termios

import pytest
import servers
from clients import Client, same, shuffled
from kit import Pty, run_all, until
from lines import CTS, DSR, ModemPort
from servers import Baudway

LISTEN = {"rfc2217": "telnet://127.0.0.1:0", "socket": "tcp://127.0.0.1:0"}

# Each sends one byte so that the test knows the port is open, then copies COUNT bytes from the port to its output, in reverse back to the port.
PROGRAMS = {
    "sync": """
import sys, serialx
url, count = sys.argv[1], int(sys.argv[2])
with serialx.serial_for_url(url, baudrate=57600, parity="E", stopbits=2) as port:
    port.write(b"!")
    print("open", flush=True)
    data = port.readexactly(count)
    port.write(data[::-1])
    port.flush()
    print("sent", flush=True)
    sys.stdin.read(1)
""",
    "async": """
import asyncio, sys, serialx
url, count = sys.argv[1], int(sys.argv[2])
async def main():
    reader, writer = await serialx.open_serial_connection(url=url, baudrate=57600, parity="E", stopbits=2)
    writer.write(b"!")
    print("open", flush=True)
    data = await reader.readexactly(count)
    writer.write(data[::-1])
    await writer.drain()
    print("sent", flush=True)
    await asyncio.to_thread(sys.stdin.read, 1)
asyncio.run(main())
""",
}

# Answers each line of its input: a call of the port, and what it returned.
CALLS = """
import sys, serialx
with serialx.serial_for_url(sys.argv[1], baudrate=115200, read_timeout=30) as port:
    print("open", flush=True)
    for line in sys.stdin:
        print(repr(eval(line, {"port": port, "serialx": serialx})), flush=True)
"""


def program(name: str, scheme: str, served: Baudway, count: int) -> Client:
    return Client(servers.PYTHON, "-c", PROGRAMS[name], f"{scheme}://127.0.0.1:{served.port}", count)


def opened(client: Client, pty: Pty):
    assert pty.read(1) == b"!"
    client.read_until(b"open\n")


def reverse(client: Client, pty: Pty, data: bytes):
    got = run_all(lambda: pty.write(data), lambda: pty.read(len(data)))
    same(got[1], data[::-1])
    client.read_until(b"sent\n")


@pytest.mark.only("baudway")
@pytest.mark.parametrize("scheme", LISTEN)
@pytest.mark.parametrize("name", PROGRAMS)
def test_serialx_carries_all_values_both_ways(server, name, scheme):
    data = shuffled(9)
    with ModemPort() as pty, Baudway(pty.path, listen=LISTEN[scheme], environment=pty.environment) as served, \
            program(name, scheme, served, len(data)) as client:
        opened(client, pty)
        if scheme == "rfc2217":
            _, _, control, _, _, rate, _ = termios.tcgetattr(pty.slave)
            assert rate == termios.B57600 and control & termios.CSTOPB
            assert pty.word(4) & (termios.PARENB | termios.PARODD) == termios.PARENB
        reverse(client, pty, data)


@pytest.mark.only("baudway")
@pytest.mark.parametrize("scheme", LISTEN)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_serialx_leaves_the_port_usable(server, name, scheme):
    data = shuffled(10)
    with Pty() as pty, Baudway(pty.path, listen=LISTEN[scheme]) as served:
        with program(name, scheme, served, len(data)) as victim:
            opened(victim, pty)
            pty.write(data[:1 << 12])
            victim.kill()
        served.gateway.event("session ended")
        with program(name, scheme, served, len(data)) as client:
            opened(client, pty)
            reverse(client, pty, data)


class Calls(Client):
    def __init__(self, served: Baudway):
        super().__init__(servers.PYTHON, "-c", CALLS, served.url)
        self.read_until(b"open\n")

    def call(self, words: str) -> str:
        self.write(words.encode() + b"\n")
        return self.read_until(b"\n").decode().strip()


@pytest.mark.only("baudway")
def test_serialx_sets_and_reads_modem_lines(server):
    with ModemPort() as pty, Baudway(pty.path, environment=pty.environment) as served, Calls(served) as client:
        client.call("port.set_modem_pins(dtr=False, rts=True)")
        until(lambda: pty.changes and pty.changes[-1][1:3] == (False, True), what="DTR off, RTS on")
        client.call("port.set_modem_pins(dtr=True, rts=False)")
        until(lambda: pty.changes[-1][1:3] == (True, False), what="DTR on, RTS off")
        assert client.call("port.get_modem_pins().cts is serialx.PinState.LOW") == "True"
        pty.set_in(CTS | DSR)
        until(lambda: client.call("port.get_modem_pins().cts is serialx.PinState.HIGH") == "True", what="CTS on")
        until(lambda: client.call("port.get_modem_pins().dsr is serialx.PinState.HIGH") == "True", what="DSR on")


@pytest.mark.only("baudway")
def test_serialx_purges_and_goes_on(server):
    with Pty() as pty, Baudway(pty.path) as served, Calls(served) as client:
        assert client.call("port.write(b'one')") == "3"
        assert pty.read(3) == b"one"
        client.call("port.reset_read_buffer()")
        client.call("port.reset_write_buffer()")
        client.call("port.write(b'two')")
        assert pty.read(3) == b"two"
        pty.write(b"back")
        assert client.call("port.readexactly(4)") == "b'back'"
