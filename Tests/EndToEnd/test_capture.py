"""Recordings of a route's bytes: what is in the files equals what went over the route, whatever happens to gateway and disk."""
import contextlib
import datetime
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import stat
import subprocess
import time

import pcapng
import pytest
from kit import GUARD, SEED, Gateway, Pty, binary, connect, noise, receive, reset, run_all, until
from test_control import status


def route(device: str, **capture) -> dict:
    return {"listen": "tcp://127.0.0.1:0", "endpoint": device, **({"capture": capture} if capture else {})}


def address(gateway: Gateway) -> tuple[str, int]:
    host, port = gateway.event("listening")["listen"].removeprefix("tcp://").rsplit(":", 1)
    return host, int(port)


def lines(text: bytes, mark: str) -> bytes:
    """The bytes of one direction in a recording as text."""
    pieces = []
    for line in text.decode("ascii").splitlines():
        stamp, kind, rest = line.split(" ", 2)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", stamp), line
        if kind == mark:
            pieces.append(rest)
    return re.sub(
        rb"\\(x[0-9a-f]{2}|.)", lambda m: {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}.get(m[1]) or bytes.fromhex(m[1][1:].decode()),
        "".join(pieces).encode())


def dumped(text: bytes, mark: str) -> bytes:
    """The same of a recording as hex."""
    found = [line.split(" ", 2) for line in text.decode("ascii").splitlines()]
    return b"".join(bytes.fromhex(rest[:47]) for _, kind, rest in found if kind == mark)


def ours(content: bytes, form: str) -> tuple[bytes, bytes]:
    """What a recording has: to the device, and from it."""
    if form == "pcapng":
        packets = pcapng.read(content)
        return pcapng.data(packets, pcapng.TO_DEVICE), pcapng.data(packets, pcapng.FROM_DEVICE)
    one = {"text": lines, "hex": dumped}[form]
    return one(content, ">"), one(content, "<")


def talk(gateway: Gateway, device: Pty, count: int = 20_000) -> tuple[bytes, bytes]:
    """Bytes in both directions at once, all of which arrive. Returns them."""
    up, down = noise(count), noise(2 * count)[count:]
    with connect(address(gateway)) as client:
        gateway.event("link open")
        _, got, heard = run_all(lambda: (client.sendall(up), device.write(down)), lambda: device.read(count), lambda: receive(client, count))
        assert got == up and heard == down
    return up, down


@pytest.mark.parametrize("form", ["pcapng", "text", "hex"])
def test_a_recording_has_the_bytes_of_both_directions(tmp_path, form):
    with Pty() as device, Gateway({"routes": {"board": route(device.url, file="{route}-{date}.x", format=form)}},
                                  prefix=["env", "TZ=XXX-5:45", f"STATE_DIRECTORY={tmp_path}:/nowhere"]) as gateway:
        up, down = talk(gateway, device)
        gateway.stop()
        [file] = tmp_path.iterdir()
        # In UTC, wherever the machine is.
        began = datetime.datetime.strptime(file.name, "board-%Y%m%dT%H%M%SZ.x")
        assert abs((datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - began).total_seconds()) < 3600
        if form != "pcapng":
            first = datetime.datetime.fromisoformat(file.read_text().split(" ")[0])
            assert abs((datetime.datetime.now(datetime.UTC) - first).total_seconds()) < 3600
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert ours(file.read_bytes(), form) == (up, down)
        assert gateway.event("recording", route="board")["path"] == str(file)


def test_raw_has_the_bytes_alone(tmp_path):
    with Gateway({"routes": {"sink": route("sim://sink", file=f"{tmp_path}/x", format="raw")}}) as gateway:
        data = noise(300_000)
        with connect(address(gateway)) as client:
            client.sendall(data)
            until(lambda: status(gateway)["routes"][0]["totals"]["up"] == len(data), what="all taken")
        gateway.stop()
    assert (tmp_path / "x").read_bytes() == data


