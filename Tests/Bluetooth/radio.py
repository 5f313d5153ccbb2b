"""What the Bluetooth tests share: the devices on the air, and the guest's adapter."""
import pathlib
import subprocess
import threading
import time

import machine
from kit import Deadline, until

HERE = pathlib.Path(__file__).resolve().parent
STATE = HERE.parents[1] / ".build" / "bluetooth"
# BR/EDR and the modules that it needs by name: the machine loads no module by itself.
MODULES = "ctr sha512_generic hmac drbg ecb cmac ecdh_generic bluetooth rfcomm hci_vhci"

PHONE, MOBILE = "00:AA:01:00:00:07", "00:AA:01:00:00:08"
SERIAL, MUTE, NOBODY = "00:AA:01:00:00:01", "00:AA:01:00:00:05", "00:AA:01:00:00:77"
NUS, HM10, LOCKED, SHY = "C0:00:00:00:00:02", "00:AA:01:00:00:03", "C0:00:00:00:00:05", "C0:00:00:00:00:04"
NUS_SERVICE = "6E400001-B5A3-F393-E0A9-E50E24DCCA9E"
PRIVATE = "E1F9F7A0-1111-4222-8333-444455556666"


class Air:
    """The devices, as a separate process, and the guest's adapter."""

    programs = STATE / "bin"

    def __init__(self, guest, life: int = 1600):
        machine.refuse_outdated(machine.programs(HERE / "programs", self.programs), by="Tests/Bluetooth/prepare")
        self.guest, self._relay = guest, None
        self._process = subprocess.Popen(
            [STATE / "venv/bin/python", HERE / "devices.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self._end = threading.Timer(life, self._process.kill)  # in any case
        self._end.start()
        self._port = int(self._process.stdout.readline())

    def order(self, line: str) -> str:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer and not answer.startswith("error"), f"{line}: {answer or 'the devices have ended'}"
        return answer

    # The adapter.

    def adapter(self, order: str = "state") -> str:
        """up, down or state; returns none, off or on."""
        return self.guest.ask(f"{self.programs}/adapter {order}").strip()

    def plug(self, on: bool = True):
        assert self._relay is None
        self._relay = self.guest.call(f"exec {self.programs}/relay 10.0.2.2 {self._port}")
        until(lambda: self.adapter() != "none", 20, "an adapter", every=0.1)
        if on:
            # A new adapter is busy for a moment while it is set up.
            until(lambda: self.guest.run(f"{self.programs}/adapter up").returncode == 0, 20, "an adapter that is on", every=0.1)

    def pull(self):
        if self._relay is None:
            return
        self.order("pull")
        self._relay.wait(20)
        self._relay.close()
        self._relay = None
        until(lambda: self.adapter() == "none", 20, "no adapter", every=0.1)

    def reset(self):
        """Restores the initial state."""
        for name in ("serial", "mute", "nus", "hm10", "shy", "locked", "phone", "mobile"):
            self.order(f"silent {name} 0")
            self.order(f"echo {name} 1")
            self.order(f"pairs {name} 1")
            self.order(f"forget {name}")
        self.order("locks shy 0")
        self.guest.ask("rm -rf /var/lib/baudway")  # where the gateway keeps its side of the bonds
        if self._relay is None:
            self.plug()
        elif self.adapter() != "on":
            self.adapter("up")
        self.end_links()
        self.order("strength -50")

    def end_links(self):
        """Waits for the links of the test before: Linux ends them two seconds after their last socket. A link that is made in
        that moment can be lost: the kernel's wait for it misses its event, and afterwards it belongs to no socket, or the device
        still has it. Then the adapter has to be replugged."""
        deadline = Deadline(6)
        while links := self.guest.ask(f"{self.programs}/adapter links"):
            if deadline.passed:
                print("links without an owner, so the adapter is replugged:", links, sep="\n")
                self.pull()
                return self.plug()
            time.sleep(0.1)

    def close(self):
        self._end.cancel()
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        if self._relay:
            self._relay.close()
