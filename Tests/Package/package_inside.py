"""The inner half of Tests/Package/run: runs as root in the booted Debian, where /shared/baudway.deb is, and prints `ok: …` or
`FAIL: …` for each check, at the end `done`."""
import os
import pathlib
import pwd
import re
import shutil
import socket
import subprocess
import threading
import time

from booted import check, connect, is_active, pid, prop, run, soon

PACKAGE, SYMBOLS = "/shared/baudway.deb", "/shared/baudway-dbgsym.deb"
CONFIG = pathlib.Path("/etc/baudway/config.yaml")
# What dpkg, systemd and the kernel keep for themselves. /etc/passwd and its kin keep the user.
NOT_OURS = (
    "/proc", "/sys", "/dev", "/run", "/tmp", "/shared", "/var/log", "/var/cache", "/var/lib/dpkg", "/var/tmp", "/root",
    "/var/lib/systemd/timers", "/var/lib/systemd/random-seed", "/var/lib/systemd/catalog", "/etc/.pwd.lock",
    "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-",
)


def files() -> set[str]:
    pruned = [word for path in NOT_OURS for word in ("-path", path, "-o")][:-1]
    return set(run("find", "/", "-xdev", "(", *pruned, ")", "-prune", "-o", "-print").splitlines())


def dpkg(*words) -> str:
    """Without a terminal, so that a question fails."""
    return run("dpkg", *words, stdin=subprocess.DEVNULL, seconds=60)


def version() -> str:
    return run("dpkg-query", "-W", "-f", "${Version}", "baudway")


def repacked(number, change=lambda tree: None) -> str:
    """The same package with another version."""
    tree, package = f"/tmp/{number}", f"/tmp/{number}.deb"
    run("dpkg-deb", "-R", PACKAGE, tree)
    control = pathlib.Path(tree, "DEBIAN/control")
    control.write_text(re.sub(r"^Version: .*", f"Version: {number}", control.read_text(), flags=re.M))
    change(pathlib.Path(tree))
    run("dpkg-deb", "-Znone", "-b", tree, package)
    shutil.rmtree(tree)
    return package


def runs_installed_file() -> bool:
    """The process is the file that is installed now: that of a replaced one ends with `(deleted)`."""
    return is_active() and os.readlink(f"/proc/{pid()}/exe") == "/usr/bin/baudway"


def answer(port=4001, word=b"ping") -> bytes:
    with connect(port) as client:
        client.sendall(word)
        return client.recv(100)


# --- installing ------------------------------------------------------------------------------------------------------


def installed():
    start = time.monotonic()
    dpkg("-i", PACKAGE)
    with connect(4001) as client:
        first = client.recv(100)
    took = time.monotonic() - start
    assert first.startswith(b"$G"), first
    assert is_active() and prop("UnitFileState") == "enabled" and runs_installed_file()
    assert (prop("UnitFileState", "baudway.socket"), prop("ActiveState", "baudway.socket")) == ("disabled", "inactive")
    return f"{took:.1f} s to the first bytes"


def identity():
    user = pwd.getpwnam("baudway")
    assert (user.pw_shell, 0 < user.pw_uid < 1000) == ("/usr/sbin/nologin", True), user
    status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid()}/status").read_text().splitlines())
    assert set(status["Uid"].split()) == {str(user.pw_uid)} and set(status["Gid"].split()) == {"20"}, status
    assert int(status["CapBnd"], 16) == 0 and status["NoNewPrivs"] == "1"
    key = pathlib.Path("/etc/baudway/key.pem")
    key.write_text("secret")
    os.chown(key, user.pw_uid, 0)
    key.chmod(0o400)
    run("nsenter", "-t", str(pid()), "-m", "-S", str(user.pw_uid), "-G", "20", "cat", str(key))
    key.unlink()
    return f"user {user.pw_uid}"


