"""The inner half of unit.sh: runs as root in the booted Debian, and prints `ok: …` or `FAIL: …` for each check, at the
end `done`.

/shared/tree is the part of the project's tree that installing needs; this installs as Deploy/README.md says. The serial
port is a pseudo-terminal behind /dev/ttyUSB0 that sends everything back in capitals.
"""
import os
import pathlib
import pwd
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
import tty

from booted import check, connect, is_active, pid, prop, run, soon

TREE = pathlib.Path("/shared/tree")
CONFIG = pathlib.Path("/etc/baudway/config.yaml")
PORT = "/dev/ttyUSB0"
BASE = """
  board: { listen: "tcp://127.0.0.1:4001", endpoint: "tty:///dev/ttyUSB0", device: { open: always } }
  echo: { listen: "tcp://127.0.0.1:4002", endpoint: sim://echo }
"""
LOCAL = BASE + """
  local: { listen: "unix:///run/baudway/local.sock?group=dialout", endpoint: sim://echo }
  modem: { listen: "tcp://127.0.0.1:4004", endpoint: "pty:///run/baudway/modem?group=dialout", device: { open: always } }
"""

# Addresses that systemd holds for us: an ordinary user may not bind one of them, and one is a path.
HELD = BASE + """
  low: { listen: "tcp://127.0.0.1:23", endpoint: sim://echo }
  path: { listen: "unix:///run/held.sock", endpoint: sim://echo }
"""


# --- the service -----------------------------------------------------------------------------------------------------


def configure(routes=BASE):
    CONFIG.write_text(f"version: 1\nlog: {{ level: debug }}\nroutes:{routes}")


def drop_in(text, kind="service"):
    """Settings of the unit for this test only; they apply from the next start on."""
    folder = pathlib.Path(f"/run/systemd/system/baudway.{kind}.d")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test.conf").write_text(text)
    run("systemctl", "daemon-reload")


def restarted(before, count) -> bool:
    return int(prop("NRestarts")) >= count and is_active() and pid() not in (0, before)


# --- clients and devices ---------------------------------------------------------------------------------------------


def says_back(client, expected=b"PING"):
    client.sendall(b"ping")
    got = b""
    while len(got) < 4:
        piece = client.recv(4 - len(got))
        assert piece, f"ended after {got!r}"
        got += piece
    assert got == expected, got
    return True


def speaks(port=4001, expected=b"PING"):
    with connect(port) as client:
        return says_back(client, expected)


class Device:
    """Plugged in from its creation until `unplug`."""

    def __init__(self):
        self.master, slave = os.openpty()
        tty.setraw(slave)
        os.chown(slave, 0, 20)
        os.fchmod(slave, 0o660)
        self.name = os.ttyname(slave)
        os.close(slave)
        self.is_plugged = True
        self.thread = threading.Thread(target=self._speak, daemon=True)
        self.thread.start()
        if os.path.lexists(PORT):
            os.unlink(PORT)
        os.symlink(self.name, PORT)

    def _speak(self):
        while self.is_plugged:
            try:
                # Never waits in a read: the master cannot be closed during one.
                if select.select([self.master], [], [], 0.02)[0]:
                    os.write(self.master, os.read(self.master, 4096).upper())
            except OSError:  # EIO while the port is not open
                time.sleep(0.02)

    def unplug(self):
        os.unlink(PORT)
        self.is_plugged = False
        self.thread.join()
        os.close(self.master)


# --- the checks ------------------------------------------------------------------------------------------------------


def documented(section) -> str:
    """The first commands of a section of the operators' page, unchanged."""
    page = (TREE / "Deploy/README.md").read_text()
    return re.search(r"```sh\n(.*?)```", page[page.index(section):], re.DOTALL)[1]


def install():
    run("bash", "-euc", 'sudo() { "$@"; }\n' + documented("## As a service"), cwd=TREE)
    soon(10, is_active)
    assert prop("UnitFileState") == "enabled"
    assert (prop("WatchdogUSec"), prop("LimitNOFILE")) == ("30s", "65536")
    assert "$schema=/usr/local/share/baudway/config.schema.json" in CONFIG.read_text()
    assert pathlib.Path("/usr/local/share/baudway/config.schema.json").is_file()


