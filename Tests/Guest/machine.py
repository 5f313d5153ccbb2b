#!/usr/bin/env python3
"""The emulated machine: QEMU without KVM, Debian's kernel, the host's files as its root, real drivers on emulated
ports.

    machine.py start [--life SECONDS]        boots; prints the folder of its sockets, which the other commands take
    machine.py -m FOLDER run 'COMMAND'       a shell command in it: output, exit status and signals are the command's
    machine.py -m FOLDER monitor 'info usb'  a line for QEMU's monitor
    machine.py -m FOLDER stop

Use the commands by hand; the tests use the class. The folder has console.log, qemu.log and unix sockets; it is a
temporary folder, because socket paths must stay below 107 bytes. `uart` is the far end of /dev/ttyS1. `usb` and `usb2`
are the far ends of USB adapters, which are plugged in while a client is connected there.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
STATE = HERE.parents[1] / ".build" / "guest"
AGENT_PORT = 7
# Drops the machine's cache of the host's files; otherwise it keeps seeing the old content of changed files.
FORGET = "echo 2 >/proc/sys/vm/drop_caches\n"
# FTDI adapters, by the name of their far end, with their USB serial numbers.
ADAPTERS = {"usb": "BW000001", "usb2": "BW000002"}


def refuse_outdated(made: list[tuple[pathlib.Path, pathlib.Path]], by: str):
    """Exits with one line if a product is missing or older than its source: results would not match the source."""
    for product, source in made:
        if not product.exists():
            sys.exit(f"{product} is missing: run {by}")
        if product.stat().st_mtime < source.stat().st_mtime:
            sys.exit(f"{product} is older than its source: run {by}")


def programs(sources: pathlib.Path, folder: pathlib.Path) -> list[tuple[pathlib.Path, pathlib.Path]]:
    """The programs made from the C files in `sources`, each with its source."""
    return [(folder / source.stem, source) for source in sorted(sources.glob("*.c"))]


class Machine:
    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        self.process = None
        self._forwarded = {}

    # Start and stop.

    @classmethod
    def boot(cls, life: int = 1600, devices=()) -> "Machine":
        """Starts a machine and waits until it accepts commands. It ends after `life` seconds in any case. `devices`:
        additional words for QEMU's command line."""
        inside = [(STATE / "initramfs.cpio", HERE / "machine" / source) for source in ("agent.c", "init")]
        refuse_outdated(inside + programs(HERE / "programs", STATE / "bin"), by="Tests/Guest/image")
        machine = cls(tempfile.mkdtemp(prefix="bwm-"))
        machine.process = subprocess.Popen(
            ["timeout", "-k", "5", str(life), *machine.command_line(), *devices], stdin=subprocess.DEVNULL,
            stdout=(machine.folder / "qemu.log").open("wb"), stderr=subprocess.STDOUT, start_new_session=True)
        (machine.folder / "pid").write_text(str(machine.process.pid))
        try:
            machine.await_agent(90)
        except BaseException:
            print((machine.folder / "qemu.log").read_text(), machine.console()[-3000:], file=sys.stderr)
            machine.stop()
            raise
        return machine

    def command_line(self) -> list[str]:
        kernel = STATE / "kernel"
        version = (kernel / "version").read_text().split()[1]
        append = (
            "console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check random.trust_cpu=on "
            f"net.ifnames=0 guest_modules={kernel}/tree/lib/modules/{version}")

        def far_end(name):
            return ["-chardev", f"socket,id={name},path={self.folder / name},server=on,wait=off"]

        # Plugged in while a client is connected at the far end. (QEMU's device_del would work too, but about once in
        # fifty times it crashes QEMU while bytes flow.)
        adapters = []
        for port, (name, serial) in enumerate(ADAPTERS.items(), 1):
            adapters += far_end(name)
            adapters += ["-device", f"usb-serial,id={name},chardev={name},bus=xhci.0,port={port},serial={serial}"]
        return [
            "qemu-system-x86_64", "-M", "pc", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "768",
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", f"{kernel}/vmlinux", "-initrd", f"{STATE}/initramfs.cpio", "-append", append,
            "-chardev", f"file,id=console,path={self.folder}/console.log",
            "-device", "isa-serial,chardev=console,index=0",
            *far_end("uart"), "-device", "isa-serial,chardev=uart,index=1",
            "-device", "qemu-xhci,id=xhci", *adapters,
            "-qmp", f"unix:{self.folder}/monitor,server=on,wait=off",
            "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
            "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:0-:{AGENT_PORT}",
            "-device", "virtio-net-pci,netdev=net,romfile=",
        ]

    def await_agent(self, seconds: float):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise OSError("QEMU has ended")
            # QEMU accepts connections long before the machine does; those end without an answer.
            with contextlib.suppress(OSError):
                if self.run("true", seconds=5).returncode == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError(f"the machine did not come up within {seconds} s")

    def stop(self):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / "pid").read_text()), signal.SIGTERM)  # timeout(1) passes it on
        if self.process:
            self.process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def console(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "console.log").read_text(errors="replace")
        return ""

    # QEMU.

    def qmp(self, execute: str, **arguments):
        """Sends QEMU one command of its machine protocol (QMP); returns the answer."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(20)
            monitor.connect(str(self.folder / "monitor"))
            with monitor.makefile("rw") as lines:
                lines.readline()  # a greeting
                for order in ({"execute": "qmp_capabilities"}, {"execute": execute, "arguments": arguments}):
                    lines.write(json.dumps(order) + "\n")
                    lines.flush()
                    while "event" in (answer := json.loads(lines.readline())):
                        pass
        if "error" in answer:
            raise OSError(f"{execute} {arguments}: {answer['error']['desc']}")
        return answer["return"]

    def monitor(self, line: str) -> str:
        return self.qmp("human-monitor-command", **{"command-line": line})

    def forwarded_address(self, port: int) -> tuple[str, int]:
        """The host's address that is forwarded to a TCP port of the machine. Connecting always succeeds; wait for an
        answer."""
        if port not in self._forwarded:
            if port != AGENT_PORT:
                self.monitor(f"hostfwd_add net tcp:127.0.0.1:0-:{port}")
            for line in self.monitor("info usernet").splitlines():
                words = line.split()
                if words and words[0] == "TCP[HOST_FORWARD]" and words[5] == str(port):
                    self._forwarded[port] = (words[2], int(words[3]))
        return self._forwarded[port]

    # Commands.

    def call(self, command: str, fresh: bool = False) -> "Call":
        """Starts a shell command. `fresh`: files of the host may have changed since the last one."""
        if fresh:
            command = FORGET + command
        return Call(socket.create_connection(self.forwarded_address(AGENT_PORT), timeout=20), command)

    def run(self, command: str, seconds: float = 30, fresh: bool = False) -> subprocess.CompletedProcess:
        with self.call(command, fresh) as call:
            status = call.wait(seconds)
            return subprocess.CompletedProcess(command, status, bytes(call.output), bytes(call.errors))

    def ask(self, command: str, seconds: float = 30) -> str:
        """The output of a command that must not fail."""
        done = self.run(command, seconds)
        assert done.returncode == 0, f"{command}: {done.returncode}, {done.stdout!r}, {done.stderr!r}"
        return done.stdout.decode()


class Call:
    """A command that runs in the machine. `output` and `errors` grow; `copies` are files that receive them as they
    arrive."""

    def __init__(self, connection: socket.socket, command: str, copies=(None, None)):
        self.output, self.errors, self.status = bytearray(), bytearray(), None
        self._copies, self._news, self._over = copies, threading.Condition(), False
        connection.settimeout(None)
        self._connection = connection
        body = command.encode()
        connection.sendall(b"%d\n" % len(body) + body)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        with contextlib.suppress(OSError, ValueError), self._connection.makefile("rb") as stream:
            while head := stream.readline():
                kind, number = head.split()
                if kind == b"X":
                    self.status = int(number)
                    break
                self._take(kind, stream.read(int(number)))
        with self._news:
            self._over = True
            self._news.notify_all()

    def _take(self, kind: bytes, data: bytes):
        with self._news:
            (self.output if kind == b"O" else self.errors).extend(data)
            self._news.notify_all()
        if copy := self._copies[kind == b"E"]:
            copy.write(data)
            copy.flush()

    def until(self, condition, seconds: float = 10):
        """Waits until `condition` of the output (as text) is true, and returns its result."""
        answer = None

        def holds():
            nonlocal answer
            answer = condition(self.output.decode(errors="replace"))
            return answer or self._over

        with self._news:
            self._news.wait_for(holds, seconds)
        assert answer, f"not within {seconds} s; it said {bytes(self.output[-1000:])!r}, {bytes(self.errors[-1000:])!r}"
        return answer

    def wait(self, seconds: float | None = None) -> int:
        """Waits for the command's exit status."""
        with self._news:
            if not self._news.wait_for(lambda: self._over, seconds):
                raise TimeoutError(f"still running after {seconds} s; it said {bytes(self.output[-1000:])!r}")
        if self.status is None:
            raise ConnectionError("the machine has hung up")
        return self.status

    def signal(self, number: int):
        with contextlib.suppress(OSError):
            self._connection.send(bytes([number]))

    def close(self):
        """Kills the command if it is still running."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# --- for use by hand, and as the prefix of a command that runs in the machine
#   -----------------------------------------

# The environment variables of this process that commands in the machine get.
PASSED = ("RUNTIME_DIRECTORY",)


def run_here(machine: Machine, words: list[str], fresh: bool) -> int:
    command = words[0] if len(words) == 1 else "exec " + shlex.join(words)
    settings = "".join(f"export {name}={shlex.quote(os.environ[name])}\n" for name in PASSED if name in os.environ)
    connection = socket.create_connection(machine.forwarded_address(AGENT_PORT), timeout=20)
    with Call(connection, (FORGET if fresh else "") + settings + command, copies=(sys.stdout.buffer, sys.stderr.buffer)) as call:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: call.signal(number))
        return call.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--machine", metavar="FOLDER")
    parser.add_argument("--life", type=int, default=3600, metavar="SECONDS")
    parser.add_argument("--warm", action="store_true", help="run: no file of the host has changed; starts faster")
    parser.add_argument("what", choices=("start", "run", "monitor", "stop"))
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.what == "start":
        print(Machine.boot(options.life).folder)
        return 0
    if not options.machine:
        parser.error("-m FOLDER, as printed by start")
    machine = Machine(options.machine)
    if options.what == "run":
        return run_here(machine, options.words, fresh=not options.warm)
    if options.what == "monitor":
        print(machine.monitor(" ".join(options.words)))
    else:
        machine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