def verified():
    told = run("systemd-analyze", "verify", "--man=no", "baudway.service", "baudway.socket")
    assert not told, told  # it exits with 0 even for an unknown key
    told = run("udevadm", "test", "/sys/class/mem/null", check=False)
    assert "/lib/udev/rules.d/60-baudway.rules" in told, told[-2000:]
    wrong = [line for line in told.splitlines() if re.search(r"60-baudway\.rules:\d+", line)]
    assert not wrong, wrong
    return run("systemd-analyze", "security", "--no-pager", "--threshold=16", "baudway.service").splitlines()[-1].strip("→ ")


def safe():
    """Nothing listens but on loopback, the schema is where the file says, and only root may write it."""
    text = CONFIG.read_text()
    assert "$schema=/usr/share/baudway/config.schema.json" in text and pathlib.Path("/usr/share/baudway/config.schema.json").is_file()
    status = CONFIG.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o644)
    run("baudway", "check", str(CONFIG))
    listening = re.findall(r"^LISTEN\s+\S+\s+\S+\s+(\S+):(\d+) .*baudway", run("ss", "-Hltnp"), re.M)
    assert sorted(port for _, port in listening) == ["4001", "4002", "4003"], listening
    assert {address for address, _ in listening} == {"127.0.0.1"}, listening
    assert run("dpkg-query", "-W", "-f", "${Conffiles}", "baudway").split()[0] == str(CONFIG)


# --- upgrading -------------------------------------------------------------------------------------------------------

ECHO = """version: 1
routes:
  echo: { listen: "tcp://127.0.0.1:4001", endpoint: sim://echo, link: per-client }
"""


def kept():
    """A changed configuration, and the state, outlive upgrade and downgrade."""
    CONFIG.write_text(ECHO)
    run("systemctl", "reload", "baudway")
    pathlib.Path("/var/lib/baudway/note").write_text("kept")
    old = version()
    for package in (repacked(f"{old}+next"), PACKAGE):
        before = pid()
        dpkg("-i", package)
        assert CONFIG.read_text() == ECHO and pathlib.Path("/var/lib/baudway/note").read_text() == "kept"
        assert runs_installed_file() and pid() != before and answer() == b"ping"
    assert version() == old


def new_configuration():
    """Both sides changed it: dpkg puts the package's beside ours."""
    def change(tree):
        file = tree / "etc/baudway/config.yaml"
        file.write_text(file.read_text() + "# new\n")
    dpkg("-i", "--force-confold", repacked(f"{version()}+other", change))
    assert CONFIG.read_text() == ECHO and runs_installed_file()
    beside = CONFIG.with_name("config.yaml.dpkg-dist")
    assert beside.read_text().endswith("# new\n")
    dpkg("-i", "--force-confold", PACKAGE)
    assert CONFIG.read_text() == ECHO


class Load:
    """Clients that connect, send, wait for the answer, and connect again, without a pause."""

    def __init__(self, clients):
        self.counts = {"answered": 0, "refused": 0, "ended": 0}
        self.longest, self.is_over, self.lock = 0.0, False, threading.Lock()
        self.threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _run(self):
        while not self.is_over:
            start = time.monotonic()
            try:
                with socket.create_connection(("127.0.0.1", 4001), 30) as client:
                    client.settimeout(30)
                    client.sendall(b"ping")
                    word = "answered" if client.recv(100) == b"ping" else "ended"
            except ConnectionRefusedError:
                word = "refused"
            except ConnectionError:
                word = "ended"
            with self.lock:
                self.counts[word] += 1
                self.longest = max(self.longest, time.monotonic() - start)

    def answers_more(self, count=20):
        more = self.counts["answered"] + count
        soon(20, lambda: self.counts["answered"] >= more, "clients are served")

    def finish(self):
        self.is_over = True
        for thread in self.threads:
            thread.join(40)
            assert not thread.is_alive(), "a client waits for ever"


def listening_sockets() -> list[str]:
    """Of port 4001, by inode (proc_pid_net(5); 0A is listening)."""
    rows = [row.split() for row in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[1].endswith(f":{4001:04X}") and row[3] == "0A"]


