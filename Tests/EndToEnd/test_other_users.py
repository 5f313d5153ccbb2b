"""Folders that another user may write to: a gateway that runs as root changes only what it has made itself there."""
import os
import pathlib
import signal
import stat
import subprocess

import pytest
from kit import GUARD, Deadline, Gateway, compiled, until

NOBODY = 65534

# Renames a link to the secret over each socket as soon as it appears. Removes it half a second later, after the gateway
# has hit it and before it tries again. Prints how often it did.
ATTACK = """
import os, stat, sys, signal, time
folder, secret, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.chdir(folder)
done, placed = 0, {}
def tell(*_):
    print(done, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, tell)
names = [f"s{i}" for i in range(count)]
while True:
    for name in names:
        try:
            kind = os.lstat(name).st_mode
        except OSError:
            continue
        if stat.S_ISSOCK(kind):
            try:
                os.symlink(secret, "new")
                os.rename("new", name)
                done += 1
                placed[name] = time.monotonic()
            except OSError:
                pass
        elif stat.S_ISLNK(kind) and time.monotonic() > placed[name] + 0.5:
            try:
                os.unlink(name)
            except OSError:
                pass
"""


@pytest.mark.raced
@pytest.mark.root("tests another user's actions against root")
@pytest.mark.parametrize("rights", ["owner=nobody", "mode=0666"])
def test_a_link_renamed_over_a_socket_does_not_change_its_targets_rights(folder, rights):
    theirs, secret = pathlib.Path(folder) / "theirs", pathlib.Path(folder) / "secret"
    os.chmod(folder, 0o755)
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    secret.write_text("root's")
    os.chmod(secret, 0o600)
    count = 40
    # Without a pause there, hardly any round hits the moment between bind and chmod, and a wrong gateway passes.
    slow = ["env", f"LD_PRELOAD={compiled('slow_bind.c', '-shared', '-fPIC')}"]
    routes = {
        f"r{i}": {"listen": f"unix://{theirs}/s{i}?{rights}", "endpoint": "sim://sink"} for i in range(count)}
    attack = subprocess.Popen(
        ["/usr/bin/python3", "-c", ATTACK, str(theirs), str(secret), str(count)], stdout=subprocess.PIPE, text=True,
        user=NOBODY, group=NOBODY, extra_groups=[])
    try:
        met, deadline, rounds = 0, Deadline(25), 0
        while (met < 3 or rounds < 3) and not deadline.passed:
            rounds += 1
            with Gateway({"control": {"socket": "off"}, "routes": routes}, prefix=slow, ready=0, stopping=False) as gateway:
                until(lambda: gateway.events("listener waiting") or gateway.events("listening"), what="any")
                end = Deadline(2.5)  # a listener tries again each second
                until(lambda: end.passed, 5)
                met += sum("the file was replaced by another" in e.get("error", "") for e in gateway.events("listener waiting"))
                kept = secret.stat()
                assert (stat.S_IMODE(kept.st_mode), kept.st_uid, kept.st_gid) == (0o600, 0, 0), f"round {rounds}"
        attack.send_signal(signal.SIGTERM)
        done = int(attack.communicate(timeout=GUARD)[0])
        print(f"{rounds} rounds of {count} sockets, {done} renamed over, {met} between bind and chmod")
        assert done > count and met > 0, "hardly an attack"
    finally:
        if attack.poll() is None:
            attack.kill()
            attack.wait()


@pytest.mark.root("tests another user's actions against root")
def test_another_users_file_in_place_of_a_link_or_socket_is_kept(folder):
    theirs = pathlib.Path(folder)
    os.chmod(folder, 0o755)
    os.chown(folder, NOBODY, NOBODY)
    (theirs / "stale").symlink_to("/dev/pts/4095")
    os.chown(theirs / "stale", NOBODY, NOBODY, follow_symlinks=False)
    config = {"routes": {
        "listener": {"listen": f"pty://{theirs}/stale", "endpoint": "sim://echo"},
        "endpoint": {"listen": "tcp://127.0.0.1:0", "endpoint": f"pty://{theirs}/mine", "device": {"open": "always"}},
    }}
    with Gateway(config, ready=1) as gateway:
        assert "EEXIST" in gateway.event("listener waiting", route="listener")["error"]
        gateway.event("link open", route="endpoint")
        assert os.readlink(theirs / "stale") == "/dev/pts/4095"
        # Renamed over our link while the gateway runs: it is not removed at the end.
        os.symlink(os.readlink(theirs / "mine"), theirs / "new")
        os.chown(theirs / "new", NOBODY, NOBODY, follow_symlinks=False)
        os.rename(theirs / "new", theirs / "mine")
        gateway.stop()
    assert (theirs / "mine").is_symlink() and (theirs / "stale").is_symlink()
    assert sorted(os.listdir(folder)) == ["mine", "stale"]
