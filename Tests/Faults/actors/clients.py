"""A route's clients: over TCP, through a unix socket, or as a program that opens a terminal."""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import termios

from actors.waits import until


class Client:
    """An ordinary TCP client of a route. `name` is its name in the gateway's log, `key` the key of its ending."""

    def __init__(self, route, sock):
        self.route, self.sock = route, sock
        self.name = "{}:{}".format(*sock.getsockname()[:2])
        self.key = route, self.name
        self.sent = 0
        self.received = 0

    @classmethod
    async def connect(cls, gateway, route, source="127.0.0.1", receive_buffer=None):
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer:  # without it the kernel buffers what a slow reader does not take
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((source, 0))
        host, port = gateway.address(route)
        async with asyncio.timeout(15):
            await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        return cls(route.removesuffix("@2"), sock)

    async def send(self, data, within=60):
        # Not wait_for: in Python 3.11 it loses a cancellation if the call has just succeeded.
        async with asyncio.timeout(within):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)
        self.sent += len(data)

    async def receive(self, within=60, most=1 << 18):
        """The next bytes; empty at the end, None if the connection was reset."""
        try:
            async with asyncio.timeout(within):
                data = await asyncio.get_running_loop().sock_recv(self.sock, most)
        except (ConnectionResetError, BrokenPipeError):
            return None
        self.received += len(data)
        return data

    async def words(self, within=10):
        """All bytes until the end, as text."""
        text = b""
        while data := await self.receive(within):
            text += data
        return text.decode("utf-8", "replace")

    async def all_is_there(self):
        """Waits until the gateway's kernel has all that was sent: a reset would drop what is still here."""

        def unsent():
            return struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, b"\0" * 4))[0]

        await until(lambda: unsent() == 0, 30, f"all of {self.name} being taken")

    def finish(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def fall_silent(self):
        """Like a cut cable: the kernel drops every incoming packet and so no longer answers."""
        refuse_all = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: return 0
        program = ctypes.create_string_buffer(refuse_all)
        self.sock.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(program)))  # SO_ATTACH_FILTER

    def close(self):
        self.sock.close()


class LocalClient(Client):
    """A client of a unix listener. Such clients have no name; the session's number identifies it."""

    def __init__(self, route, sock, number):
        self.route, self.sock, self.key = route, sock, number
        self.name = f"session {number}"
        self.sent = self.received = 0

    @classmethod
    async def connect(cls, gateway, route, path, receive_buffer=None):
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        async with gateway.arriving[route]:
            before = len(gateway.sessions[route])
            async with asyncio.timeout(15):
                await asyncio.get_running_loop().sock_connect(sock, path)
            await until(lambda: len(gateway.sessions[route]) > before, 15, f"a session of {route}")
            return cls(route, sock, gateway.sessions[route][-1])

    def reset(self):
        """Unix sockets have no reset. Closing with unread bytes is the closest; without unread bytes it is a normal
        end."""
        self.sock.close()


class KilledClient(LocalClient):
    """A client whose process is killed: another process holds its socket."""

    def hand_over(self):
        self._holder = subprocess.Popen(["sleep", "60"], stdin=self.sock.fileno())
        self.sock.close()

    def kill(self):
        self._holder.kill()
        self._holder.wait()


class Terminal:
    """A program that opens a pty listener's port."""

    def __init__(self, route, descriptor, number):
        self.route, self.descriptor, self.key = route, descriptor, number
        self.name = f"session {number}"
        self.sent = self.received = 0

    @classmethod
    async def open(cls, gateway, route, path):
        async with gateway.arriving[route]:
            before = len(gateway.sessions[route])
            descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            await until(lambda: len(gateway.sessions[route]) > before, 15, f"a session of {route}")
            return cls(route, descriptor, gateway.sessions[route][-1])

    async def send(self, data, within=60):
        view = memoryview(data)
        async with asyncio.timeout(within):
            while view:
                try:
                    count = os.write(self.descriptor, view)
                except BlockingIOError:
                    count = 0
                except OSError as error:  # hung up
                    raise ConnectionResetError(str(error)) from None
                self.sent += count
                view = view[count:]
                if view:
                    await asyncio.sleep(0.002)

    async def receive(self, within=60, most=1 << 18):
        """The next bytes; empty after a hang-up."""
        async with asyncio.timeout(within):
            while True:
                try:
                    data = os.read(self.descriptor, most)
                except BlockingIOError:
                    await asyncio.sleep(0.002)
                    continue
                except OSError:  # hung up
                    return b""
                self.received += len(data)
                return data

    def unread(self):
        return struct.unpack("i", fcntl.ioctl(self.descriptor, termios.FIONREAD, b"\0" * 4))[0]

    def hand_over(self):
        """Passes the open port on to another process."""
        self._holder = subprocess.Popen(["sleep", "60"], stdin=self.descriptor)
        self.close()

    def kill(self):
        self._holder.kill()
        self._holder.wait()

    def close(self):
        os.close(self.descriptor)

    reset = close
