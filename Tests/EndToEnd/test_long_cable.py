"""Gateway to gateway over `rfc2217` and `rfc2217s`: 64 MiB both ways while a client changes the line 1,000 times. The port at the end is
an RFC 2217 server that notes how many bytes came before each change, so a change that is early or late by one byte is seen.
"""
import hashlib
import random
import re
import threading

import pytest
from certificates import Authority
from kit import SEED, Gateway, Server, connect, run_all, until
from test_telnet import place

SIZE, CHANGES = 64 << 20, 1000
PIECE = SIZE // CHANGES  # the rest follows the last change
SECONDS = 600  # a guard, for 128 MiB that pass through Python twice
IAC, DO, WILL, SB, SE, COM_PORT = 255, 253, 251, 250, 240, 44
RATE = 1
# A command of telnet, whole: IAC in data, an option, a sub-negotiation.
COMMAND = re.compile(rb"\xff(?:\xff|[\xfb-\xfe].|\xfa((?:[^\xff]|\xff\xff)*)\xff\xf0|[\xf1-\xf9])", re.DOTALL)
# The answers of SET-CONTROL to a question: no flow control, break off, DTR on, RTS on, no flow control of input.
CONTROL = {0: 1, 4: 6, 7: 8, 10: 11, 13: 14}


def request(number: int, value: bytes) -> bytes:
    return bytes([IAC, SB, COM_PORT, number]) + value.replace(b"\xff", b"\xff\xff") + bytes([IAC, SE])


def set_rate(rate: int) -> bytes:
    return request(RATE, rate.to_bytes(4, "big"))


def rate_of(index: int) -> int:
    return 10_000 + index


class Reader:
    """Takes telnet apart: counts and hashes the data, and calls `told` for each COM-PORT message and `asked` for each option."""

    def __init__(self, told, asked=lambda verb, option: None):
        self.count, self.hash, self._rest = 0, hashlib.sha256(), b""
        self._told, self._asked = told, asked

    def feed(self, piece: bytes):
        data, at = self._rest + piece, 0
        for found in COMMAND.finditer(data):
            self._data(data[at:found.start()])
            at = found.end()
            self._command(found)
        # What has begun and is not whole yet stays.
        begun = data.find(b"\xff", at)
        begun = len(data) if begun < 0 else begun
        self._data(data[at:begun])
        self._rest = data[begun:]

    def _data(self, data: bytes):
        self.count += len(data)
        self.hash.update(data)

    def _command(self, found: re.Match):
        verb = found[0][1]
        if verb == IAC:
            self._data(b"\xff")
        elif verb == SB:
            message = found[1].replace(b"\xff\xff", b"\xff")
            if message[:1] == bytes([COM_PORT]):
                self._told(message[1], message[2:])
        elif verb >= 251:
            self._asked(verb, found[0][2])


class Port:
    """The far end: an RFC 2217 server for one client. `changes` has each bit rate with the number of bytes before it. Its output
    begins with the first byte of the client: what comes before the port is open may be discarded."""

    def __init__(self, down: bytes):
        self.changes, self.reader = [], Reader(self._told, self._asked)
        self._down, self._replies, self._agreed, self._lock = down, [], set(), threading.Lock()
        self._settings = {RATE: (9600).to_bytes(4, "big"), 2: b"\x08", 3: b"\x01", 4: b"\x01"}

    def _told(self, number: int, value: bytes):
        if number in self._settings:
            if any(value):
                if number == RATE and value != self._settings[RATE]:
                    self.changes.append((int.from_bytes(value, "big"), self.reader.count))
                self._settings[number] = value
            value = self._settings[number]
        elif number == 5:
            value = bytes([CONTROL.get(value[0], value[0])])
        elif number == 7:
            value = b"\xb0"
        if number not in (8, 9):
            self._replies.append(request(100 + number, value))

    def _asked(self, verb: int, option: int):
        answer = {DO: WILL, WILL: DO}.get(verb)
        if answer and option in (0, 3, COM_PORT) and (answer, option) not in self._agreed:
            self._agreed.add((answer, option))
            self._replies.append(bytes([IAC, answer, option]))

    def _send(self, client, data: bytes):
        for at in range(0, len(data), 1 << 16):
            with self._lock:  # an answer may not come between the two bytes of an IAC
                client.sendall(data[at:at + (1 << 16)].replace(b"\xff", b"\xff\xff"))

    def serve(self, client):
        sender = None
        while piece := client.recv(1 << 16):
            self.reader.feed(piece)
            if self._replies:
                with self._lock:
                    client.sendall(b"".join(self._replies))
                self._replies.clear()
            if sender is None and self.reader.count:
                sender = threading.Thread(target=self._send, args=(client, self._down), daemon=True)
                sender.start()


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("secure", [False, True], ids=["rfc2217", "rfc2217s"])
def test_each_change_stays_at_its_place_among_64_mib_both_ways(secure, tmp_path_factory):
    source = random.Random(SEED)
    up, down = source.randbytes(SIZE), source.randbytes(SIZE)
    device = Port(down)
    listen, trust, tls = "telnet://127.0.0.1:0", "", {}
    if secure:
        authority = Authority(tmp_path_factory.mktemp("certificates"))
        pair = authority.issue("gw.test", "gw.test", "127.0.0.1")
        listen, trust = "telnets://127.0.0.1:0", f"&ca={authority.certificate}&server-name=gw.test"
        tls = {"tls": {"certificate": str(pair.certificate), "key": str(pair.key)}}
    with Server(device.serve) as server:
        at_port = {"listen": listen, "endpoint": server.url.replace("tcp", "rfc2217") + "?baud=9600", "clients": {"slow": "block"}, **tls}
        with Gateway({"routes": {"port": at_port}}) as far:
            host, number = place(far, "telnets" if secure else "telnet")
            url = f"{'rfc2217s' if secure else 'rfc2217'}://{host}:{number}?baud=9600{trust}"
            at_client = {"listen": "telnet://127.0.0.1:0", "endpoint": url, "clients": {"slow": "block"}}
            with Gateway({"routes": {"port": at_client}}) as near, connect(place(near, "telnet")) as client:
                client.settimeout(SECONDS)
                for option in (0, 3):
                    client.sendall(bytes([IAC, WILL, option, IAC, DO, option]))
                client.sendall(bytes([IAC, WILL, COM_PORT]))
                answers = []
                reader = Reader(lambda number, value: answers.append(int.from_bytes(value, "big")) if number == 100 + RATE else None)

                def send():
                    for index in range(CHANGES):
                        piece = up[index * PIECE:(index + 1) * PIECE]
                        client.sendall(piece.replace(b"\xff", b"\xff\xff") + set_rate(rate_of(index)))
                    client.sendall(up[CHANGES * PIECE:].replace(b"\xff", b"\xff\xff"))

                def hear():
                    while reader.count < SIZE or len(answers) < CHANGES:
                        piece = client.recv(1 << 16)
                        assert piece, f"ended after {reader.count} bytes and {len(answers)} answers"
                        reader.feed(piece)

                run_all(send, hear, seconds=SECONDS)
                assert reader.count == SIZE and reader.hash.digest() == hashlib.sha256(down).digest()
                assert answers == [rate_of(index) for index in range(CHANGES)]
                until(lambda: device.reader.count >= SIZE, seconds=SECONDS, what="all bytes at the port")
                assert device.reader.count == SIZE and device.reader.hash.digest() == hashlib.sha256(up).digest()
                assert device.changes == [(rate_of(index), (index + 1) * PIECE) for index in range(CHANGES)]
