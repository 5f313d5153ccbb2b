"""Programs of others as clients of a telnet listener, and as servers of an `rfc2217` endpoint: all values of a byte in both directions,
compared by checksum; and a client that is killed while bytes flow.
"""
import contextlib
import os
import subprocess
import termios

import pytest
import servers
from arduino import Arduino
from certificates import Authority
from clients import PAIRS, TEXT, Client, gensiot, gensiot_pty, same, shuffled
from kit import Pty, connect, receive, run_all, until
from lines import ModemPort
from servers import SERVERS, Baudway, Ser2net
from terminals import PICOCOM, Terminal

# Each with the host and the port as its last words.
TELNETS = {
    "inetutils-telnet": ("inetutils-telnet", "-8", "-E", "-c", "HOST", "PORT"),
    "telnet-ssl": ("telnet-ssl", "-8", "-E", "HOST", "PORT"),
    "plink": ("plink", "-telnet", "-P", "PORT", "HOST"),
    "gensiot": ("gensiot", "-i", "stdio(self)", "telnet(rfc2217),tcp,HOST,PORT"),
}


def telnet(program: str, server) -> Client:
    host, port = server.address
    return Client(*(word.replace("HOST", host).replace("PORT", str(port)) for word in TELNETS[program]))


def greet(client: Client, pty: Pty, mark: bytes = b"<ready>"):
    """When a mark has gone each way, the port is open, options are negotiated, and the client prints no more about its connection.
    The client is first: bytes from the port before its opening may be dropped."""
    client.write(mark)
    assert pty.read(len(mark)) == mark
    pty.write(mark)
    client.read_until(mark)


def exchange(client: Client, pty: Pty, up: bytes, down: bytes):
    """Both directions at once."""
    got = run_all(lambda: client.write(up), lambda: pty.write(down), lambda: pty.read(len(up)), lambda: client.read(len(down)))
    same(got[2], up)
    same(got[3], down)


RATES = {getattr(termios, name): int(name[1:]) for name in dir(termios) if name[0] == "B" and name[1:].isdigit()}


def speed(pty: Pty) -> int:
    return RATES[termios.tcgetattr(pty.slave)[5]]


@pytest.fixture
def pty(server):
    """A bare pty; for pyserial's server one with modem lines, without which it ends its thread at the first look at them."""
    with (ModemPort() if server == "pyserial" else Pty()) as port:
        yield port


def serve(server: str, pty: Pty):
    return SERVERS[server](pty.path, environment=getattr(pty, "environment", None))


@pytest.mark.only("baudway", "ser2net")  # pyserial's server does not double or drop NUL after CR where BINARY is not agreed
@pytest.mark.parametrize("program", TELNETS)
def test_a_client_carries_each_pair_of_values_both_ways(server, program, pty):
    with serve(server, pty) as served, telnet(program, served) as client:
        greet(client, pty)
        exchange(client, pty, PAIRS, PAIRS[::-1])
        exchange(client, pty, TEXT, TEXT)


@pytest.mark.only("baudway", "ser2net")  # pyserial's server does not double or drop NUL after CR where BINARY is not agreed
@pytest.mark.parametrize("program", TELNETS)
def test_a_client_killed_while_bytes_flow_leaves_the_port_usable(server, program, pty):
    with serve(server, pty) as served:
        with telnet(program, served) as victim:
            greet(victim, pty)
            victim.write(shuffled(1))
            pty.read(1 << 12)
            pty.write(shuffled(2, 1 << 12))
            victim.kill()
        drain(pty)
        with telnet(program, served) as client:
            greet(client, pty, b"<next one>")
            exchange(client, pty, shuffled(3), shuffled(4))


def drain(pty: Pty):
    """Reads until nothing has come for a moment: bytes of the killed client, which may still be forwarded."""
    with contextlib.suppress(AssertionError):
        while True:
            pty.read(1, seconds=0.5)


@pytest.mark.only("baudway")
def test_a_killed_client_does_not_disturb_the_other(server, pty):
    data = shuffled(5, 1 << 18)
    with Baudway(pty.path) as served, gensiot(served.address) as client, gensiot(served.address) as victim:
        greet(client, pty)
        greet(victim, pty, b"<victim>")
        client.read_until(b"<victim>")
        # The victim goes when some of the bytes have arrived.
        got = run_all(lambda: pty.write(data), lambda: (client.read(1 << 14), victim.kill(), client.read(len(data) - (1 << 14))))
        head, _, tail = got[1]
        same(head + tail, data)
        client.write(PAIRS)
        same(pty.read(len(PAIRS)), PAIRS)


def test_ser2net_as_a_client_of_the_server(server, pty):
    """Raw client → ser2net → server → port."""
    with serve(server, pty) as served, Relay(f"telnet(rfc2217),tcp,127.0.0.1,{served.port}") as relay, \
            connect(relay.address) as client:
        client.sendall(b"ready")
        assert pty.read(5) == b"ready"
        pty.write(b"ready")
        assert receive(client, 5) == b"ready"
        got = run_all(
            lambda: client.sendall(PAIRS), lambda: pty.write(PAIRS[::-1]), lambda: pty.read(len(PAIRS)),
            lambda: receive(client, len(PAIRS)))
        same(got[2], PAIRS)
        same(got[3], PAIRS[::-1])


class Relay(Ser2net):
    """ser2net with raw clients and any connector."""

    def __init__(self, connector: str):
        super().__init__("", connector, accepter="tcp(nodelay)")


