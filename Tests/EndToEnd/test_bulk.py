"""64 MiB each way at once between clients and a socat pty pair: nothing lost, doubled or out of order."""
import hashlib
import os
import random
import time
import tty

import pytest
from kit import GUARD, Gateway, Socat, reset, run_all

SIZE = 64 << 20
PIECE = 1 << 16


def marked(data: bytes, mark: int) -> bytes:
    """`data` with the owner's mark in the two top bits of each byte."""
    return data.translate(bytes(b & 0x3F | mark << 6 for b in range(256)))


def others(mark: int) -> bytes:
    """Every byte that does not carry `mark`."""
    return bytes(b for b in range(256) if b >> 6 != mark)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.heavy
@pytest.mark.parametrize("count", [1, 4])
def test_all_bytes_arrive_whole_and_in_order(folder, count, figure):
    near, far = f"{folder}/near", f"{folder}/far"
    source = random.Random(count)
    down = source.randbytes(SIZE)
    each = SIZE // count
    # A single client sends all 256 values; several clients mark theirs.
    up = [source.randbytes(each) if count == 1 else marked(source.randbytes(each), m) for m in range(count)]
    route = {
        "listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{near}",
        "clients": {"slow": "block"}, "device": {"open": "always", "flush": "none"},
    }
    with Socat("-b65536", f"pty,raw,echo=0,link={near}", f"pty,raw,echo=0,link={far}", links=(near, far)), \
            Gateway({"routes": {"port": route}}) as gateway:
        device = os.open(far, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(device)
        gateway.event("link open", route="port")
        clients = [gateway.connect("port") for _ in range(count)]
        gateway.event("session opened", count=count)

        def device_says():
            view = memoryview(down)
            while view:
                view = view[os.write(device, view[:PIECE]):]

        def device_hears():
            hashes, total = [hashlib.sha256() for _ in range(count)], 0
            while total < SIZE:
                piece = os.read(device, PIECE)
                total += len(piece)
                for mark, state in enumerate(hashes):
                    state.update(piece if count == 1 else piece.translate(None, others(mark)))
            return [state.hexdigest() for state in hashes]

        def client_says(index):
            def body():
                clients[index].settimeout(4 * GUARD)
                clients[index].sendall(up[index])
            return body

        def client_hears(index):
            def body():
                state, total, naps = hashlib.sha256(), 0, 0
                clients[index].settimeout(4 * GUARD)
                while total < SIZE:
                    piece = clients[index].recv(PIECE)
                    assert piece, f"client {index} was cut off after {total} bytes"
                    state.update(piece)
                    total += len(piece)
                    # The first client sleeps now and then; under `block` all wait for it.
                    if index == 0 and total >> 22 > naps:
                        naps = total >> 22
                        time.sleep(0.1)
                return state.hexdigest()
            return body

        start = time.monotonic()
        heard, _, *rest = run_all(
            device_hears, device_says, *[client_hears(i) for i in range(count)], *[client_says(i) for i in range(count)],
            seconds=4 * GUARD)
        seconds = time.monotonic() - start
        figure(f"64 MiB each way through {count} client(s) and a socat pty pair", seconds, "s", aim=30)
        assert rest[:count] == [digest(down)] * count
        assert heard == [digest(data) for data in up]
        for client in clients:
            reset(client)
        os.close(device)
        gateway.event("session ended", count=count)
        ended = gateway.events("session ended")
        assert [e["down"] for e in ended] == [SIZE] * count
        assert [e["up"] for e in ended] == [each] * count
        assert [e["dropped"] for e in ended] == [0] * count
