"""A simulated ESP32 board: the circuit that resets the chip by DTR and RTS, and the boot loader in the chip's ROM.

The circuit (Espressif's "Boot Mode Selection"): two transistors, so that both lines on or both off leave EN and IO0 high.

    EN  = not (RTS and not DTR)     a capacitor makes it rise `rise` seconds after the line, and it falls at once
    IO0 = not (DTR and not RTS)

When EN rises, the chip starts: in download mode if IO0 is low at that moment, otherwise it boots from its flash. EN must have been low
for `hold` seconds, or the chip does not notice. Between DTR on and RTS off EN is high already: if that takes longer than `rise`, the
chip boots from its flash. So a client that waits for an answer to each change cannot reset the chip, and neither can a slow network.

All times are those of the program that has the port open (programs/modem.c), not of this simulation's threads.
"""
import hashlib
import os
import struct
import termios
import threading
import time
import zlib

from lines import ModemPort

NORMAL = b"ets Jun  8 2016 00:22:57\r\n\r\nrst:0x1 (POWERON_RESET),boot:0x13 (SPI_FAST_FLASH_BOOT)\r\nhello from flash\r\n"
DOWNLOAD = (
    b"ets Jun  8 2016 00:22:57\r\n\r\nrst:0x1 (POWERON_RESET),boot:0x3 (DOWNLOAD_BOOT(UART0/UART1/SDIO_REI_REO_V2))\r\n"
    b"waiting for download\r\n")
RATES = {getattr(termios, name): int(name[1:]) for name in dir(termios) if name[0] == "B" and name[1:].isdigit()}

# Commands of the ROM (Espressif's "Serial Protocol").
FLASH_BEGIN, FLASH_DATA, FLASH_END, MEM_BEGIN, MEM_END, MEM_DATA = 2, 3, 4, 5, 6, 7
SYNC, WRITE_REG, READ_REG, SPI_SET_PARAMS, SPI_ATTACH, CHANGE_BAUDRATE = 8, 9, 10, 11, 13, 15
DEFL_BEGIN, DEFL_DATA, DEFL_END, SPI_FLASH_MD5 = 16, 17, 18, 19
SPI = 0x3FF42000  # registers of the flash: command, second word of a user's command, data
SPI_COMMAND, SPI_USER_2, SPI_DATA, SPI_USER = SPI, SPI + 0x24, SPI + 0x80, 1 << 18
REGISTERS = {
    0x40001000: 0x00F01D83,  # tells the kinds of chip apart
    0x3FF5A004: 0x22334455, 0x3FF5A008: 0x0011,  # the MAC address 00:11:22:33:44:55
    0x3FF40014: 347,  # the UART's divisor: 40 MHz at 115200 bit/s
}
READ_ID, FLASH_ID = 0x9F, 0x1640EF  # a Winbond of 4 MiB


class Circuit:
    """DTR and RTS in, starts of the chip out: (seconds, whether in download mode)."""

    def __init__(self, rise: float = 0.002, hold: float = 0.001):
        self.rise, self.hold = rise, hold
        self.enabled, self.io0 = True, True
        self.fell, self.due = 0.0, None  # when EN fell; when it will have risen

    def move(self, seconds: float, dtr: bool, rts: bool) -> tuple[float, bool] | None:
        """A change of the lines. Returns the start before it, if there was one."""
        start = self.pass_time(seconds)
        low = rts and not dtr
        if low and (self.enabled or self.due is not None):
            if self.due is None:
                self.fell = seconds
            self.enabled, self.due = False, None
        elif not low and not self.enabled and self.due is None:
            if seconds - self.fell < self.hold:
                self.enabled = True  # the chip has not noticed
            else:
                self.due = seconds + self.rise
        self.io0 = not (dtr and not rts)
        return start

    def is_running(self, seconds: float) -> bool:
        return self.enabled or (self.due is None and seconds - self.fell < self.hold)

    def pass_time(self, seconds: float) -> tuple[float, bool] | None:
        """Until then the lines have not changed."""
        if self.due is None or self.due > seconds:
            return None
        start, self.due, self.enabled = (self.due, not self.io0), None, True
        return start


