"""A client of RFC 2217 that shows each message: requests with their answers, and notifications in their order."""
import contextlib
import socket
import threading

from kit import connect

IAC, DO, WILL, SB, SE = 255, 253, 251, 250, 240
BINARY, COM_PORT = 0, 44
BAUD, DATA, PARITY, STOP, CONTROL, LINE_STATE, MODEM_STATE, LINE_MASK = 1, 2, 3, 4, 5, 6, 7, 10
ANSWER = 100  # what the server adds to a code
PARITIES = {"none": 1, "odd": 2, "even": 3, "mark": 4, "space": 5}
FLOWS = {"none": 1, "xonxoff": 2, "rtscts": 3}
BREAK_ON, BREAK_OFF, DTR_ON, DTR_OFF, RTS_ON, RTS_OFF = 5, 6, 8, 9, 11, 12


class ComPort:
    """`data` has the received bytes; it always reads."""

    def __init__(self, address: tuple[str, int]):
        self.data, self.ended = bytearray(), False
        self._raw, self._messages, self._news = bytearray(), [], threading.Condition()
        self._client = connect(address)
        self._client.settimeout(None)
        threading.Thread(target=self._listen, daemon=True).start()
        self._client.sendall(bytes([IAC, WILL, BINARY, IAC, DO, BINARY, IAC, WILL, COM_PORT]))

    def _listen(self):
        with contextlib.suppress(OSError):
            while piece := self._client.recv(1 << 16):
                with self._news:
                    self._raw += piece
                    while self._take():
                        pass
                    self._news.notify_all()
        with self._news:
            self.ended = True
            self._news.notify_all()

    def _take(self) -> bool:
        """Takes bytes, a command or a message off `_raw`; false if that is not there as a whole."""
        raw, at = self._raw, self._raw.find(IAC)
        if at != 0:
            at = at if at > 0 else len(raw)
            self.data += raw[:at]
            del raw[:at]
            return bool(raw)
        if len(raw) < 2:
            return False
        size = 2 if raw[1] < SB or raw[1] == IAC else 3
        if raw[1] == IAC:
            self.data.append(IAC)
        elif raw[1] == SB:
            size = raw.replace(b"\xff\xff", b"..").find(bytes([IAC, SE])) + 2
            if size < 2:
                return False
            self._messages.append(bytes(raw[3:size - 2]).replace(b"\xff\xff", b"\xff"))
        elif len(raw) < size:
            return False
        del raw[:size]
        return True

    def _next(self, fits, what: str, seconds: float = 10) -> bytes:
        with self._news:
            found = self._news.wait_for(lambda: list(filter(fits, self._messages)) or self.ended, seconds)
            assert found and found is not True, f"no {what} within {seconds} s, but {self._messages}"
            self._messages.remove(found[0])
            return found[0][1:]

    def ask(self, code: int, *value: int) -> bytes:
        """The value of the answer to a request."""
        content = bytes([code, *value]).replace(b"\xff", b"\xff\xff")
        self._client.sendall(bytes([IAC, SB, COM_PORT]) + content + bytes([IAC, SE]))
        return self._next(lambda message: message[0] == code + ANSWER, f"answer to {code} {value}")

    def set(self, code: int, value: int) -> int:
        """The value in force, by the answer; a value of 0 asks for it."""
        return int.from_bytes(self.ask(code, *value.to_bytes(4 if code == BAUD else 1, "big")), "big")

    def notified(self, code: int, value: int):
        """Waits for exactly this notification; earlier ones of the kind are taken as well."""
        got = []
        while not got or got[-1] != value:
            try:
                got += self._next(lambda message: message[0] == code + ANSWER, f"notification {code} {value:#x}")
            except AssertionError as error:
                raise AssertionError(f"{error}; before {[hex(number) for number in got]}") from None

    def write(self, data: bytes):
        self._client.sendall(data.replace(b"\xff", b"\xff\xff"))

    def read(self, count: int, seconds: float = 30) -> bytes:
        with self._news:
            assert self._news.wait_for(lambda: len(self.data) >= count, seconds), f"{len(self.data)} of {count} bytes"
            data = bytes(self.data[:count])
            del self.data[:count]
            return data

    def close(self):
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
        self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