def test_bytes_are_in_the_file_soon_and_survive_sigkill(tmp_path):
    file = tmp_path / "new" / "x.pcapng"
    with Gateway({"routes": {"echo": route("sim://echo", file=str(file))}}, stopping=False) as gateway:
        data = noise(100_000)
        with connect(address(gateway)) as client:
            client.sendall(data)
            assert receive(client, len(data)) == data
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
            until(lambda: ours(file.read_bytes(), "pcapng") == (data, data), what="written while the client stays")
            client.sendall(data)
            gateway.signal(signal.SIGKILL)
        gateway.wait()
        packets = pcapng.read(file.read_bytes(), may_be_cut=True)
        assert pcapng.data(packets, pcapng.TO_DEVICE).startswith(data)
        assert (2 * data).startswith(pcapng.data(packets, pcapng.TO_DEVICE))


@pytest.mark.parametrize("keep", ["all", 3])
def test_files_of_a_size_have_each_byte_once_and_in_order(tmp_path, keep):
    size = 64 << 10
    with Gateway({"routes": {"echo": route("sim://sink", file="x.pcapng", rotate=size, keep=keep)}},
                 prefix=["env", f"STATE_DIRECTORY={tmp_path}"]) as gateway:
        data = noise(2 << 20)
        with connect(address(gateway)) as client:
            for place in range(0, len(data), 1 << 17):  # slow enough for any disk
                client.sendall(data[place:place + (1 << 17)])
                until(lambda: status(gateway)["routes"][0]["capture"]["written"] > place, what="written")
            reset(client)  # a client that only closes might still wait for an answer
        gateway.event("session ended")
        gateway.stop()
        assert status_of_end(gateway) == 0
    files = in_order(tmp_path)
    got = b"".join(pcapng.data(pcapng.read(path.read_bytes()), pcapng.TO_DEVICE) for path in files)
    assert all(path.stat().st_size < size + (40 << 10) for path in files)
    if keep == "all":
        assert got == data and len(files) > 20
    else:
        assert len(files) == keep + 1 and data.endswith(got)


def in_order(folder) -> list[pathlib.Path]:
    """The files of a recording without `{date}`, oldest first."""
    return sorted(folder.iterdir(), key=lambda path: int((path.stem.split("~") + ["1"])[1]))


def status_of_end(gateway: Gateway) -> int:
    return len(gateway.events("recording drops"))