def score():
    told = run("systemd-analyze", "security", "--no-pager", "--threshold=16", "baudway.service")
    return told.splitlines()[-1].strip("→ ")


def verified():
    told = run("systemd-analyze", "verify", "--man=no", "baudway.service", "/etc/systemd/system/baudway.socket")
    assert not told, told  # it exits with 0 even for an unknown key


def bluetooth():
    """Deploy/bluetooth.conf, as the operators' page says: the address family, and two capabilities that also count
    outside."""
    command = re.search(r"`(install -D [^`]*bluetooth.conf)`", (TREE / "Deploy/README.md").read_text())[1]
    run("bash", "-euc", command, cwd=TREE)
    run("systemctl", "daemon-reload")
    try:
        run("systemctl", "restart", "baudway")
        assert "AF_BLUETOOTH" in prop("RestrictAddressFamilies").split(), prop("RestrictAddressFamilies")
        status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid()}/status").read_text().splitlines())
        capabilities = {name: int(status[name], 16) for name in ("CapEff", "CapBnd", "CapAmb")}
        assert set(capabilities.values()) == {1 << 12 | 1 << 10}, capabilities
        assert os.readlink(f"/proc/{pid()}/ns/user") == os.readlink("/proc/1/ns/user")
        run("systemd-analyze", "verify", "--man=no", "baudway.service")
        told = run("systemd-analyze", "security", "--no-pager", "--threshold=22", "baudway.service")
        return told.splitlines()[-1].strip("→ ")
    finally:
        shutil.rmtree("/etc/systemd/system/baudway.service.d")
        run("systemctl", "daemon-reload")


def udev_rules():
    """`udevadm verify` exists since systemd 254; before, `test` reports what it cannot read of any rules file."""
    if int(run("udevadm", "--version")) >= 254:
        run("udevadm", "verify", "/etc/udev/rules.d/60-baudway.rules")
    told = run("udevadm", "test", "/sys/class/mem/null", check=False)
    assert "60-baudway.rules" in told, told[-2000:]
    wrong = [line for line in told.splitlines() if re.search(r"60-baudway\.rules:\d+", line)]
    assert not wrong, wrong
    broken = pathlib.Path("/etc/udev/rules.d/61-broken.rules")
    broken.write_text('SUBSYSTEM=="tty", MDOE="0660"\n')
    told = run("udevadm", "test", "/sys/class/mem/null", check=False)
    broken.unlink()
    assert re.search(r"61-broken\.rules:1", told), "a mistake goes unnoticed"


def identity():
    status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid()}/status").read_text().splitlines())
    assert "0" not in status["Uid"].split(), status["Uid"]
    assert set(status["Gid"].split()) == {"20"}, status["Gid"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, (name, status[name])
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), status
    files = re.search(r"Max open files\s+(\d+)\s+(\d+)", pathlib.Path(f"/proc/{pid()}/limits").read_text())
    # As many as the unit asks for, or as the machine allows, and no soft limit for programs that use select(2).
    assert files[1] == files[2] and int(files[1]) >= min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1]), files[0]
    return f"user {status['Uid'].split()[0]}, group dialout"


def sandbox():
    user = str(os.stat(f"/proc/{pid()}").st_uid)
    inside = ["nsenter", "-t", str(pid()), "-m"]
    # Not even for root in its mount namespace.
    for path in ("/x", "/etc/x", "/usr/x", "/var/lib/x"):
        assert "Read-only file system" in run(*inside, "touch", path, check=False), path
    for path in ("/etc/baudway/x", "/etc/baudway/config.yaml"):
        assert "denied" in run(*inside, "-S", user, "-G", "20", "touch", path, check=False), path
    for path in ("/run/baudway/x", "/var/lib/baudway/x", "/tmp/x", "/run/lock/x"):
        run(*inside, "-S", user, "-G", "20", "sh", "-c", f"touch {path} && rm {path}")
    assert not os.path.exists("/tmp/x")
    assert pathlib.Path("/run/baudway/control.sock").is_socket()