def programs() -> list[str]:
    return [exe for path in pathlib.Path("/proc").glob("[0-9]*/exe") if (exe := target(path)).startswith("/usr/bin/baudway")]


def target(path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # a thread of the kernel, or a process that ended meanwhile
        return ""


def under_load():
    """systemd holds the address: while the service restarts, clients wait in its queue."""
    run("systemctl", "stop", "baudway.socket", "baudway.service")
    run("systemctl", "enable", "--now", "baudway.socket")
    run("systemctl", "start", "baudway.service")
    old = version()
    packages = (repacked(f"{old}+loaded"), PACKAGE)
    sockets, load = listening_sockets(), Load(8)
    assert len(sockets) == 1, sockets
    try:
        for package in packages:
            load.answers_more()
            before = pid()
            dpkg("-i", package)
            assert runs_installed_file() and pid() != before
            load.answers_more()
    finally:
        load.finish()
    assert load.counts["refused"] == 0, load.counts
    assert listening_sockets() == sockets, "the socket was bound anew"
    # Clients of the gateway that stopped may be disconnected; each has one connection at a time.
    assert load.counts["ended"] <= 2 * 8, load.counts
    return f"{load.counts['answered']} answered, {load.counts['ended']} disconnected, 0 refused; the longest took {load.longest:.1f} s"


def left_off():
    """An administrator's switch survives: a service that is off is not started by an upgrade, and the next client of the socket does."""
    run("systemctl", "disable", "baudway.service")
    run("systemctl", "stop", "baudway.service")
    dpkg("-i", repacked(f"{version()}+off"))
    assert (prop("ActiveState"), prop("UnitFileState")) == ("inactive", "disabled")
    assert (prop("ActiveState", "baudway.socket"), prop("UnitFileState", "baudway.socket")) == ("active", "enabled")
    assert answer() == b"ping" and runs_installed_file()
    run("systemctl", "enable", "baudway.service")


# --- removing --------------------------------------------------------------------------------------------------------


def removed():
    """Under load, too: a client that waits at the socket must not start the service again."""
    load = Load(2)
    try:
        load.answers_more()
        dpkg("-r", "baudway")
    finally:
        load.finish()
    assert not listening_sockets() and not programs() and not os.path.exists("/run/baudway")
    for unit in ("baudway.service", "baudway.socket"):
        assert prop("ActiveState", unit) == "inactive", unit
    assert CONFIG.read_text() == ECHO and os.path.exists("/var/lib/private/baudway/note")


def installed_again():
    dpkg("-i", PACKAGE)
    assert CONFIG.read_text() == ECHO and answer() == b"ping"


def purged(before):
    dpkg("-P", "baudway-dbgsym", "baudway")
    after = files()
    assert before == after, {"left": sorted(after - before), "missing": sorted(before - after)}
    assert not run("systemctl", "list-unit-files", "--no-legend", "baudway.service", "baudway.socket", check=False).strip()
    # Debian's practice: a system user stays, so that nobody else gets its number and with it files that it left.
    assert pwd.getpwnam("baudway").pw_shell == "/usr/sbin/nologin"


def main():
    run("ip", "link", "set", "lo", "up")
    before = files()
    check("installs, starts, is enabled; the socket is not")(installed)
    check("runs as the user of the package, to whom files may be given")(identity)
    check("units and udev rules are read without a complaint, exposure at most 1.6")(verified)
    check("the configuration is safe: loopback only, written by root only")(safe)
    check("the package with symbols installs beside it")(lambda: dpkg("-i", SYMBOLS) and None)
    dpkg("-r", "baudway-dbgsym")  # it wants exactly its own version
    check("upgrade and downgrade keep the configuration and the state")(kept)
    check("a configuration that was changed on both sides stays")(new_configuration)
    check("upgrade and downgrade under load refuse no client of the socket")(under_load)
    check("an upgrade does not start what is switched off")(left_off)
    check("removing stops service and socket, and keeps the configuration")(removed)
    check("what was removed is installed again with its configuration")(installed_again)
    check("purging leaves nothing but the user")(lambda: purged(before))
    print("done")


main()
