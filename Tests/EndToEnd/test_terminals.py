"""Programs at a `pty` listener: minicom, picocom, tio and pyserial open it, talk with the device behind it, and exit by
their own keys, ten times, and while the device is lost ten times."""
import errno
import fcntl
import os
import select
import signal
import subprocess
import termios
import time

import pytest
from kit import GUARD, Gateway, Pty, reset, until
from terminals import MINICOM, PICOCOM, PROGRAMS, TIO, Terminal

# Seconds from the device node's return to what the user had typed meanwhile; the aim is a tenth of it.
LIMIT = 3.0


class Device:
    """A serial device that can be pulled and put back: `path` is a link to its current pty."""

    def __init__(self, path: str):
        self.path = path
        self.pty = None
        self.put_back()

    def put_back(self):
        self.pty = Pty()
        os.symlink(self.pty.path, self.path)

    def pull(self):
        os.unlink(self.path)
        self.pty.close()

    def hears(self, text: bytes, seconds: float = GUARD):
        heard = self.pty.read(len(text), seconds)
        assert heard == text, heard

    def is_heard(self, seconds: float) -> bool:
        return bool(select.select([self.pty.master], [], [], seconds)[0])

    def says(self, text: bytes):
        self.pty.write(text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pty.close()


def route(folder, **more) -> dict:
    """Leads from a port of the name `port` to the device of that name."""
    return {"port": {"listen": f"pty://{folder}/port", "endpoint": f"tty://{folder}/device", **more}}


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_opens_the_port_exchanges_bytes_and_exits_ten_times(folder, program):
    with Device(f"{folder}/device") as device, Gateway({"routes": route(folder)}) as gateway:
        target, before = os.readlink(f"{folder}/port"), gateway.descriptors()
        for number in range(1, 11):
            with Terminal(program, f"{folder}/port", gateway.folder).start() as terminal:
                for word in ("first", "second"):
                    terminal.type(b"%s-%d!" % (word.encode(), number))
                    device.hears(b"%s-%d!" % (word.encode(), number))
                    device.says(b"\r\n{%s:%d}" % (word.encode(), number))
                    terminal.expect(b"{%s:%d}" % (word.encode(), number))
                assert terminal.leave() == 0
            gateway.event("session ended", count=number, reason="client-left")
        assert len(gateway.events("session opened")) == len(gateway.events("session ended")) == 10
        assert os.readlink(f"{folder}/port") == target
        until(lambda: gateway.descriptors() <= before, what=f"descriptors back to {before}")


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_stays_while_its_device_is_lost_ten_times(folder, program, figure, quick):
    with Device(f"{folder}/device") as device, Gateway({"routes": route(folder)}) as gateway, \
            Terminal(program, f"{folder}/port", gateway.folder).start() as terminal:
        gateway.event("link open")
        before, took = gateway.descriptors(), []
        for number in range(1, 11):
            device.pull()
            gateway.event("link lost", count=number)
            terminal.type(b"meanwhile-%d!" % number)
            start = time.monotonic()
            device.put_back()
            device.hears(b"meanwhile-%d!" % number)
            took.append(time.monotonic() - start)
            device.says(b"\r\n{back:%d}" % number)
            terminal.expect(b"{back:%d}" % number)
        figure(f"new device at {program}, longest of ten", 1000 * max(took), "ms", aim=300)
        quick(max(took), LIMIT, "from the device's return")
        assert not gateway.events("session ended")
        until(lambda: gateway.descriptors() <= before, what=f"descriptors back to {before}")
        assert terminal.leave() == 0
        gateway.event("session ended", reason="client-left")
        assert len(gateway.events("session opened")) == len(gateway.events("session ended")) == 1


@pytest.mark.waits
@pytest.mark.parametrize("program", (MINICOM, TIO), ids=str)
def test_a_program_is_hung_up_with_its_device_and_reopens_the_port(folder, program):
    """Both reopen the port by themselves, tio once a second and minicom at once: the gateway allows one try a
    second."""
    config = {"routes": route(folder, device={"absent": "close"})}
    with Device(f"{folder}/device") as device, Gateway(config) as gateway, \
            Terminal(program, f"{folder}/port", gateway.folder).start() as terminal:
        gateway.event("link open")
        before, start = gateway.descriptors(), time.monotonic()
        for number in range(1, 11):
            device.pull()
            gateway.event("link lost", count=number)
            device.put_back()
            gateway.event("link open", count=number + 1)
            gateway.event("session opened", count=number + 1)
            # Some programs discard input when they open a port, so the test types until the device receives something.
            until(lambda: terminal.type(b"?") or device.is_heard(0.1), what="heard", every=0)
            device.says(b"\r\n{back:%d}" % number)
            terminal.expect(b"{back:%d}" % number)
        until(lambda: gateway.descriptors() <= before, what=f"descriptors back to {before}")
        assert len(gateway.events("session opened")) <= 12 + time.monotonic() - start
        assert terminal.leave() == 0
        gateway.event("session ended", reason="client-left")


def test_a_refused_program_is_logged_once(folder):
    """minicom at once reopens a port that hangs up, so it would be refused without end."""
    config = route(folder, clients={"max": 1})
    config["port"]["listen"] = [config["port"]["listen"], "tcp://127.0.0.1:0"]
    with Device(f"{folder}/device") as device, Gateway({"routes": config}) as gateway:
        client = gateway.connect("port")
        client.sendall(b"first")
        device.hears(b"first")
        with Terminal(MINICOM, f"{folder}/port", gateway.folder).start() as terminal:
            terminal.expect(b"baudway: port is full (1 of 1 clients)")
            terminal.type(b"in vain")
            assert b"full" not in terminal.watch(2)
            assert len(gateway.events("session ended", reason="full")) == 1
            reset(client)
            gateway.event("session ended", reason="client-lost")
            assert terminal.leave() == 0
        with Terminal(MINICOM, f"{folder}/port", gateway.folder).start() as terminal:
            terminal.type(b"let in")
            device.hears(b"let in")
            assert terminal.leave() == 0
        assert len(gateway.events("session ended", reason="full")) == 1


# What a script may do to a serial port. A pty has no modem lines and refuses them; it accepts everything else.
SCRIPT = """
import fcntl, serial, sys, termios
port = serial.Serial(sys.argv[1], 57600, bytesize=8, parity="E", stopbits=2, rtscts=True, timeout=60, exclusive=True)
fcntl.ioctl(port.fd, termios.TIOCEXCL)  # exclusive=True is flock(2), which ends with the program; this does not
refused = 0
for line in ("cts", "dsr", "ri", "cd", "rts", "dtr"):
    try:
        setattr(port, line, True) if line in ("rts", "dtr") else getattr(port, line)
    except OSError:
        refused += 1
port.baudrate = 250000
port.send_break(0.01)
port.reset_input_buffer()
port.reset_output_buffer()
assert port.out_waiting == 0 and port.in_waiting == 0
port.write(bytes(range(256)))
port.flush()
heard = port.read(256)
port.close()
print("refused", refused, "heard", heard == bytes(range(256)))
"""


def test_pyserial_changes_settings_and_the_next_program_finds_the_defaults(folder):
    with Device(f"{folder}/device") as device, Gateway({"routes": route(folder)}) as gateway:
        for number in (1, 2):
            script = subprocess.Popen(
                ["/usr/bin/python3", "-c", SCRIPT, f"{folder}/port"], stdout=subprocess.PIPE, text=True)
            try:
                device.hears(bytes(range(256)))
                device.says(bytes(range(256)))
                assert script.communicate(timeout=GUARD)[0] == "refused 6 heard True\n"
            finally:
                script.kill()
                script.wait()
            gateway.event("session ended", count=number, reason="client-left")
        # A program that sets nothing gets raw bytes, and may open the port though the previous program had it
        # exclusively.
        raw = os.open(f"{folder}/port", os.O_RDWR | os.O_NOCTTY)
        os.write(raw, b"\x03\x04\n\r")
        device.hears(b"\x03\x04\n\r")
        device.says(b"\x03\x04\n\r\x11\x13")
        heard = b""
        while len(heard) < 6:
            assert select.select([raw], [], [], GUARD)[0], heard
            heard += os.read(raw, 6)
        assert heard == b"\x03\x04\n\r\x11\x13"
        os.close(raw)
        assert gateway.event("session ended", count=3)["up"] == 4


def test_a_port_that_a_program_left_exclusive_opens_again(folder):
    """Root may open it all the same. Run by an ordinary user, this fails if the gateway does not replace the pty."""
    port = f"{folder}/port"
    with Gateway({"routes": {"port": {"listen": f"pty://{port}", "endpoint": "sim://echo"}}}) as gateway:
        gateway.signal(signal.SIGSTOP)  # the program has left before the gateway notices it
        try:
            left = os.open(port, os.O_RDWR | os.O_NOCTTY)
            fcntl.ioctl(left, termios.TIOCEXCL)
            os.close(left)
        finally:
            gateway.signal(signal.SIGCONT)

        def opens():
            try:
                os.close(os.open(port, os.O_RDWR | os.O_NOCTTY))
            except OSError as error:
                # While the pty is being replaced: still exclusive, no link, or a link to the pty that has just gone.
                assert error.errno in (errno.EBUSY, errno.ENOENT, errno.EIO), error
                return False
            return True

        until(opens, what="the port opens again", every=0.05)


def test_the_link_of_a_killed_gateway_is_replaced_and_other_files_are_kept(folder):
    port = f"{folder}/port"
    with Device(f"{folder}/device") as device:
        killed = Gateway({"routes": route(folder)}, stopping=False)
        with killed:
            killed.signal(signal.SIGKILL)
            killed.wait()
        assert os.path.islink(port)
        with Gateway({"routes": route(folder)}) as gateway, \
                Terminal(PICOCOM, port, gateway.folder).start() as terminal:
            terminal.type(b"found")
            device.hears(b"found")
            assert terminal.leave() == 0
        assert not os.path.lexists(port)
        with open(port, "w") as file:
            file.write("somebody's")
        with Gateway({"routes": route(folder)}, ready=0) as gateway:
            assert "EEXIST" in gateway.event("listener waiting")["error"]
            gateway.stop()
        assert open(port).read() == "somebody's"


def test_a_script_may_write_to_a_port_that_a_terminal_has_open(folder):
    """`echo > port` at the same time: both count as one client, which ends with the last of them."""
    with Device(f"{folder}/device") as device, Gateway({"routes": route(folder)}) as gateway, \
            Terminal(PICOCOM, f"{folder}/port", gateway.folder).start() as terminal:
        for number in range(10):
            subprocess.run(["sh", "-c", f"printf script-{number} > {folder}/port"], check=True, timeout=GUARD)
            device.hears(b"script-%d" % number)
            terminal.type(b"typed-%d" % number)
            device.hears(b"typed-%d" % number)
            device.says(b"\r\n{answer:%d}" % number)
            terminal.expect(b"{answer:%d}" % number)
        assert not gateway.events("session ended")
        assert terminal.leave() == 0
        gateway.event("session ended", reason="client-left")
        assert len(gateway.events("session opened")) == len(gateway.events("session ended")) == 1