class ESP32(ModemPort):
    """A board at the far end of a port. `starts` has a (seconds, mode) for each start of the chip; `flash` is its flash."""

    def __init__(self, mode: str = "normal", **circuit):
        self.circuit, self.guard = Circuit(**circuit), threading.Condition()
        self.mode, self.starts, self.flash = mode, [], bytearray(b"\xff" * (4 << 20))
        super().__init__(changed=self._move)
        self._start_loader()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    # The circuit.

    def _move(self, seconds: float, dtr: bool, rts: bool, _):
        with self.guard:
            self._chip_starts(self.circuit.move(seconds, dtr, rts))
            self.guard.notify_all()

    def _watch(self):
        """Starts the chip when no change follows. 5 ms later than it would, since a change before that may still be on its way here."""
        with self.guard:
            while True:
                due = self.circuit.due
                self.guard.wait(None if due is None else max(0, due + 0.005 - time.monotonic()))
                self._chip_starts(self.circuit.pass_time(time.monotonic() - 0.005))

    def _chip_starts(self, start: tuple[float, bool] | None):
        if start is None:
            return
        self.mode = "download" if start[1] else "normal"
        self.starts.append((start[0], self.mode))
        self._start_loader()
        self.write(DOWNLOAD if start[1] else NORMAL)

    # The loader.

    def _start_loader(self):
        self.registers, self.rate, self.frame = dict(REGISTERS), 115200, None
        self.target, self.inflate = 0, None

    def _read(self):
        try:
            while data := os.read(self.master, 4096):
                with self.guard:
                    # At another rate than the chip's it receives nothing that it understands.
                    if self.mode == "download" and self.circuit.is_running(time.monotonic()) and RATES.get(termios.tcgetattr(self.slave)[5]) == self.rate:
                        self._frames(data)
        except (OSError, termios.error):
            pass  # closed

    def _frames(self, data: bytes):
        """SLIP. What is outside of frames is dropped."""
        first, *rest = data.split(b"\xc0")
        if self.frame is not None:
            self.frame += first
        for piece in rest:
            if self.frame and len(self.frame) >= 8:
                self._obey(self.frame.replace(b"\xdb\xdc", b"\xc0").replace(b"\xdb\xdd", b"\xdb"))
            self.frame = piece

    def _obey(self, frame: bytes):
        _, command, size, check = struct.unpack("<BBHI", frame[:8])
        body = frame[8:]
        if len(body) != size:
            return
        value, answer, error = 0, b"", 0
        words = struct.unpack_from(f"<{min(len(body) // 4, 4)}I", body)
        after = None
        if command == SYNC:
            value = 0x20120707
        elif command == READ_REG:
            value = self.registers.get(words[0], 0)
        elif command == WRITE_REG:
            self._write_register(words[0], words[1])
        elif command in (FLASH_BEGIN, DEFL_BEGIN):
            self.target = words[3]
            self.inflate = zlib.decompressobj() if command == DEFL_BEGIN else None
            self.flash[self.target:self.target + words[0]] = b"\xff" * words[0]
        elif command in (FLASH_DATA, DEFL_DATA, MEM_DATA):
            error = self._take(command, body[16:16 + words[0]], check)
        elif command in (FLASH_END, DEFL_END):
            after = "run" if words[0] == 0 else None
        elif command == SPI_FLASH_MD5:
            answer = hashlib.md5(self.flash[words[0]:words[0] + words[1]]).hexdigest().encode()
        elif command == CHANGE_BAUDRATE:
            after = words[0]
        elif command not in (SPI_SET_PARAMS, SPI_ATTACH, MEM_BEGIN, MEM_END):
            error = 5
        body = answer + bytes([bool(error), error, 0, 0])
        reply = struct.pack("<BBHI", 1, command, len(body), value) + body
        reply = b"\xc0" + reply.replace(b"\xdb", b"\xdb\xdd").replace(b"\xc0", b"\xdb\xdc") + b"\xc0"
        self.write(reply * (8 if command == SYNC else 1))
        if after == "run":
            self._chip_starts((time.monotonic(), False))
        elif after:
            self.rate = after

    def _take(self, command: int, data: bytes, check: int) -> int:
        own = 0xEF
        for value in data:
            own ^= value
        if own != check:
            return 7
        if command != MEM_DATA:
            data = self.inflate.decompress(data) if self.inflate else data
            self.flash[self.target:self.target + len(data)] = data
            self.target += len(data)
        return 0

    def _write_register(self, number: int, value: int):
        self.registers[number] = value
        if number == SPI_COMMAND and value & SPI_USER:
            self.registers[SPI_COMMAND] = 0
            if self.registers.get(SPI_USER_2, 0) & 0xFF == READ_ID:
                self.registers[SPI_DATA] = FLASH_ID