def locked():
    locks = [p for p in pathlib.Path("/run/lock").glob("LCK..*") if p.read_text().split() == [str(pid())]]
    assert locks, os.listdir("/run/lock")
    return locks[0].name


def local_programs():
    """Members of the group can use the gateway's listener and pseudo-terminal; others cannot."""
    configure(LOCAL)
    run("systemctl", "reload", "baudway")
    soon(5, lambda: os.path.islink("/run/baudway/modem") and os.path.exists("/run/baudway/local.sock"))
    for path in ("/run/baudway/modem", "/run/baudway/local.sock"):
        status = os.stat(path)
        assert (status.st_gid, status.st_mode & 0o777) == (20, 0o660), (path, status)
    program = """
import os, socket
client = socket.socket(socket.AF_UNIX)
client.connect("/run/baudway/local.sock")
client.sendall(b"ping")
assert client.recv(4) == b"ping"
os.close(os.open("/run/baudway/modem", os.O_RDWR | os.O_NOCTTY))
"""
    for groups, code in ((["dialout"], 0), ([], 1)):
        done = subprocess.run(
            ["/usr/bin/python3", "-c", program], user="nobody", group="nogroup", extra_groups=groups,
            capture_output=True, text=True, timeout=10)
        assert done.returncode == code and (not code or "PermissionError" in done.stderr), (groups, done)
    configure()
    run("systemctl", "reload", "baudway")


def stays_for_reload():
    before = pid()
    with connect(4001) as client, connect(4002) as other:
        says_back(client)
        says_back(other, b"ping")
        configure(BASE + '  more: { listen: "tcp://127.0.0.1:4003", endpoint: sim://echo }\n')
        run("systemctl", "reload", "baudway")
        soon(5, lambda: speaks(4003, b"ping"))
        says_back(client)
        says_back(other, b"ping")
    assert (pid(), is_active()) == (before, True)
    assert "3 routes" in soon(5, lambda: (t := prop("StatusText")) and "3 routes" in t and t)


def bad_reload():
    before = pid()
    with connect(4002) as client:
        says_back(client, b"ping")
        configure(BASE + "  more: { listne: x }\n")
        told = run("systemctl", "reload", "baudway", check=False)
        configure()
        assert "failed" in told, told
        says_back(client, b"ping")
    assert (pid(), is_active()) == (before, True)
    assert "reload failed" in prop("StatusText"), prop("StatusText")
    run("systemctl", "reload", "baudway")
    soon(3, lambda: "reload failed" not in prop("StatusText"))


def hung():
    drop_in("[Service]\nWatchdogSec=2\nTimeoutAbortSec=2\n")
    run("systemctl", "restart", "baudway")
    before = pid()
    time.sleep(3)  # it is fed: nothing happens for longer than the interval
    assert (pid(), prop("NRestarts")) == (before, "0")
    os.kill(before, signal.SIGSTOP)
    start = time.monotonic()
    soon(15, lambda: restarted(before, 1))
    soon(5, speaks)
    log = run("journalctl", "-u", "baudway", "--no-pager", "-n", "60", check=False)
    assert "Watchdog timeout" in log, log
    return f"after {time.monotonic() - start:.1f} s"


def crashed():
    for count, number in enumerate((signal.SIGSEGV, signal.SIGKILL), start=2):
        before = pid()
        os.kill(before, number)
        soon(20, lambda: restarted(before, count))
        soon(5, speaks)
    drop_in("")


def waits_longer():
    run("systemctl", "stop", "baudway")
    run("systemctl", "start", "baudway")
    assert (prop("TasksMax"), prop("LimitCORE")) == ("4096", "0")
    waits = []
    for count, wait in enumerate((2, 4, 8), start=1):
        before, start = pid(), time.monotonic()
        os.kill(before, signal.SIGKILL)
        soon(wait + 10, lambda: restarted(before, count))
        waits.append(time.monotonic() - start)
        assert wait - 0.2 <= waits[-1] < wait + 5, waits
    # A manual stop and start is not delayed.
    run("systemctl", "stop", "baudway")
    assert not os.path.exists("/run/baudway")
    start = time.monotonic()
    run("systemctl", "start", "baudway")
    assert time.monotonic() - start < 5
    return ", ".join(f"{wait:.1f} s" for wait in waits)


