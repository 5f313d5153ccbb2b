"""Boots the machine in FOLDER, whose console is our standard output; lines @@plug and @@pull on it plug a serial adapter in and pull it. What
the adapter gets is sent back in capitals. Exit code 0 if the console said `done` and never FAIL.

    machine.py FOLDER"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

LIFE = 560  # seconds


def echo(path: str):
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(path)
                while data := end.recv(4096):
                    end.sendall(data.upper())
        except OSError:
            pass
        time.sleep(0.2)


class Monitor:
    """QEMU's monitor (QMP)."""

    def __init__(self, path: str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.settimeout(30)
        self.file = connection.makefile("rwb")
        self.file.readline()
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        self.file.flush()
        while not (answer := json.loads(self.file.readline())).keys() & {"return", "error"}:
            pass
        if "error" in answer:
            print("FAIL: monitor:", answer["error"], flush=True)


def main(folder: pathlib.Path) -> int:
    with tempfile.TemporaryDirectory(prefix="bw-") as sockets:
        machine = subprocess.Popen(
            ["timeout", "-k", "5", str(LIFE), "qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024",
             "-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none", "-no-reboot",
             "-kernel", folder / "vmlinuz", "-initrd", folder / "initrd", "-append", "root=/dev/vda ro console=ttyS0 quiet systemd.show_status=0",
             "-drive", f"file={folder}/disk,if=virtio,format=raw,snapshot=on", "-device", "qemu-xhci,id=xhci",
             "-virtfs", f"local,path={folder}/shared,mount_tag=shared,security_model=none",
             "-qmp", f"unix:{sockets}/monitor,server=on,wait=off", "-chardev", f"socket,id=far,path={sockets}/far,server=on,wait=off"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        threading.Thread(target=echo, args=(f"{sockets}/far",), daemon=True).start()
        end = time.monotonic() + 30
        while not os.path.exists(f"{sockets}/monitor") and machine.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        monitor = Monitor(f"{sockets}/monitor")
        said = []
        try:
            for raw in machine.stdout:
                line = raw.decode(errors="replace").rstrip("\r\n")
                if line == "@@plug":
                    monitor.ask("device_add", driver="usb-serial", id="adapter", chardev="far", serial="LAB0001")
                elif line == "@@pull":
                    monitor.ask("device_del", id="adapter")
                else:
                    said.append(line)
                    print(line, flush=True)
        finally:
            machine.terminate()
            machine.wait(20)
    return 0 if "done" in said and not any(line.startswith("FAIL") for line in said) else 1


sys.exit(main(pathlib.Path(sys.argv[1])))
