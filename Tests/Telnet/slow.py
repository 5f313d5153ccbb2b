"""A slow network: a TCP proxy that delays each piece, in each direction, by a time of its own. Order is kept."""
import contextlib
import queue
import random
import socket
import threading
import time

import servers  # noqa: F401 - for the path of kit


class SlowNetwork:
    def __init__(self, to: tuple[str, int], delay: float = 0.08, jitter: float = 0.03, seed: int = 1):
        self.to, self.delay, self.jitter, self.random = to, delay, jitter, random.Random(seed)
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        return self.listener.getsockname()

    @property
    def port(self) -> int:
        return self.address[1]

    @property
    def url(self) -> str:
        return f"rfc2217://127.0.0.1:{self.port}"

    def _accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.to)
                for pair in ((client, server), (server, client)):
                    pieces = queue.Queue()
                    pair[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._read, args=(pair[0], pieces), daemon=True).start()
                    threading.Thread(target=self._write, args=(pair[1], pieces), daemon=True).start()

    def _read(self, source: socket.socket, pieces: queue.Queue):
        due = 0.0
        piece = b"?"
        while piece:
            piece = b""
            with contextlib.suppress(OSError):
                piece = source.recv(1 << 16)
            due = max(due, time.monotonic() + self.delay + self.random.uniform(-self.jitter, self.jitter))
            pieces.put((due, piece))

    def _write(self, sink: socket.socket, pieces: queue.Queue):
        with contextlib.suppress(OSError):
            while True:
                due, piece = pieces.get()
                time.sleep(max(0, due - time.monotonic()))
                if not piece:
                    return sink.shutdown(socket.SHUT_WR)
                sink.sendall(piece)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
