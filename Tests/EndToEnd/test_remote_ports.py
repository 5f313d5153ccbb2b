"""rfc2217 and telnet endpoints at foreign servers: pyserial's and ser2net."""
import subprocess
import termios

import pytest
from control_channel import ControlChannel
from kit import GUARD, Gateway, Pty, binary, free_port, receive, run_all
from remote_ports import SER2NET, PyserialServer, Ser2net
from test_connect import pipe

ALL = bytes(range(256)) * 20

needs_ser2net = pytest.mark.skipif(not SER2NET.exists(), reason="ser2net could not be had")


def route(endpoint: str, *listeners: str, **keys) -> dict:
    device = {"retry": "50ms..200ms", **keys.pop("device", {})}
    return {"routes": {"lab": {"listen": list(listeners) or ["tcp://127.0.0.1:0"], "endpoint": endpoint, "device": device, **keys}}}


def both_ways(client, pty: Pty):
    """Every byte value, up and down at once."""
    got = run_all(lambda: client.sendall(ALL), lambda: pty.read(len(ALL)), lambda: pty.write(ALL), lambda: receive(client, len(ALL)))
    assert got[1] == ALL and got[3] == ALL


@pytest.mark.parametrize("scheme", ["rfc2217", "telnet"])
def test_bytes_of_every_value_pass_through_pyserials_server(scheme):
    with PyserialServer() as server, Gateway(route(f"{scheme}://127.0.0.1:{server.port}")) as gateway:
        with gateway.connect("lab") as client:
            got = run_all(lambda: client.sendall(ALL), lambda: receive(client, len(ALL)))
            assert got[1] == ALL


@needs_ser2net
@pytest.mark.parametrize("scheme", ["rfc2217", "telnet"])
def test_bytes_of_every_value_pass_through_ser2net(folder, scheme):
    with Pty() as pty, Ser2net(folder, pty) as server, Gateway(route(f"{scheme}://127.0.0.1:{server.port}")) as gateway:
        with gateway.connect("lab") as client:
            gateway.event("link open")  # output from before is discarded
            both_ways(client, pty)


@needs_ser2net
def test_settings_and_their_changes_arrive_at_ser2nets_port(folder):
    with Pty() as pty, Ser2net(folder, pty) as server:
        endpoint = f"rfc2217://127.0.0.1:{server.port}?baud=57600&stop=2&flow=xonxoff"
        with Gateway(route(endpoint, "ws://127.0.0.1:0/lab")) as gateway:
            with gateway.connect("lab") as connection:
                client = ControlChannel(connection)
                assert client.event("line")["baud"] == 57_600
                iflag, _, cflag, _, _, rate, _ = termios.tcgetattr(pty.slave)
                assert rate == termios.B57600 and cflag & termios.CSTOPB and iflag & termios.IXON
                client.send(b"before", 2)
                answer = client.answer("line", baud=9600, stop="1", flow="none")["line"]
                assert (answer["baud"], answer["stop"], answer["flow"]) == (9600, "1", "none")
                iflag, _, cflag, _, _, rate, _ = termios.tcgetattr(pty.slave)
                assert rate == termios.B9600 and not cflag & termios.CSTOPB and not iflag & termios.IXON
                # ser2net does not answer a request that its driver refuses.
                assert not client.answer("dtr", on=False)["ok"]
                client.send(b"after", 2)
                assert pty.read(11) == b"beforeafter"


def test_lines_and_settings_of_pyserials_server_follow_a_client():
    # Its loop leads RTS to CTS and DTR to DSR.
    with PyserialServer() as server:
        endpoint = f"rfc2217://127.0.0.1:{server.port}?baud=19200&parity=odd&dtr=on&rts=off"
        with Gateway(route(endpoint, "ws://127.0.0.1:0/lab")) as gateway:
            with gateway.connect("lab") as connection:
                client = ControlChannel(connection)
                client.event("link", state="open")
                settings = server.serial.get_settings()
                assert (settings["baudrate"], settings["parity"], settings["stopbits"]) == (19_200, "O", 1)
                assert server.serial.dtr and not server.serial.rts
                assert client.answer("watch", on=True)["ok"]
                client.event("modem", dsr=True, cts=False)
                assert client.answer("rts", on=True)["ok"]
                client.event("modem", dsr=True, cts=True)
                assert client.answer("line", baud=1200, data=7)["line"]["baud"] == 1200
                settings = server.serial.get_settings()
                assert (settings["baudrate"], settings["bytesize"]) == (1200, 7)


@needs_ser2net
def test_a_restarted_ser2net_is_opened_again_while_the_client_stays(folder):
    port = free_port()
    with Pty() as pty, Gateway(route(f"rfc2217://127.0.0.1:{port}?baud=57600")) as gateway:
        with Ser2net(folder, pty, port), gateway.connect("lab") as client:
            gateway.event("link open")
            both_ways(client, pty)
            again = client.dup()
        with again as client:
            gateway.event("link waiting")
            with Ser2net(folder, pty, port):
                gateway.event("link open", count=2)
                both_ways(client, pty)
                assert termios.tcgetattr(pty.slave)[5] == termios.B57600


@needs_ser2net
def test_a_port_in_use_is_reported_with_what_ser2net_says(folder):
    with Pty() as pty, Ser2net(folder, pty) as server:
        url = f"rfc2217://127.0.0.1:{server.port}"
        first = subprocess.Popen([binary(), "connect", url], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            first.stdin.write(b"x")
            first.stdin.flush()
            assert pty.read(1) == b"x"
            done = pipe(url)
            assert done.returncode == 69 and b"Port already in use" in done.stderr
        finally:
            first.stdin.close()
            first.wait(GUARD)


@needs_ser2net
def test_connect_reaches_a_remote_port_and_waits_for_its_last_bytes(folder):
    with Pty() as pty, Ser2net(folder, pty) as server:
        process = subprocess.Popen(
            [binary(), "connect", f"rfc2217://127.0.0.1:{server.port}", "--silence", "1s"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)
        process.stdin.write(b"question")
        process.stdin.close()
        assert pty.read(8) == b"question"
        pty.write(ALL[:256])
        assert process.stdout.read() == ALL[:256]
        process.stdout.close()
        assert process.wait(GUARD) == 0


def test_what_rfc2217_cannot_carry_is_a_mistake_in_the_url():
    for setting, expected in [("hupcl=yes", "hupcl=no"), ("exclusive=no", "exclusive=yes"), ("low-latency=no", "low-latency=yes"), ("rs485=rts-on-send", "rs485=off")]:
        done = pipe(f"rfc2217://127.0.0.1:1?{setting}")
        assert done.returncode == 64 and b"RFC 2217 has no request for this" in done.stderr and expected.encode() in done.stderr
    done = pipe("rfc2217://127.0.0.1:1?hupcl=no&exclusive=yes&low-latency=yes&rs485=off")
    assert done.returncode == 69
