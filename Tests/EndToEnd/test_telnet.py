"""Telnet listeners: RFC 2217 by pyserial, log-in prompt, raw clients, several kinds of clients on one line, and clients
that break the rules."""
import contextlib
import json
import re
import socket
import subprocess
import termios

import pytest
import serial
from certificates import Authority
from control_channel import ControlChannel
from kit import GUARD, Gateway, Pty, Socat, binary, connect, receive, receive_all, receive_until, run_all, until
from listener_clients import finish, trusting

IAC, DONT, DO, WONT, WILL, SB, SE = 255, 254, 253, 252, 251, 250, 240
COM_PORT = 44
ALL = bytes(range(256)) * 8


@pytest.fixture(scope="module")
def hash() -> str:
    done = subprocess.run(
        [binary(), "hash-password", "--cost", "1"], input=b"hunter2\n", capture_output=True, timeout=GUARD, check=True)
    return done.stdout.decode().strip()


def route(*listeners: str, endpoint="sim://echo", users=None, **keys) -> dict:
    config = {"routes": {"lab": {"listen": list(listeners) or ["telnet://127.0.0.1:0"], "endpoint": endpoint, **keys}}}
    return {"users": users, **config} if users else config


def place(gateway: Gateway, scheme: str) -> tuple[str, int]:
    """Where the listener of this scheme listens."""
    listens = re.compile(f"{scheme}://(.*):(\\d+)")
    until(lambda: any(listens.match(event["listen"]) for event in gateway.events("listening")), what=f"{scheme} listens")
    host, port = next(found for event in gateway.events("listening") if (found := listens.match(event["listen"]))).groups()
    return host, int(port)


class Terminal:
    """A telnet client that takes what the server offers, as a terminal does; `text` is without commands."""

    def __init__(self, client: socket.socket, options=(0, 1, 3)):
        self.client, self.options, self.raw, self.text, self.seen = client, options, b"", b"", []
        client.settimeout(GUARD)

    def _read(self):
        data = self.client.recv(4096)
        assert data, f"closed after {self.text!r}"
        self.raw += data
        while self.raw:
            if self.raw[0] != IAC:
                self.text += self.raw[:1]
                self.raw = self.raw[1:]
            elif len(self.raw) >= 2 and self.raw[1] == IAC:
                self.text += self.raw[:1]
                self.raw = self.raw[2:]
            elif len(self.raw) >= 3 and self.raw[1] in (WILL, WONT, DO, DONT):
                verb, option, self.raw = self.raw[1], self.raw[2], self.raw[3:]
                self.seen.append((verb, option))
                answer = {WILL: (DO, DONT), DO: (WILL, WONT)}.get(verb)
                if answer:
                    self.client.sendall(bytes([IAC, answer[0 if option in self.options else 1], option]))
            elif len(self.raw) >= 2 and self.raw[1] not in (SB, WILL, WONT, DO, DONT):
                self.raw = self.raw[2:]
            else:
                return

    def until(self, mark: bytes) -> bytes:
        while mark not in self.text:
            self._read()
        before, _, self.text = self.text.partition(mark)
        return before + mark

    def type(self, line: str):
        self.client.sendall(line.encode() + b"\r\n")

    def end(self) -> bytes:
        """The rest, up to the end of the connection."""
        with contextlib.suppress(AssertionError, ConnectionResetError):
            while True:
                self._read()
        return self.text


def test_a_session_that_ends_at_once_tells_why():
    """Before the client has answered the options."""
    config = route(endpoint="tty:///nonexistent", device={"absent": "close"})
    with Gateway(config) as gateway:
        for _ in range(5):
            with connect(place(gateway, "telnet")) as client:
                assert b"baudway: open-failed: open /nonexistent: No such file" in receive_all(client)


def com_port(*content: int) -> bytes:
    return bytes([IAC, SB, COM_PORT, *b"".join(bytes([c, c]) if c == IAC else bytes([c]) for c in content), IAC, SE])


@contextlib.contextmanager
def pyserial(gateway: Gateway, index: int = 0, **settings):
    host, port = gateway.address("lab", index)
    line = serial.serial_for_url(f"rfc2217://{host}:{port}", timeout=GUARD, **settings)
    try:
        yield line
    finally:
        line.close()


def rate(pty: Pty) -> int:
    return termios.tcgetattr(pty.slave)[5]


# RFC 2217.