@pytest.mark.only("baudway")
@pytest.mark.parametrize("peer", ("ser2net", "pyserial", "baudway"))
def test_an_endpoint_at_a_server_of_others(server, peer, pty):
    """Raw client → Baudway → server of others → port, with the URL's settings on the port."""
    with (ModemPort() if peer == "pyserial" else pty) as port, serve(peer, port) as served, \
            Baudway("", endpoint=f"rfc2217://127.0.0.1:{served.port}?baud=57600&stop=2", listen="tcp://127.0.0.1:0") as gateway, \
            gateway.connect() as client:
        gateway.gateway.event("link open")
        client.sendall(b"ready")
        assert port.read(5) == b"ready"
        port.write(b"ready")
        assert receive(client, 5) == b"ready"
        until(lambda: speed(port) == 57600, 10, "the rate of the URL")
        got = run_all(
            lambda: client.sendall(PAIRS), lambda: port.write(PAIRS[::-1]), lambda: port.read(len(PAIRS)),
            lambda: receive(client, len(PAIRS)))
        same(got[2], PAIRS)
        same(got[3], PAIRS[::-1])


def test_picocom_through_gensiots_pty(server, pty, folder):
    with serve(server, pty) as served, gensiot_pty(served.address, folder) as path, \
            Terminal(PICOCOM, path, folder).start() as terminal:
        talk(terminal, pty)


@pytest.mark.only("baudway")
@pytest.mark.parametrize("peer", ("ser2net", "baudway"))
def test_picocom_through_a_pty_of_baudway(server, peer, pty, folder):
    """picocom → Baudway's pty → rfc2217 → server → port."""
    link = os.path.join(folder, "tty")
    with serve(peer, pty) as served, \
            Baudway("", endpoint=f"rfc2217://127.0.0.1:{served.port}", listen=f"pty://{link}"), \
            Terminal(PICOCOM, link, folder).start() as terminal:
        talk(terminal, pty)


def talk(terminal: Terminal, pty: Pty):
    terminal.type(b"hello\r")
    assert pty.read(6) == b"hello\r"
    pty.write(b"and good day\r\n")
    terminal.expect(b"and good day")
    assert terminal.leave() == 0


ASYNCIO = """
import asyncio, hashlib, serial_asyncio, sys
async def main():
    reader, writer = await serial_asyncio.open_serial_connection(url=sys.argv[1], baudrate=57600)
    print("open", flush=True)
    data = await reader.readexactly(1 << 16)
    writer.write(data[::-1])
    await writer.drain()
    print(hashlib.sha256(data).hexdigest(), flush=True)
    await reader.readexactly(1)
asyncio.run(main())
"""


def test_pyserial_asyncio_through_gensiots_pty(server, pty, folder):
    data = shuffled(6)
    with serve(server, pty) as served, gensiot_pty(served.address, folder) as path, \
            Client(servers.PYTHON, "-c", ASYNCIO, path) as client:
        client.read_until(b"open\n")
        got = run_all(lambda: pty.write(data), lambda: pty.read(len(data)))
        same(got[1], data[::-1])
        client.read_until(b"\n")


@pytest.mark.only("pyserial")
def test_pyserial_asyncio_has_no_rfc2217(server, pty):
    """It sets a write timeout, which pyserial's rfc2217:// does not have; and it would need a descriptor."""
    with serve(server, pty) as served:
        done = subprocess.run([servers.PYTHON, "-c", ASYNCIO, served.url], capture_output=True, text=True, timeout=30)
        assert "write_timeout is currently not supported" in done.stderr


@pytest.mark.only("baudway", "ser2net")
def test_telnet_over_tls(server, pty, folder):
    authority = Authority(folder)
    certificate, key = authority.issue("gateway", "127.0.0.1")
    if server == "baudway":
        tls = {"certificate": str(certificate), "key": str(key)}
        served = Baudway(pty.path, listen="telnets://127.0.0.1:0", tls=tls)
    else:
        served = Ser2net(pty.path, accepter=f"telnet(rfc2217),ssl(key={key},cert={certificate}),tcp(nodelay)")
    with served, Client("telnet-ssl", "-8", "-E", "-z", "ssl", *map(str, served.address)) as client:
        greet(client, pty)
        exchange(client, pty, PAIRS, PAIRS[::-1])


def flash(port: str, arduino: Arduino, folder: str):
    """avrdude writes and verifies 8 KiB."""
    image = shuffled(7, 8192)
    path = os.path.join(folder, "image.bin")
    with open(path, "wb") as file:
        file.write(image)
    done = subprocess.run(
        ["avrdude", "-c", "arduino", "-p", "m328p", "-P", port, "-b", "115200", "-D", "-U", f"flash:w:{path}:r"],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and "8192 bytes of flash verified" in done.stderr, done.stderr
    same(bytes(arduino.flash[:8192]), image)
    assert arduino.left


def test_avrdude_through_gensiots_pty(server, pty, folder):
    arduino = Arduino(pty)
    arduino.start()
    with serve(server, pty) as served, gensiot_pty(served.address, folder) as path:
        flash(path, arduino, folder)


@pytest.mark.only("baudway")
def test_avrdude_through_a_pty_of_baudway(server, pty, folder):
    arduino = Arduino(pty)
    arduino.start()
    link = os.path.join(folder, "tty")
    with serve(server, pty) as served, \
            Baudway("", endpoint=f"rfc2217://127.0.0.1:{served.port}", listen=f"pty://{link}"):
        flash(link, arduino, folder)


@pytest.mark.only("baudway")
def test_avrdude_as_a_raw_client_of_a_telnet_listener(server, pty, folder):
    """Its `net:` is raw TCP, which `?raw=auto` recognises."""
    arduino = Arduino(pty)
    arduino.start()
    with Baudway(pty.path, listen="telnet://127.0.0.1:0?raw=auto") as served:
        flash(f"net:127.0.0.1:{served.port}", arduino, folder)
