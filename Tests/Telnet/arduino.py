"""The boot loader of an Arduino with an ATmega328P at the far end of a pty: STK500 version 1, as avrdude's `arduino` speaks it."""
import contextlib
import os
import threading

from kit import Pty

IN_SYNC, OK, NO_SYNC, END = 0x14, 0x10, 0x15, 0x20
SIGNATURE = b"\x1e\x95\x0f"
# Bytes that follow a command, without its END. PROG_PAGE (0x64) has its length in them.
LENGTHS = {0x30: 0, 0x31: 0, 0x41: 1, 0x42: 20, 0x45: 5, 0x50: 0, 0x51: 0, 0x55: 2, 0x56: 4, 0x64: 3, 0x74: 3, 0x75: 0}


class Arduino(threading.Thread):
    def __init__(self, pty: Pty):
        super().__init__(daemon=True)
        self.pty, self.flash, self.address, self.left = pty, bytearray(b"\xff" * 32768), 0, False

    def run(self):
        held = bytearray()
        with contextlib.suppress(OSError):  # the pty was closed
            while data := os.read(self.pty.master, 4096):
                held += data
                while (length := self.length(held)) <= len(held):
                    self.obey(bytes(held[:length]))
                    del held[:length]

    @staticmethod
    def length(held: bytearray) -> int:
        """Of the first command, or more than there are bytes."""
        if not held or (count := LENGTHS.get(held[0])) is None:
            return min(len(held), 1) or 1
        if held[0] == 0x64 and len(held) >= 3:
            count += held[1] << 8 | held[2]
        return count + 2

    def obey(self, frame: bytes):
        command, body = frame[0], frame[1:-1]
        if command not in LENGTHS or frame[-1] != END:
            return self.pty.write(bytes([NO_SYNC]))
        answer = b""
        if command == 0x31:
            answer = b"AVR ISP"
        elif command == 0x41:
            answer = {0x80: b"\x02", 0x81: b"\x01", 0x82: b"\x12"}.get(body[0], b"\x03")
        elif command == 0x55:
            self.address = 2 * int.from_bytes(body, "little")
        elif command == 0x56:
            answer = SIGNATURE[body[2]:body[2] + 1] if body[0] == 0x30 else b"\0"
        elif command == 0x64:
            self.flash[self.address:self.address + len(body) - 3] = body[3:]
        elif command == 0x74:
            answer = bytes(self.flash[self.address:self.address + (body[0] << 8 | body[1])])
        elif command == 0x75:
            answer = SIGNATURE
        elif command == 0x51:
            self.left = True
        self.pty.write(bytes([IN_SYNC]) + answer + bytes([OK]))