def test_pyserial_sets_the_line_which_returns_to_the_configuration_afterwards():
    with Pty() as pty, Gateway(route(endpoint=pty.url + "?baud=9600", device={"open": "always"})) as gateway:
        with pyserial(gateway, baudrate=57_600, stopbits=2, xonxoff=True) as line:
            iflag, _, cflag, _, _, now, _ = termios.tcgetattr(pty.slave)
            assert now == termios.B57600 and cflag & termios.CSTOPB and iflag & termios.IXON
            line.xonxoff = False  # it would take two of the bytes
            got = run_all(lambda: line.write(ALL), lambda: pty.read(len(ALL)), lambda: pty.write(ALL), lambda: line.read(len(ALL)))
            assert got[1] == ALL and got[3] == ALL
            line.baudrate = 115_200
            assert rate(pty) == termios.B115200
        gateway.event("session ended", reason="client-left")
        until(lambda: rate(pty) == termios.B9600, what="the configuration's rate")
        assert not termios.tcgetattr(pty.slave)[2] & termios.CSTOPB


def test_the_next_client_sets_the_line_as_soon_as_the_last_has_closed():
    with Pty() as pty, Gateway(route(endpoint=pty.url + "?baud=9600", device={"open": "always"})) as gateway:
        for wanted, shown in [(57_600, termios.B57600), (19_200, termios.B19200), (115_200, termios.B115200)]:
            with pyserial(gateway, baudrate=wanted) as line:
                assert rate(pty) == shown
                line.write(b"x")
                assert pty.read(1) == b"x"
        # The gateway cannot tell a half-close from a close, so the last session may last some seconds more.
        until(lambda: rate(pty) == termios.B9600, what="the configuration's rate")


def test_an_endpoint_without_a_line_answers_what_the_client_asks_for():
    with Gateway(route()) as gateway:
        with pyserial(gateway, baudrate=4_000_000, bytesize=7, parity="E", stopbits=2, rtscts=True) as line:
            line.dtr, line.rts, line.break_condition = False, True, True
            line.break_condition = False
            assert line.cts and line.dsr and line.cd and not line.ri
            line.write(ALL)
            assert line.read(len(ALL)) == ALL


def test_every_request_gets_an_answer_with_the_value_in_force():
    with Pty() as pty, Gateway(route(endpoint=pty.url + "?baud=9600")) as gateway:
        with gateway.connect("lab") as client:
            client.sendall(bytes([IAC, WILL, COM_PORT]))
            asked = [
                ((1, 0, 0, 0, 0), (101, 0, 0, 0x25, 0x80)), ((1, 0, 0, 0x4B, 0), (101, 0, 0, 0x4B, 0)), ((2, 0), (102, 8)),
                ((2, 9), (102, 8)), ((3, 0), (103, 1)), ((3, 99), (103, 1)), ((4, 0), (104, 1)), ((4, 2), (104, 2)), ((5, 0), (105, 1)),
                ((5, 2), (105, 2)), ((5, 13), (105, 15)), ((5, 17), (105, 2)), ((5, 4), (105, 6)), ((5, 5), (105, 5)), ((5, 4), (105, 5)),
                ((5, 6), (105, 6)), ((5, 9), (105, 9)), ((5, 7), (105, 9)), ((5, 11), (105, 11)), ((5, 10), (105, 11)), ((6,), (106, 0)),
                ((10, 255), (110, 255)), ((11, 15), (111, 15)), ((12, 1), (112, 1)), ((12, 3), (112, 3)), ((12, 9), (112, 9)),
            ]
            for request, answer in asked:
                client.sendall(com_port(*request))
                receive_until(client, com_port(*answer))
            client.sendall(com_port(0))
            assert b"Baudway" in receive_until(client, bytes([IAC, SE]))
            client.sendall(bytes([IAC, 246]))
            receive_until(client, b"[baudway: yes]")


def test_one_client_holds_the_line_and_others_get_the_values_in_force():
    with Pty() as pty, Gateway(route(endpoint=pty.url + "?baud=9600")) as gateway:
        with pyserial(gateway, baudrate=57_600):
            with gateway.connect("lab") as second:
                second.sendall(bytes([IAC, WILL, COM_PORT]) + com_port(1, 0, 0, 0x25, 0x80))
                receive_until(second, com_port(101, 0, 0, 0xE1, 0))
                assert rate(pty) == termios.B57600
            gateway.event("line change refused", request="baud 9600")
        status = json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)
        totals = status["routes"][0]["totals"]
        assert totals["line-changes"] >= 1 and totals["line-refusals"] == 1


