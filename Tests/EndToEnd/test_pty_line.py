"""Programs that set a `pty` listener as a serial port: what a kernel pty keeps of it is set at the endpoint's line."""
import contextlib
import json
import os
import re
import subprocess
import termios
import tty

import pytest
import serial
from control_channel import ControlChannel
from kit import GUARD, Gateway, Pty, connect, until
from terminals import MINICOM, PICOCOM, TIO, Terminal

EXTPROC = 0o200000
XON_XOFF = termios.IXON | termios.IXOFF


def route(folder, endpoint: str, *more: str, **keys) -> dict:
    return {"lab": {"listen": [f"pty://{folder}/port", *more], "endpoint": endpoint, **keys}}


@contextlib.contextmanager
def gateways(folder, device: Pty, /, remote=False, parameters="", *more: str, **keys):
    """A gateway with a pty listener on `device`; with `remote`, through RFC 2217 and a second gateway."""
    config = {"log": {"level": "debug"}, "routes": route(folder, f"{device.url}{parameters}", *more, **keys)}
    if not remote:
        with Gateway(config) as gateway:
            yield gateway
        return
    far = {"routes": {"far": {"listen": "telnet://127.0.0.1:0", "endpoint": device.url}}}
    with Gateway(far) as server:
        host, port = server.address("far")
        config["routes"] = route(folder, f"rfc2217://{host}:{port}{parameters}", *more, **keys)
        with Gateway(config) as gateway:
            yield gateway


def opened_with_parity(path: str, rate: int) -> serial.Serial | None:
    """As Modbus programs do: 8E1. None where the C library takes it for refused, because a pty keeps nothing of what is new."""
    try:
        return serial.Serial(path, rate, parity=serial.PARITY_EVEN, timeout=GUARD)
    except termios.error:
        return None


def test_programs_open_it_with_parity_one_right_after_the_other(tmp_path):
    master, slave = os.openpty()
    tty.setraw(slave)
    plain = [opened_with_parity(os.ttyname(slave), 9600) for _ in range(2)]
    if plain[0] is None:
        pytest.skip("this C library accepts parity at no pty")
    assert plain[1] is None, "a pty of the kernel's takes it once"
    plain[0].close()
    os.close(master)
    os.close(slave)
    with Gateway({"routes": route(tmp_path, "sim://echo")}) as gateway:
        for number in range(20):
            port = opened_with_parity(f"{tmp_path}/port", (9600, 9600, 19200)[number % 3])
            assert port is not None, number
            with port:
                port.write(b"%d" % number)
                assert port.read(len(b"%d" % number)) == b"%d" % number


def both_kinds(test):
    return pytest.mark.parametrize("remote", [False, True], ids=["tty", "rfc2217"])(test)


RATES = {getattr(termios, f"B{n}"): n for n in (1200, 2400, 4800, 9600, 19200, 38400, 57600, 115200, 230400)}


def in_force(device: Pty):
    """Bit rate, whether there are two stop bits, whether XON/XOFF is on."""
    iflag, _, cflag, _, _, rate, _ = termios.tcgetattr(device.slave)
    return (RATES.get(rate, rate), bool(cflag & termios.CSTOPB), iflag & XON_XOFF == XON_XOFF)


def is_set_to(device: Pty, rate: int, two=False, xon=False):
    until(lambda: in_force(device) == (rate, two, xon), what=f"{(rate, two, xon)}, not {in_force(device)}")


def stty(folder, *words: str) -> str:
    done = subprocess.run(["stty", "-F", f"{folder}/port", *words], capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(folder) -> int:
    """The bit rate that stty shows."""
    return int(stty(folder, "speed"))


def shows(folder, rate: int):
    until(lambda: shown(folder) == rate, what=f"{rate} at the port", every=0.05)


def address(gateway, scheme: str) -> tuple[str, int]:
    """Where the listener of this scheme listens."""
    gateway.event("listening", count=2)
    url = next(e["listen"] for e in gateway.events("listening") if e["listen"].startswith(f"{scheme}:"))
    return "127.0.0.1", int(re.search(r":(\d+)", url).group(1))


def totals(gateway) -> tuple[int, int]:
    """Changes of the line, refusals."""
    found = json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)["routes"][0]["totals"]
    return found["line-changes"], found["line-refusals"]


@both_kinds
def test_rate_stop_bits_and_xon_xoff_of_a_program_are_set_at_the_device(folder, remote):
    with Pty() as device, gateways(folder, device, remote) as gateway:
        with serial.Serial(f"{folder}/port", 57600, stopbits=2, xonxoff=True, timeout=GUARD) as port:
            is_set_to(device, 57600, two=True, xon=True)
            port.stopbits = 1
            is_set_to(device, 57600, xon=True)
            port.xonxoff = False
            is_set_to(device, 57600)
            port.baudrate = 230400  # the program only listens now
            is_set_to(device, 230400)
            device.write(b"down")
            assert port.read(4) == b"down"
            gateway.event("line changed", request="baud 57600, stop 2, flow xonxoff")
            assert not gateway.events("line change refused")
        is_set_to(device, 115200)
        shows(folder, 115200)


