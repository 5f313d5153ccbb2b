"""The far end of a route, which may go away and return: a serial port, a server."""

import errno
import fcntl
import os
import socket
import struct
import subprocess
import termios
import tty

PIECE = 1 << 16


def is_locked(port):
    """Whether the port's lock file still exists. A closed pty's number is free at once, before a gateway that had the
    port open has removed the lock. A gateway that was killed never removes it."""
    return os.path.exists("/var/lock/LCK.." + port.removeprefix("/dev/").replace("/", "_"))


class PtyDevice:
    """A serial port whose far end is the test, under a path that may lead to another port later."""

    def __init__(self, path):
        self.path = path
        self.master = self.slave = self.slave_name = None

    @property
    def url(self):
        return f"tty://{self.path}"

    def appear(self, elsewhere=False):
        """Makes a new port; the path leads to it. With `elsewhere` its name differs from the last port's."""
        old, spare = self.slave_name, []
        self.master, self.slave = os.openpty()
        while len(spare) < 32 and (elsewhere and os.ttyname(self.slave) == old or is_locked(os.ttyname(self.slave))):
            spare += self.master, self.slave
            self.master, self.slave = os.openpty()
        for descriptor in spare:
            os.close(descriptor)
        self.slave_name = os.ttyname(self.slave)
        tty.setraw(self.slave)
        os.set_blocking(self.master, False)
        new = f"{self.path}.new"
        os.symlink(self.slave_name, new)
        os.rename(new, self.path)

    def vanish(self):
        """Unplugs the port: every process that has it open sees a hang-up."""
        os.unlink(self.path)
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = None

    tear = vanish

    @property
    def is_there(self):
        return self.master is not None

    def write(self, data):
        """Writes; returns how many bytes were taken, 0 if it is full."""
        try:
            return os.write(self.master, data)
        except BlockingIOError:
            return 0

    def read(self):
        """The bytes that have arrived; empty if there are none now."""
        try:
            return os.read(self.master, PIECE)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:  # the port is not open
                raise
            return b""

    def unread(self):
        """Number of our bytes that the gateway has not read."""
        word = fcntl.ioctl(self.slave, termios.FIONREAD, b"\0" * 4)
        return struct.unpack("i", word)[0]


class TCPDevice:
    """A server with one connection at a time, which may be away."""

    def __init__(self):
        self.listener = self.connection = None
        # Bound all the time, even while not listening: a connection that got this port could connect to itself.
        self._placeholder = self._bound(0)
        self.port = self._placeholder.getsockname()[1]

    @staticmethod
    def _bound(port):
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    @property
    def url(self):
        return f"tcp://127.0.0.1:{self.port}"

    def appear(self):
        self.listener = self._bound(self.port)
        self.listener.listen(16)
        self.listener.setblocking(False)

    def vanish(self, resets=False):
        self.listener.close()
        self.listener = None
        if self.connection:
            if resets:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.connection = None

    def tear(self):
        self.vanish(resets=True)

    @property
    def is_there(self):
        return self.listener is not None

    def _accept(self):
        if self.listener is None:
            return
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        if self.connection:
            self.connection.close()
        connection.setblocking(False)
        self.connection = connection

    def write(self, data):
        self._accept()
        if not self.connection:
            return 0
        try:
            return self.connection.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return 0

    def read(self):
        self._accept()
        if not self.connection:
            return b""
        try:
            data = self.connection.recv(PIECE)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.connection.close()
            self.connection = None
        return data

    def unread(self):
        """Number of our bytes that the gateway's kernel has not acknowledged."""
        if not self.connection:
            return 0
        return struct.unpack("i", fcntl.ioctl(self.connection, termios.TIOCOUTQ, b"\0" * 4))[0]


class UnixDevice(TCPDevice):
    """The same on a unix socket, whose file is removed and made again."""

    def __init__(self, path):
        self.path = path
        self.listener = self.connection = None

    @property
    def url(self):
        return f"unix://{self.path}"

    def appear(self):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.listener.setblocking(False)

    def vanish(self, resets=False):
        super().vanish()
        os.unlink(self.path)


class ProgramDevice:
    """A local program that opens and closes the port of a `pty` endpoint."""

    def __init__(self, path):
        self.path = path
        self.port = None

    @property
    def url(self):
        return f"pty://{self.path}"

    @property
    def is_there(self):
        return self.port is not None

    def appear(self):
        self.port = os.open(self.path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)

    def vanish(self):
        os.close(self.port)
        self.port = None

    def hand_over(self):
        """Passes the open port on to another process."""
        self._holder = subprocess.Popen(["sleep", "60"], stdin=self.port)
        self.vanish()

    def kill(self):
        self._holder.kill()
        self._holder.wait()

    def write(self, data):
        try:
            return os.write(self.port, data)
        except BlockingIOError:
            return 0

    def read(self):
        try:
            return os.read(self.port, PIECE)
        except BlockingIOError:
            return b""

    def unread(self):
        """The kernel does not report this count; a caller must check what the clients received."""
        return 0