def test_a_change_comes_after_the_bytes_before_it():
    with Pty() as pty, Gateway(route(endpoint=pty.url + "?baud=9600")) as gateway:
        with gateway.connect("lab") as client:
            client.sendall(bytes([IAC, WILL, COM_PORT]) + b"a" * 2000 + com_port(1, 0, 0, 0x4B, 0) + b"b" * 2000)
            receive_until(client, com_port(101, 0, 0, 0x4B, 0))
            assert pty.read(4000) == b"a" * 2000 + b"b" * 2000


def test_settings_of_a_client_are_applied_again_when_the_adapter_returns(tmp_path):
    link = tmp_path / "port"
    there = ["pty,raw,echo=0,link=" + str(link), "EXEC:cat"]
    config = route(endpoint=f"tty://{link}?baud=9600&exclusive=no", device={"retry": "50ms..100ms"})
    with contextlib.ExitStack() as stack:
        adapter = stack.enter_context(Socat(*there, links=[str(link)]))
        gateway = stack.enter_context(Gateway(config))
        line = stack.enter_context(pyserial(gateway, baudrate=57_600))
        for turn in range(3):
            line.write(b"before")
            assert line.read(6) == b"before"
            adapter.kill()
            gateway.event("link lost", count=turn + 1)
            adapter = stack.enter_context(Socat(*there, links=[str(link)]))
            gateway.event("link open", count=turn + 2)
            with open(link) as port:
                until(lambda: termios.tcgetattr(port)[5] == termios.B57600, what="the client's rate")
            line.write(b"after")
            assert line.read(5) == b"after"
            line.baudrate = 57_600


