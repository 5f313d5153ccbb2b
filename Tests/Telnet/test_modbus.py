"""Modbus masters of others on a `pty` listener. They ask for even parity, Modbus' own setting, which a pty can't keep."""
import contextlib
import os
import subprocess
import threading

import pytest
from kit import Gateway, Pty
from servers import PYTHON

# Each reads register 7 of unit 1 again and again, with the port opened and closed in between, at the rates in its arguments.
PROGRAMS = {
    "pymodbus": """
import sys
from pymodbus.client import ModbusSerialClient
for rate in sys.argv[2:]:
    client = ModbusSerialClient(port=sys.argv[1], baudrate=int(rate), parity="E", timeout=20, strict=False)
    assert client.connect(), rate
    print(client.read_holding_registers(7, 1, 1).registers[0])
    client.close()
""",
    "minimalmodbus": """
import sys, minimalmodbus, serial
for rate in sys.argv[2:]:
    with serial.Serial(sys.argv[1], int(rate), parity="E", timeout=20) as port:
        print(minimalmodbus.Instrument(port, 1).read_register(7))
""",
}


def checksum(frame: bytes) -> bytes:
    value = 0xFFFF
    for byte in frame:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xA001 if value & 1 else 0)
    return value.to_bytes(2, "little")


class Slave:
    """Unit 1 at the far end of the device: each register has its number times 100."""

    def __init__(self, device: Pty):
        self.device = device
        self.thread = threading.Thread(target=self.answer, daemon=True)
        self.thread.start()

    def answer(self):
        with contextlib.suppress(OSError, AssertionError):
            while True:
                frame = self.device.read(8, 60)
                assert frame[:2] == b"\1\3" and checksum(frame[:6]) == frame[6:]
                reply = b"\1\3\2" + (100 * int.from_bytes(frame[2:4], "big")).to_bytes(2, "big")
                self.device.write(reply + checksum(reply))


@pytest.mark.parametrize("program", PROGRAMS)
def test_modbus_masters_with_parity(program, folder):
    link = os.path.join(folder, "bus")
    rates = ["9600", "9600", "19200", "19200", "115200", "115200", "50", "9600"]
    with Pty() as device:
        Slave(device)
        with Gateway({"routes": {"bus": {"listen": f"pty://{link}", "endpoint": f"{device.url}?baud=9600"}}}):
            done = subprocess.run([PYTHON, "-c", PROGRAMS[program], link, *rates], capture_output=True, text=True, timeout=110)
    assert done.stdout.split() == ["700"] * len(rates), done.stderr