def not_restarted():
    run("systemctl", "stop", "baudway")
    run("systemctl", "reset-failed", "baudway", check=False)
    configure("\n  board: { listen: 'tcp://127.0.0.1:4001', endpoint: 'tyt:///dev/ttyUSB0' }\n")
    assert "failed" in run("systemctl", "start", "baudway", check=False)
    time.sleep(3)  # longer than RestartSec
    assert (prop("ExecMainStatus"), prop("ActiveState"), prop("NRestarts")) == ("78", "failed", "0")
    log = run("journalctl", "-u", "baudway", "--no-pager", "-n", "20")
    assert "did you mean 'tty'" in log, log
    configure()
    run("systemctl", "start", "baudway")


def replugged(device):
    device.unplug()
    soon(5, lambda: "1 device away" in prop("StatusText"))
    assert is_active()
    with connect(4001) as client:
        Device()
        soon(5, lambda: "away" not in prop("StatusText"))
        says_back(client)


def arrived(address):
    """A client in the backlog of the program that holds the address; it need not be accepted."""
    client = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    client.settimeout(20)
    client.connect(address)
    return client


def activated():
    configure(HELD)
    drop_in("[Socket]\nListenStream=127.0.0.1:23\nListenStream=/run/held.sock\nListenStream=127.0.0.1:4444\n", "socket")
    # As Deploy/README.md says, except the last command: the first client must start the service.
    commands = documented("### Addresses that systemd holds").splitlines()
    run("bash", "-euc", "\n".join(['sudo() { "$@"; }', *commands[:-1]]))
    time.sleep(0.5)
    assert (prop("ActiveState"), prop("ActiveState", "baudway.socket")) == ("inactive", "active")
    with arrived(("127.0.0.1", 4001)) as client:
        says_back(client)
    assert is_active()
    for address in (("127.0.0.1", 23), "/run/held.sock"):
        with arrived(address) as client:
            says_back(client, b"ping")
    log = run("journalctl", f"_PID={pid()}", "--no-pager")
    assert 'socket=tcp://127.0.0.1:4444 error="no listener has its address"' in log, log
    assert log.count("inherited socket closed") == 1 and "listener waiting" not in log, log


def held():
    """A client that connects while the service is away waits and is served: at a restart, at a stop, after a reload
    that removed the listener."""
    node = os.stat("/run/held.sock").st_ino
    drop_in("[Service]\nExecStartPre=/bin/sleep 2\n")
    addresses = (("127.0.0.1", 4001), ("127.0.0.1", 23), "/run/held.sock")
    for command in ("restart", "stop"):
        before = pid()
        restart = subprocess.Popen(["systemctl", command, "baudway"], stderr=subprocess.DEVNULL)
        soon(5, lambda: not os.path.exists(f"/proc/{before}"))
        clients = [arrived(address) for address in addresses]
        assert not is_active()
        for client, answer in zip(clients, (b"PING", b"ping", b"ping")):
            says_back(client, answer)
            client.close()
        assert restart.wait(10) == 0 and is_active() and pid() != before
    drop_in("")
    before = pid()
    configure()
    run("systemctl", "reload", "baudway")
    client = arrived("/run/held.sock")
    configure(HELD)
    run("systemctl", "reload", "baudway")
    says_back(client, b"ping")
    client.close()
    assert pid() == before and os.stat("/run/held.sock").st_ino == node