def test_clients_of_four_kinds_share_a_line_with_roles_by_listener(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    pair = authority.issue("gw.test", "gw.test", "127.0.0.1")
    listeners = ["tcp://127.0.0.1:0?role=monitor", "telnet://127.0.0.1:0", "tls://127.0.0.1:0?role=monitor", "ws://127.0.0.1:0/lab"]
    config = route(*listeners, endpoint="", tls={"certificate": str(pair.certificate), "key": str(pair.key)})
    with Pty() as pty:
        config["routes"]["lab"]["endpoint"] = pty.url + "?baud=9600"
        with Gateway(config) as gateway, contextlib.ExitStack() as stack:
            def reach(scheme):
                return stack.enter_context(connect(place(gateway, scheme)))
            secure = trusting(authority).wrap_socket(reach("tls"), server_hostname="gw.test")
            raw, browser = reach("tcp"), ControlChannel(reach("ws"))
            browser.event("line", baud=9600)
            host, port = place(gateway, "telnet")
            line = stack.enter_context(contextlib.closing(serial.serial_for_url(f"rfc2217://{host}:{port}", baudrate=57_600, timeout=GUARD)))
            assert browser.event("line", baud=57_600)
            line.break_condition = True
            assert browser.event("outputs", **{"break": True})
            line.break_condition = False
            pty.write(b"hello")
            assert line.read(5) == receive(raw, 5) == receive(secure, 5) == browser.read(5) == b"hello"
            raw.sendall(b"dropped")
            line.write(b"kept")
            assert pty.read(4) == b"kept"


# The log-in.


def users(hash: str) -> dict:
    return {"ada": {"password": hash, "roles": {"*": "writer"}}, "bob": {"password": hash, "roles": {"*": "monitor"}},
            "cyd": {"password": hash, "roles": {}}}


def test_a_user_logs_in_at_the_prompt_and_the_password_is_not_echoed(hash):
    with Gateway(route(users=users(hash))) as gateway:
        with gateway.connect("lab") as client:
            terminal = Terminal(client)
            terminal.until(b"login: ")
            terminal.type("adx\x7fa")
            assert terminal.until(b"password: ").startswith(b"adx\x08 \x08a")
            terminal.type("wrong")
            shown = terminal.until(b"login: ")
            assert b"wrong" not in shown and b"log-in failed" in shown
            terminal.type("ada")
            terminal.until(b"password: ")
            terminal.type("hunter2")
            opened = gateway.event("session opened", user="ada")
            assert "role" not in opened
            client.sendall(b"hello")
            assert b"hunter2" not in terminal.until(b"hello")


def test_a_monitor_may_only_read_and_a_user_without_a_role_is_denied(hash):
    with Gateway(route(users=users(hash))) as gateway:
        for user, shown in (("bob", {"role": "monitor"}), ("cyd", None)):
            with gateway.connect("lab") as client:
                terminal = Terminal(client)
                terminal.until(b"login: ")
                client.sendall(user.encode() + b"\r\0hunter2\r\0")  # as a terminal sends lines in character mode
                if shown:
                    gateway.event("session opened", user=user, **shown)
                else:
                    assert b"this user may not use lab" in terminal.end()
                    gateway.event("session ended", reason="denied", user=user)


def test_three_wrong_passwords_end_the_log_in(hash):
    with Gateway(route(users=users(hash))) as gateway:
        with gateway.connect("lab") as client:
            terminal = Terminal(client)
            for _ in range(3):
                terminal.until(b"login: ")
                terminal.type("ada")
                terminal.until(b"password: ")
                terminal.type("guess")
            assert b"log-in failed" in terminal.end()
        gateway.event("session ended", reason="login-failed")


def test_an_rfc2217_client_at_the_prompt_is_refused_with_the_reason(hash):
    with Gateway(route(users=users(hash))) as gateway:
        with gateway.connect("lab") as client:
            client.sendall(bytes([IAC, WILL, COM_PORT]) + com_port(1, 0, 0, 0, 0))
            assert b"which RFC 2217 clients can't answer" in receive_all(client)
        assert "'?role='" in gateway.event("session ended", reason="login-failed")["error"]


def test_a_listener_with_a_role_asks_nobody_and_check_warns_of_writers(hash):
    config = route("telnet://127.0.0.1:0?role=monitor", "telnet://127.0.0.1:0?role=writer", users=users(hash))
    with Gateway(config) as gateway:
        warned = gateway.command("check", str(gateway.path)).stderr
        assert warned.count("'role=writer' lets every client of this listener write without a log-in") == 1
        with pyserial(gateway, 0, baudrate=9600), pyserial(gateway, 1, baudrate=9600):
            gateway.event("session opened", count=2)
            assert len(gateway.events("session opened", role="monitor")) == 1


# Raw clients, people, and web pages.


def test_a_silent_client_is_served_raw_and_a_telnet_client_is_not():
    with Gateway(route("telnet://127.0.0.1:0?raw=auto")) as gateway:
        with gateway.connect("lab") as raw:
            gateway.event("session opened")
            raw.sendall(b"\xff\xff\xfe")
            assert receive(raw, 3) == b"\xff\xff\xfe"
        with gateway.connect("lab") as raw:
            raw.sendall(b"\r\0x")  # no command either
            assert receive(raw, 3) == b"\r\0x"
        with pyserial(gateway, baudrate=9600) as line:
            line.write(ALL)
            assert line.read(len(ALL)) == ALL


def test_people_get_notices_and_programs_do_not(tmp_path):
    link = tmp_path / "port"
    with Gateway(route(endpoint=f"tty://{link}", device={"retry": "50ms..100ms"})) as gateway:
        with gateway.connect("lab") as person, gateway.connect("lab") as program:
            program.sendall(bytes([IAC, WILL, COM_PORT]))
            terminal = Terminal(person)
            terminal.until(b"baudway: the device of lab is absent")
            with Socat("pty,raw,echo=0,link=" + str(link), "EXEC:cat", links=[str(link)]):
                terminal.until(b"baudway: the device of lab is here")
                gateway.event("link open")
            terminal.until(b"baudway: the device of lab is gone")
            gateway.stop()
            assert b"baudway" not in receive_all(program)


def test_a_web_page_is_refused():
    with Gateway(route()) as gateway:
        with gateway.connect("lab") as page:
            page.sendall(b"POST / HTTP/1.1\r\nHost: gateway\r\n\r\nreboot\r\n")
            assert b"400 Bad Request" in receive_all(page)
        gateway.event("session ended", reason="denied")


# Clients that break the rules.


def test_an_endless_subnegotiation_ends_the_client_and_disturbs_no_other():
    with Gateway(route()) as gateway:
        with gateway.connect("lab") as other, gateway.connect("lab") as client:
            with contextlib.suppress(ConnectionError, BrokenPipeError):
                client.sendall(bytes([IAC, SB, COM_PORT]) + b"x" * 300_000)
            ended = gateway.event("session ended", reason="protocol-error")
            assert "does not end" in ended["error"]
            other.sendall(b"still here")
            receive_until(other, b"still here")


@pytest.mark.measured
def test_ten_thousand_options_without_reading_keep_memory_bounded():
    with Gateway(route()) as gateway:
        with gateway.connect("lab") as other, gateway.connect("lab", receive_buffer=4096) as client:
            def memory():
                return int(next(line for line in open(f"/proc/{gateway.pid}/status") if line.startswith("VmRSS")).split()[1])
            before = memory()
            client.settimeout(1)
            with contextlib.suppress(TimeoutError):
                for _ in range(200):
                    client.sendall(b"".join(bytes([IAC, DO, 100 + n % 100]) for n in range(10_000)))
            for _ in range(20):
                other.sendall(b"ping")
                receive_until(other, b"ping")
            assert memory() - before < 4096, "KiB"


# Two gateways.


@contextlib.contextmanager
def two_gateways(port: Pty, secure: bool, folder, **more):
    """One at the port, and one whose endpoint is the first. Both can be reached by ws."""
    listeners, trust = ["telnet://127.0.0.1:0", "ws://127.0.0.1:0/lab"], ""
    if secure:
        authority = Authority(folder.mktemp("certificates"))
        pair = authority.issue("gw.test", "gw.test", "127.0.0.1")
        listeners[0] = "telnets://127.0.0.1:0"
        more["tls"] = {"certificate": str(pair.certificate), "key": str(pair.key)}
        trust = f"&ca={authority.certificate}&server-name=gw.test"
    with Gateway(route(*listeners, endpoint=port.url + "?baud=9600", **more)) as near:
        host, number = place(near, "telnets" if secure else "telnet")
        url = f"{'rfc2217s' if secure else 'rfc2217'}://{host}:{number}?baud=9600{trust}"
        with Gateway(route("ws://127.0.0.1:0/lab", endpoint=url)) as far:
            yield near, far


@pytest.mark.parametrize("secure", [False, True])
def test_two_gateways_carry_changes_at_their_place(pytestconfig, secure, tmp_path_factory):
    size, changes = (64 << 20, 1000) if pytestconfig.getoption("--long") else (2 << 20, 40)
    piece = size // changes
    with Pty() as pty:
        with two_gateways(pty, secure, tmp_path_factory) as (_, far):
            with far.connect("lab") as connection:
                client = ControlChannel(connection)
                client.event("line", baud=9600)
                down = bytes(range(256)) * (piece // 256)
                for number in range(changes):
                    up = bytes([number % 256]) * piece
                    wanted = (57_600, 115_200)[number % 2]

                    def send():
                        for at in range(0, piece, 16_000):
                            client.send(up[at:at + 16_000], 2)
                        client.ask({"request": "line", "id": number, "baud": wanted})
                    got = run_all(send, lambda: pty.read(piece), lambda: pty.write(down))
                    assert got[1] == up, number
                    assert client.reply(number)["line"]["baud"] == wanted
                    assert rate(pty) == {57_600: termios.B57600, 115_200: termios.B115200}[wanted]
                    assert client.read(len(down)) == down, number


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_behind_another_gateway_sees_what_others_change(secure, tmp_path_factory):
    clients = {"writers": "one", "takeover": "newest"}
    with Pty() as pty, two_gateways(pty, secure, tmp_path_factory, clients=clients) as (near, far):
        with far.connect("lab") as connection:
            client = ControlChannel(connection)
            client.event("line", baud=9600)
            with connect(place(near, "ws")) as newest:
                assert ControlChannel(newest).answer("line", baud=57_600, stop="2")["ok"]
                client.event("line", baud=57_600, stop="2")
            client.event("line", baud=9600, stop="1")


def test_a_change_and_doubled_bytes_pass_through_two_gateways(tmp_path_factory):
    with Pty() as pty, two_gateways(pty, False, tmp_path_factory) as (_, far):
        with far.connect("lab") as connection:
            client = ControlChannel(connection)
            client.event("link", state="open")
            assert client.answer("line", baud=57_600)["ok"]
            assert rate(pty) == termios.B57600
            client.send(b"\xff" * 1000, 2)
            assert pty.read(1000) == b"\xff" * 1000