class Follower:
    """Reads a recording while it is made, and checks that each direction has the bytes of `stream` from its beginning, once
    and in order. Removes each file when it has read it as a whole, except the last."""

    PIECE = 192 << 10  # two of them in both directions fit into the recording's buffer of 1 MiB

    def __init__(self, folder, most: int):
        self.folder, self.most = folder, most  # the largest file
        self.counts = {pcapng.TO_DEVICE: 0, pcapng.FROM_DEVICE: 0}
        self.files, self.last = 0, None
        self._noise = noise(self.PIECE)
        self._path, self._place, self._reader = None, 0, pcapng.Reader()

    def piece(self, number: int) -> bytes:
        """Part of the stream: each has its number."""
        return number.to_bytes(8, "big") + self._noise[8:]

    def _stream(self, place: int, count: int) -> bytes:
        first, last = place // self.PIECE, (place + count) // self.PIECE
        start = place - first * self.PIECE
        return b"".join(map(self.piece, range(first, last + 1)))[start:start + count]

    def read(self) -> int:
        """Reads what is there. Returns how many bytes of the stream are in the recording, the lesser of both directions."""
        # The list is made first: a file in front of another one is complete, also after SIGKILL.
        for path, following in itertools.pairwise([*in_order(self.folder), None]):
            if path != self._path:
                self._path, self._place, self._reader = path, 0, pcapng.Reader()
                self.files += 1
            self._read_on()
            if following:
                self._reader.end()
                assert self._place < self.most
                path.unlink()
        return min(self.counts.values())

    def _read_on(self):
        with open(self._path, "rb") as file:
            file.seek(self._place)
            content = file.read()
        self._place += len(content)
        for packet in self._reader.feed(content):
            self.last = packet
            assert packet.event != pcapng.LOST, packet.comment
            if packet.event in self.counts:
                place = self.counts[packet.event]
                assert packet.data == self._stream(place, len(packet.data)), f"other bytes at {place}"
                self.counts[packet.event] += len(packet.data)

    def end(self, may_be_cut: bool = False):
        self.read()
        self._reader.end(may_be_cut)

    def send(self, client, number: int):
        """A piece there and back, once there is room for it in the recording's buffer."""
        until(lambda: self.read() >= (number - 1) * self.PIECE, what="recorded", every=0.002)
        data = self.piece(number)
        _, got = run_all(lambda: client.sendall(data), lambda: receive(client, len(data)))
        assert got == data


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_gibibyte_is_recorded_over_many_files_each_byte_once_and_in_order(tmp_path, figure):
    """512 MiB in each direction."""
    rotate = 32 << 20
    with Gateway({"routes": {"echo": route("sim://echo", file="x.pcapng", rotate=rotate, keep="all")}},
                 prefix=["env", f"STATE_DIRECTORY={tmp_path}"]) as gateway:
        follower = Follower(tmp_path, rotate + (40 << 10))
        pieces = (512 << 20) // Follower.PIECE + 1
        with connect(address(gateway)) as client:
            for number in range(pieces):
                follower.send(client, number)
            start = time.monotonic()
            until(lambda: follower.read() == pieces * Follower.PIECE, what="all recorded")
            figure("the last byte is in the recording after", time.monotonic() - start, "s", aim=1)
            reset(client)
        gateway.event("session ended")
        gateway.stop()
        follower.end()
        assert set(follower.counts.values()) == {pieces * Follower.PIECE} and follower.last.event == pcapng.COMPLETE
        assert follower.files > (1 << 30) // rotate and status_of_end(gateway) == 0


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("round", range(6))
def test_after_sigkill_a_recording_over_many_files_lacks_only_its_end(tmp_path, round):
    """It is killed at any moment while bytes flow: only the last file may be cut, and only in its last block."""
    rotate, chance = 256 << 10, random.Random(f"{SEED} {round}")
    with Gateway({"routes": {"echo": route("sim://echo", file="x.pcapng", rotate=rotate, keep="all")}},
                 prefix=["env", f"STATE_DIRECTORY={tmp_path}"], stopping=False) as gateway:
        follower = Follower(tmp_path, rotate + (40 << 10))
        last = chance.randint(20, 40)
        with connect(address(gateway)) as client:
            for number in range(last):
                follower.send(client, number)
            until(lambda: follower.read() == last * Follower.PIECE, what="all recorded")
            # Pieces beyond what the sockets keep, so that it is killed in the middle; the echo is not read.
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.send(follower.piece(last) + follower.piece(last + 1))
            time.sleep(chance.choice((0, 0.001, 0.01, 0.05, 0.2)))
            gateway.signal(signal.SIGKILL)
            gateway.wait()
        # What was in files before is there, and what is there is what was sent.
        follower.end(may_be_cut=True)
        assert last * Follower.PIECE <= follower.counts[pcapng.FROM_DEVICE] <= follower.counts[pcapng.TO_DEVICE] <= (last + 2) * Follower.PIECE


def test_a_reload_begins_changes_and_ends_a_recording_and_clients_stay(tmp_path):
    def config(**capture) -> dict:
        return {"routes": {"echo": route("sim://echo", **capture)}}

    with Gateway(config()) as gateway:
        with connect(address(gateway)) as client:
            said = []

            def say(word: bytes, **capture):
                gateway.configure(config(**capture))
                done = gateway.command("reload")
                assert done.returncode == 0, done.stderr
                client.sendall(word)
                assert receive(client, len(word)) == word
                said.append(word)

            say(b"one ")
            assert "capture" not in status(gateway)["routes"][0]
            say(b"two ", file=f"{tmp_path}/a", format="raw")
            say(b"three ", file=f"{tmp_path}/b.pcapng")
            file = status(gateway)["routes"][0]["capture"]
            assert file["file"] == f"{tmp_path}/b.pcapng" and "error" not in file
            say(b"four ")
            until(lambda: (tmp_path / "a").read_bytes() == b"two two ", what="the first")
            until(lambda: ours((tmp_path / "b.pcapng").read_bytes(), "pcapng") == (b"three ", b"three "), what="the second")
            packets = pcapng.read((tmp_path / "b.pcapng").read_bytes())
            assert packets[-1].event == pcapng.COMPLETE and packets[0].comment == "link open"
        assert len(gateway.events("session opened")) == 1