def given_up():
    """A mistake in the file while a client waits: systemd starts the service again and again, and then releases the
    addresses."""
    configure("\n  board: { listen: 'tcp://127.0.0.1:4001', endpoint: 'tyt:///dev/ttyUSB0' }\n")
    run("systemctl", "stop", "baudway.service")
    client = arrived(("127.0.0.1", 4001))
    soon(20, lambda: prop("ActiveState", "baudway.socket") == "failed")
    client.close()
    assert prop("ActiveState") == "failed"
    # Fixed, with one more address.
    configure(HELD + '  more: { listen: "tcp://127.0.0.1:24", endpoint: sim://echo }\n')
    drop_in("[Socket]\nListenStream=127.0.0.1:23\nListenStream=127.0.0.1:24\nListenStream=/run/held.sock\n", "socket")
    for _ in range(2):  # the second time with both running
        before = pid()
        run("bash", "-euc", 'sudo() { "$@"; }\n' + documented("### Addresses that systemd holds"))
        assert is_active() and pid() != before
        for address in (("127.0.0.1", 24), "/run/held.sock"):
            with arrived(address) as client:
                says_back(client, b"ping")


def sockets_unit_stopped():
    """The service continues without the sockets' unit, and binds by itself at its next start."""
    run("systemctl", "stop", "baudway.socket", "baudway.service")
    pathlib.Path("/run/held.sock").unlink()
    drop_in("", "socket")
    configure()
    run("systemctl", "start", "baudway")
    soon(5, speaks)


def asked():
    assert '"healthy":true' in run("baudway", "health", str(CONFIG))
    stranger = subprocess.run(
        ["baudway", "health", str(CONFIG)], user="nobody", group="nogroup", capture_output=True, text=True, timeout=10)
    assert stranger.returncode == 1, stranger


def stopped():
    before = pid()
    with connect(4001) as client:
        says_back(client)
        start = time.monotonic()
        run("systemctl", "stop", "baudway")
        took = time.monotonic() - start
        assert client.recv(1) == b""
    assert took < 5, took
    assert (prop("Result"), prop("ExecMainStatus"), prop("ActiveState")) == ("success", "0", "inactive")
    assert not os.path.exists(f"/proc/{before}") and not os.path.exists("/run/baudway")
    return f"{took:.2f} s"


def journal():
    """It writes to standard error; syslog(3) messages would come from its libraries, and would be of no use."""
    by = {
        way: run("journalctl", "-q", "-t", "baudway", f"_TRANSPORT={way}", "-o", "cat", "--no-pager").splitlines()
        for way in ("stdout", "syslog")
    }
    assert by["stdout"] and not by["syslog"], (len(by["stdout"]), by["syslog"][:5])


def main():
    run("ip", "link", "set", "lo", "up", check=False)
    check("installs as Deploy/README.md says, starts, is enabled")(install)
    check("systemd-analyze verify finds nothing in unit and socket")(verified)
    check("exposure at most 1.6")(score)
    check("with the settings for Bluetooth: its address family and two capabilities, exposure at most 2.2")(bluetooth)
    check("the udev rules are read without a complaint")(udev_rules)
    configure()
    # The device is not there yet: the service is ready without it.
    run("systemctl", "restart", "baudway")
    check("ready, and a status line")(lambda: soon(5, lambda: re.search("2 routes.*1 device away", prop("StatusText"))) and None)
    device = Device()
    check("a serial port that is plugged in is opened, and answers")(lambda: soon(5, speaks) and None)
    check("the service runs as its own user without capabilities")(identity)
    check("the service writes only to its own folders")(sandbox)
    check("the port has a lock file")(locked)
    check("local programs of its group can connect")(local_programs)
    check("only root can query it")(asked)
    check("a reload keeps process and clients")(stays_for_reload)
    check("a reload of a broken file fails and changes nothing")(bad_reload)
    check("a port that is unplugged and plugged in again is reopened")(lambda: replugged(device))
    check("the watchdog restarts a hung process")(hung)
    check("a crashed process is restarted")(crashed)
    check("repeated crashes make the pause before a restart longer")(waits_longer)
    check("an error in the configuration gives exit code 78 and no restart")(not_restarted)
    check("socket activation: the first client starts the service")(activated)
    check("socket activation: clients wait while the service is stopped")(held)
    check("socket activation: the documented commands recover failed sockets")(given_up)
    check("the service binds its own sockets once the socket unit is stopped")(sockets_unit_stopped)
    check("the service stops cleanly")(stopped)
    check("the journal has only the lines of the service")(journal)
    print("done")


main()