@both_kinds
def test_a_change_is_made_before_the_bytes_that_follow_it(folder, remote):
    rates = [9600, 57600, 19200, 115200, 38400]
    with Pty() as device, gateways(folder, device, remote):
        with serial.Serial(f"{folder}/port", 1200, timeout=GUARD) as port:
            for number in range(200):
                port.baudrate = rates[number % 5]
                port.write(b"%03d" % number)
                assert device.read(3) == b"%03d" % number
                assert in_force(device)[0] == rates[number % 5], number
                device.write(b"ok")
                assert port.read(2) == b"ok"


@pytest.mark.parametrize("opens", ["on-demand", "always"])
def test_each_program_that_opens_the_port_at_once_after_another_sets_the_line_before_its_bytes(folder, opens):
    with Pty() as device, gateways(folder, device, device={"open": opens}):
        for number in range(30):
            with serial.Serial(f"{folder}/port", 57600, timeout=GUARD) as port:
                port.write(b"%02d" % number)
                assert device.read(2) == b"%02d" % number
                # The session of the program before may end only now: its end restores the line, for a moment.
                is_set_to(device, 57600)
        is_set_to(device, 115200)


def test_settings_in_force_change_nothing_and_take_no_hold_of_the_line(folder):
    with Pty() as device, gateways(folder, device, False, "?baud=38400&stop=2") as gateway:
        assert shown(folder) == 38400
        with serial.Serial(f"{folder}/port", 38400, stopbits=2, timeout=GUARD) as port:
            port.write(b"up")
            assert device.read(2) == b"up"
            assert totals(gateway) == (0, 0)
        assert not gateway.events("line changed")


def test_the_hold_of_another_client_is_obeyed_and_the_port_shows_the_line_in_force(folder):
    with Pty() as device, gateways(folder, device, False, "", "telnet://127.0.0.1:0") as gateway:
        host, number = address(gateway, "telnet")
        with serial.serial_for_url(f"rfc2217://{host}:{number}", baudrate=57600, timeout=GUARD):
            is_set_to(device, 57600)
            shows(folder, 57600)
            with serial.Serial(f"{folder}/port", 9600, timeout=GUARD) as port:
                gateway.event("line change refused", request="baud 9600")
                port.write(b"up")
                assert device.read(2) == b"up"
                assert in_force(device)[0] == 57600
            assert totals(gateway)[1] == 1
            shows(folder, 57600)
        is_set_to(device, 115200)
        shows(folder, 115200)
        # The other way round.
        with serial.Serial(f"{folder}/port", 9600, timeout=GUARD):
            is_set_to(device, 9600)
            with pytest.raises(ValueError):
                serial.serial_for_url(f"rfc2217://{host}:{number}", baudrate=57600, timeout=GUARD)
            assert in_force(device)[0] == 9600


def test_only_the_client_with_the_writer_role_sets_the_line(folder):
    more = [f"pty://{folder}/second", f"pty://{folder}/monitor?role=monitor"]
    with Pty() as device, gateways(folder, device, False, "", *more, clients={"writers": "one"}) as gateway:
        with serial.Serial(f"{folder}/port", 57600, timeout=GUARD):
            is_set_to(device, 57600)
            with serial.Serial(f"{folder}/second", 9600, timeout=GUARD):
                gateway.event("line change refused", request="baud 9600")
            with serial.Serial(f"{folder}/monitor", 4800, timeout=GUARD):
                gateway.event("line change refused", request="baud 4800")
            assert in_force(device)[0] == 57600


def test_an_endpoint_without_a_line_is_left_alone(folder):
    with Gateway({"log": {"level": "debug"}, "routes": route(folder, "sim://echo")}) as gateway:
        with serial.Serial(f"{folder}/port", 57600, timeout=GUARD) as port:
            for rate in (1200, 9600, 230400):
                port.baudrate = rate
                port.write(b"echo")
                assert port.read(4) == b"echo"
            assert totals(gateway) == (0, 0)
            assert not gateway.events("line changed") and not gateway.events("line change refused")


@pytest.mark.measured
@pytest.mark.waits
def test_a_program_at_an_endpoint_without_a_line_causes_no_context_switches(folder):
    with Gateway({"routes": route(folder, "sim://echo")}) as gateway:
        with serial.Serial(f"{folder}/port", 57600, timeout=GUARD) as port:
            port.write(b"echo")
            assert port.read(4) == b"echo"
            gateway.falls_asleep(3)


