"""Serial ports behind foreign RFC 2217 servers: pyserial's on a loop of its own, ser2net on a pty."""
import contextlib
import pathlib
import socket
import subprocess
import threading

import serial
import serial.rfc2217
from kit import GUARD, ROOT, Pty, free_port, until

# Unpacked by Tests/Telnet/prepare: the installed package would start a service.
SER2NET = ROOT / ".build/telnet/ser2net/usr/sbin/ser2net"


class PyserialServer:
    """pyserial's RFC 2217 server on `loop://`: it echoes, RTS leads to CTS and DTR to DSR. One client at a time."""

    def __init__(self, port: int = 0):
        self.serial = serial.serial_for_url("loop://", timeout=0.01)
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0.1)
        self.port = self._listener.getsockname()[1]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self):
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError), self._listener.accept()[0] as client:
                self._client(client)

    def _client(self, client: socket.socket):
        client.settimeout(0.01)
        lock = threading.Lock()

        class Connection:
            def write(self, data):
                with lock:
                    client.settimeout(GUARD)
                    client.sendall(data)
                    client.settimeout(0.01)

        manager = serial.rfc2217.PortManager(self.serial, Connection())
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                if not (data := client.recv(4096)):
                    return
                self.serial.write(b"".join(manager.filter(data)))
            # All of it: loop:// waits for ever where a write has more than 4096 bytes to keep. A read may end early by its timeout.
            while count := self.serial.in_waiting:
                Connection().write(b"".join(manager.escape(self.serial.read(count))))
            manager.check_modem_lines()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join(GUARD)
        self._listener.close()


class Ser2net:
    """ser2net with one port, the pty's slave."""

    def __init__(self, folder: str, pty: Pty, port: int = 0):
        self.port, self._folder, self._pty = port or free_port(), folder, pty

    def __enter__(self):
        config = pathlib.Path(self._folder) / "ser2net.yaml"
        config.write_text(
            f"%YAML 1.1\n---\nconnection: &one\n  accepter: telnet(rfc2217),tcp,127.0.0.1,{self.port}\n"
            f"  connector: serialdev,{self._pty.path},9600n81,local\n")
        self._process = subprocess.Popen(
            [str(SER2NET), "-n", "-d", "-c", str(config)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        until(self._listens, what="ser2net listens")
        return self

    def _listens(self) -> bool:
        assert self._process.poll() is None, "ser2net ended"
        return any(f"0100007F:{self.port:04X} 00000000:0000 0A" in line for line in open("/proc/net/tcp"))

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(GUARD)