def test_a_file_that_cannot_be_made_stops_the_recording_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("")
    with Gateway({"routes": {"echo": route("sim://echo", file=f"{tmp_path}/file/x.pcapng")}}) as gateway:
        stopped = gateway.event("recording stopped", route="echo")
        assert stopped["level"] == "warning" and "ENOTDIR" in stopped["error"] and stopped["path"] == f"{tmp_path}/file/x.pcapng"
        assert "reload" in stopped["advice"]
        with connect(address(gateway)) as client:
            client.sendall(b"hello")
            assert receive(client, 5) == b"hello"
            capture = status(gateway)["routes"][0]["capture"]
            assert "ENOTDIR" in capture["error"] and capture["dropped"] == 10
            table = gateway.command("status")
            assert "the recording has stopped" in table.stdout and "ENOTDIR" in table.stdout
            (tmp_path / "file").unlink()
            assert gateway.command("reload").returncode == 0  # nothing has changed, and it begins again
            gateway.event("recording", route="echo")
            client.sendall(b"again")
            assert receive(client, 5) == b"again"
            until(lambda: ours((tmp_path / "file" / "x.pcapng").read_bytes(), "pcapng") == (b"again", b"again"), what="recorded")
        assert len(gateway.events("recording stopped")) == 1


@pytest.mark.root("mounts a small file system")
@pytest.mark.parametrize("form", ["pcapng", "text"])
def test_a_full_disk_stops_the_recording_and_what_is_there_stays_whole(tmp_path, form):
    """And each byte is in the file or counted as dropped, with the reason."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    try:
        with Gateway({"routes": {"echo": route("sim://echo", file=f"{tmp_path}/x.pcapng", format=form)}}) as gateway:
            data = noise(1000)
            with connect(address(gateway)) as client:
                until(lambda: talked(client, data) and gateway.events("recording stopped"), what="full")
                assert "ENOSPC" in gateway.event("recording stopped")["error"]
                for _ in range(100):
                    talked(client, data)
                up, down = ours((tmp_path / "x.pcapng").read_bytes(), form)
                assert up and up == (data * (len(up) // 1000 + 1))[:len(up)] and len(down) <= len(up)
                figures = status(gateway)["routes"][0]
                dropped = figures["capture"]["dropped"]
                assert len(up) + len(down) + dropped == figures["totals"]["up"] + figures["totals"]["down"]
                (tmp_path / "x.pcapng").unlink()
                assert gateway.command("reload").returncode == 0
                gateway.event("recording", count=2)
                talked(client, data)
                until(lambda: ours((tmp_path / "x.pcapng").read_bytes(), form) == (data, data), what="recorded again")
                drops = gateway.event("recording drops")
                assert drops["dropped"] == dropped and "the recording had stopped" in drops["error"] and "ENOSPC" in drops["error"]
                assert f"missing here: {dropped} bytes".encode() in (tmp_path / "x.pcapng").read_bytes()
            assert len(gateway.events("recording stopped")) == 1
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.root("mounts a small file system")
def test_tries_on_a_full_disk_leave_no_empty_files_that_push_out_a_recording(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    try:
        filler = tmp_path / "filler"
        filler.write_bytes(bytes(16 << 10))
        with Gateway({"routes": {"echo": route("sim://echo", file=f"{tmp_path}/x.pcapng", keep=1)}}) as gateway:
            data = noise(1000)
            with connect(address(gateway)) as client:
                until(lambda: talked(client, data) and gateway.events("recording stopped"), what="full")
                with filler.open("ab", buffering=0) as rest, contextlib.suppress(OSError):  # what a cut left free
                    while True:
                        rest.write(bytes(4096))
                for tries in (2, 3):
                    assert gateway.command("reload").returncode == 0
                    assert "ENOSPC" in gateway.event("recording stopped", count=tries)["error"]
                assert sorted(path.name for path in tmp_path.iterdir()) == ["filler", "x.pcapng"]
                first = (tmp_path / "x.pcapng").read_bytes()
                assert data in ours(first, "pcapng")[0]
                filler.unlink()
                (tmp_path / "x~9.pcapng").touch()  # of a crash
                assert gateway.command("reload").returncode == 0
                gateway.event("recording", count=2)
                assert sorted(path.name for path in tmp_path.iterdir()) == ["x.pcapng", "x~10.pcapng"]
                assert (tmp_path / "x.pcapng").read_bytes() == first
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def talked(client, data: bytes) -> bool:
    client.sendall(data)
    return receive(client, len(data)) == data


def test_metrics_tell_of_recordings(tmp_path):
    from test_metrics import metrics, serving, value
    (tmp_path / "file").write_text("")
    with serving({
        "good": route("sim://echo", file=f"{tmp_path}/x.pcapng"), "bad": route("sim://echo", file=f"{tmp_path}/file/x"), "off": route("sim://echo"),
    }) as gateway:
        gateway.event("recording stopped", route="bad")
        gateway.event("recording", route="good")
        now = metrics(gateway)
        assert value(now, "baudway_capture_up", route="good") == 1 and value(now, "baudway_capture_up", route="bad") == 0
        assert value(now, "baudway_capture_up", route="off") is None
        until(lambda: value(metrics(gateway), "baudway_capture_written_bytes_total", route="good") == (tmp_path / "x.pcapng").stat().st_size,
              what="the bytes of the file")  # events are written a moment later
        assert value(now, "baudway_capture_dropped_bytes_total", route="bad") == 0


@pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")
def test_tshark_shows_times_directions_and_events(tmp_path):
    file = tmp_path / "x.pcapng"
    with Gateway({"routes": {"echo": route("sim://echo", file=str(file))}}) as gateway:
        with connect(address(gateway)) as client:
            assert talked(client, b"hello")
        gateway.event("session ended")
        gateway.stop()
    words = ["tshark", "-r", str(file), "-T", "json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env={**os.environ, "HOME": str(tmp_path)})
    packets = [packet["_source"]["layers"] for packet in json.loads(done.stdout)]
    assert not done.stderr.count("cut short") and all("rtacser" in packet for packet in packets), done
    events = [packet["rtacser"]["rtacser.eventtype"] for packet in packets]
    assert [int(event, 0) for event in events].count(1) == 1 and int(events[-1], 0) == 6
    assert any("link open" in json.dumps(packet) for packet in packets)


# --- baudway capture -------------------------------------------------------------------------------------------------


class Live:
    """`baudway capture` of the first route, until the block ends. What it writes stays in its pipe, or goes to `stdout`."""

    def __init__(self, gateway: Gateway, *words: str, stdout=subprocess.PIPE, count: int = 1):
        self.route = words[0]
        self.process = subprocess.Popen(
            [binary(), "capture", *words, "-c", str(gateway.path)], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
            env=gateway.environment)
        gateway.event("admin capture", count=count)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def wait(self) -> tuple[int, bytes, str]:
        """How it ends, by itself."""
        out, error = self.process.communicate(timeout=GUARD)
        return self.process.returncode, out, error.decode()


@pytest.mark.parametrize("form", ["pcapng", "text", "hex"])
def test_a_live_recording_has_the_bytes_of_both_directions_and_ends_with_the_gateway(form):
    with Pty() as device, Gateway({"routes": {"board": route(device.url)}}) as gateway:
        with Live(gateway, "board", "--format", form) as live:
            up, down = talk(gateway, device)
            assert gateway.event("admin capture")["detail"] == form
            (code, out, error), _ = run_all(live.wait, gateway.stop)
            assert (code, error) == (0, "baudway: the recording of board has ended: the route was removed, or the gateway stops\n")
            assert ours(out, form) == (up, down)
            assert b"the recording ends here" in out and b"link open" in out


def test_a_live_recording_is_there_while_it_is_made_beside_one_in_a_file(tmp_path):
    file = tmp_path / "x.raw"
    with Gateway({"routes": {"sink": route("sim://sink", file=str(file), format="raw")}}) as gateway:
        with Live(gateway, "sink", "--format", "raw") as live, connect(address(gateway)) as client:
            for data in (b"one", b"two"):
                client.sendall(data)
                assert os.read(live.process.stdout.fileno(), 100) == data
            until(lambda: file.exists() and file.read_bytes() == b"onetwo", what="the file")
            gateway.configure({"routes": {"sink": route("sim://sink")}})
            assert gateway.command("reload", str(gateway.path)).returncode == 0
            client.sendall(b"three")
            assert os.read(live.process.stdout.fileno(), 100) == b"three" and file.read_bytes() == b"onetwo"


def test_a_live_recording_that_nobody_reads_delays_nothing_and_says_what_is_missing():
    size = 16 << 20
    with Gateway({"routes": {"sink": route("sim://sink")}}) as gateway:
        with Live(gateway, "sink") as live, connect(address(gateway)) as client:
            data = noise(size)
            client.sendall(data)
            until(lambda: status(gateway)["routes"][0]["totals"]["up"] == size, what="all taken")
            (code, out, error), _ = run_all(live.wait, gateway.stop)
        packets = pcapng.read(out)
        got = pcapng.data(packets, pcapng.TO_DEVICE)
        assert 0 < len(got) < size and data.startswith(got[:4096])
        assert any(packet.event == pcapng.LOST and "read too slowly" in packet.comment for packet in packets)
        missing = sum(int(n) for n in re.findall(r"baudway: (\d+) bytes and \d+ events are missing: the output is read too slowly", error))
        assert code == 0 and len(got) + missing == size, error


def test_a_live_recording_ends_when_its_pipe_is_closed_also_on_a_quiet_line():
    """More than run at a time, so that the gateway has forgotten each."""
    with Gateway({"routes": {"echo": route("sim://echo")}}) as gateway, connect(address(gateway)) as client:
        for number in range(12):
            with Live(gateway, "echo", count=number + 1) as live:
                live.process.stdout.close()
                assert live.process.wait(GUARD) == 0 and live.process.stderr.read() == b""
        client.sendall(b"x")
        assert receive(client, 1) == b"x"


def test_a_live_recording_needs_a_route_with_a_shared_link():
    with Gateway({"routes": {"own": {**route("sim://echo"), "link": "per-client"}}}) as gateway:
        for name, reason in (("none", "there is no route 'none'"), ("own", "a link of its own")):
            done = gateway.command("capture", name, "-c", str(gateway.path))
            assert (done.returncode, done.stdout) == (64, "") and reason in done.stderr, done


@pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")
def test_tshark_reads_a_live_recording_from_a_pipe(tmp_path):
    with Pty() as device, Gateway({"routes": {"board": route(device.url)}}) as gateway:
        with Live(gateway, "board") as live:
            with subprocess.Popen(
                    ["tshark", "-i", "-", "-l", "-T", "fields", "-e", "rtacser.eventtype", "-e", "frame.len"], stdin=live.process.stdout,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "HOME": str(tmp_path)}) as reader:
                live.process.stdout.close()
                with connect(address(gateway)) as client:
                    gateway.event("link open")
                    client.sendall(b"help")
                    assert device.read(4) == b"help"
                    # 12 bytes of header, and the data.
                    assert any(line.split() == ["0x01", "16"] for line in reader.stdout)
                reader.terminate()
            assert live.process.wait(GUARD) == 0, "it ends with tshark"