def test_a_program_in_canonical_mode_with_echo_works_and_its_modes_are_its_own(folder):
    with Pty() as device, gateways(folder, device) as gateway:
        port = os.open(f"{folder}/port", os.O_RDWR | os.O_NOCTTY)
        modes = termios.tcgetattr(port)
        modes[0] |= termios.ICRNL
        modes[3] |= termios.ICANON | termios.ECHO | termios.ECHOE
        modes[4] = modes[5] = termios.B19200
        termios.tcsetattr(port, termios.TCSANOW, modes)
        is_set_to(device, 19200)
        device.write(b"hel\x7flo\r")
        assert os.read(port, 100) == b"helo\n"
        assert device.read(9) == b"hel\b \blo\n"
        now = termios.tcgetattr(port)
        assert now[:2] == modes[:2] and now[3:6] == modes[3:6] and not now[3] & EXTPROC
        os.close(port)
        gateway.event("session ended")
        until(lambda: {"-icanon", "-echo"} <= set(stty(folder, "-a").split()), what="raw again", every=0.05)


def test_modes_of_a_program_that_leaves_flow_control_alone_leave_that_of_the_line(folder):
    """cfmakeraw(3) clears IXON and keeps IXOFF; a shell sets IXON alone."""
    with Pty() as device, gateways(folder, device, False, "?flow=xonxoff") as gateway:
        port = os.open(f"{folder}/port", os.O_RDWR | os.O_NOCTTY)
        assert termios.tcgetattr(port)[0] & XON_XOFF == XON_XOFF
        tty.setraw(port)
        os.write(port, b"up")
        assert device.read(2) == b"up"
        assert in_force(device) == (115200, False, True)
        assert not gateway.events("line changed")
        os.close(port)


def test_stty_alone_leaves_no_trace_and_stty_beside_a_program_sets_the_line(folder):
    with Pty() as device, gateways(folder, device):
        for _ in range(10):
            stty(folder, "9600")
        is_set_to(device, 115200)
        shows(folder, 115200)
        with open(f"{folder}/port", "rb", buffering=0):
            for rate in (9600, 57600, 19200):
                stty(folder, str(rate))
                is_set_to(device, rate)
        is_set_to(device, 115200)


@pytest.mark.parametrize("program", (MINICOM, PICOCOM, TIO), ids=str)
def test_terminal_programs_set_the_line_of_the_device(folder, program):
    with Pty() as device, gateways(folder, device, False, "?baud=9600") as gateway:
        with Terminal(program, f"{folder}/port", gateway.folder).start() as terminal:
            is_set_to(device, 115200)
            terminal.type(b"up!")
            assert device.read(3) == b"up!"
            device.write(b"\r\n{down}")
            terminal.expect(b"{down}")
            assert terminal.leave() == 0
        gateway.event("link closed")
        is_set_to(device, 9600)
        # It has set the port back at its exit, and that is no request.
        assert [entry["request"] for entry in gateway.events("line changed")] == ["baud 115200"]


def test_what_a_program_sets_while_the_device_is_away_is_set_at_its_return(folder):
    path = f"{folder}/device"
    first = Pty()
    os.symlink(first.path, path)
    config = {"log": {"level": "debug"}, "routes": route(folder, f"tty://{path}", device={"retry": "50ms..200ms"})}
    with Gateway(config) as gateway, serial.Serial(f"{folder}/port", 57600, timeout=GUARD) as port:
        is_set_to(first, 57600)
        os.unlink(path)
        first.close()
        gateway.event("link lost")
        port.baudrate = 19200
        port.write(b"meanwhile")
        with Pty() as second:
            os.symlink(second.path, path)
            assert second.read(9) == b"meanwhile"
            assert in_force(second)[0] == 19200


def test_a_reload_changes_what_an_idle_port_shows(folder):
    with Pty() as device, gateways(folder, device) as gateway:
        assert shown(folder) == 115200
        gateway.configure({"routes": route(folder, f"{device.url}?baud=4800")})
        gateway.command("reload", str(gateway.path))
        shows(folder, 4800)


def test_clients_of_baudway_v1_learn_what_a_program_at_the_port_has_set(folder):
    with Pty() as device, gateways(folder, device, False, "", "ws://127.0.0.1:0/lab") as gateway:
        with connect(address(gateway, "ws")) as connection:
            client = ControlChannel(connection)
            assert client.event("line")["baud"] == 115200
            with serial.Serial(f"{folder}/port", 57600, timeout=GUARD):
                assert client.event("line")["baud"] == 57600
            assert client.event("line")["baud"] == 115200
