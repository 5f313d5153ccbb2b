"""`include`: routes and users in further files, checked, reloaded and watched as if they were in the main one."""
import json
import re
import subprocess

import pytest
from kit import GUARD, Deadline, Gateway, binary, round_trip, until

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}


def routes(**routes) -> str:
    return json.dumps({"routes": routes})


def shown(gateway) -> list[str]:
    done = gateway.command("status", str(gateway.path), "--json")
    return sorted(route["route"] for route in json.loads(done.stdout)["routes"])


def test_routes_and_users_of_further_files_are_served_and_reloaded():
    gateway = Gateway({"include": "conf.d/*.yaml", "routes": {"main": ECHO}}, ready=2)
    conf = gateway.folder / "conf.d"
    conf.mkdir()
    (conf / "10-pump.yaml").write_text(routes(pump=ECHO))
    (conf / "ignored.txt").write_text("routes: {")
    (conf / ".hidden.yaml").write_text("routes: {")
    with gateway:
        assert shown(gateway) == ["main", "pump"]
        with gateway.connect("pump") as client:
            round_trip(client)
            (conf / "20-gate.yaml").write_text(json.dumps({"users": {"ada": {"token": "0123456789abcdef"}}, "routes": {"gate": ECHO}}))
            done = gateway.command("reload", str(gateway.path))
            assert done.returncode == 0 and done.stdout.splitlines() == ["added    gate", "changed  users", "2 routes untouched"], done
            # A mistake in one of them changes nothing, and is named with its file.
            (conf / "30-wrong.yaml").write_text('routes:\n  pump: { listen: "tcp://127.0.0.1:0", endpoint: "sim://echo" }\n')
            done = gateway.command("reload", str(gateway.path))
            assert done.returncode == 78, done
            assert re.search(r"/conf\.d/30-wrong\.yaml:2:3: routes: 'pump' is given twice, first in \S+/conf\.d/10-pump\.yaml:1$", done.stderr.strip()), done
            assert shown(gateway) == ["gate", "main", "pump"]
            (conf / "30-wrong.yaml").unlink()
            (conf / "20-gate.yaml").unlink()
            assert gateway.command("reload", str(gateway.path)).stdout.startswith("removed  gate\n")
            round_trip(client)


def test_included_files_are_watched_also_new_ones_and_removed_ones():
    gateway = Gateway({"include": ["conf.d/*.yaml", "one.yaml"], "routes": {"main": ECHO}}, stopping=False)
    conf = gateway.folder / "conf.d"
    conf.mkdir()
    (gateway.folder / "one.yaml").write_text(routes(one=ECHO))
    gateway.process = subprocess.Popen(
        [binary(), "serve", "--watch", str(gateway.path)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=gateway.environment)
    gateway.follow(gateway.process.stderr)
    try:
        with gateway.connect("main") as client:
            def changed(change, *expected):
                # The test cannot see when a watch is set up, so the change is repeated.
                deadline = Deadline(GUARD)
                while shown(gateway) != sorted(expected):
                    assert not deadline.passed, gateway.lines
                    change()
                    end = Deadline(1)
                    while not end.passed and shown(gateway) != sorted(expected):
                        pass
                round_trip(client)

            gateway.event("started")
            changed(lambda: (conf / "a.yaml").write_text(routes(a=ECHO)), "main", "one", "a")
            changed(lambda: (conf / "b.yaml").write_text(routes(b=ECHO)), "main", "one", "a", "b")
            changed(lambda: (gateway.folder / "one.yaml").write_text(routes(two=ECHO)), "main", "two", "a", "b")
            (conf / "a.yaml").unlink()
            until(lambda: shown(gateway) == ["b", "main", "two"], what="the removed file's route is gone")
            (conf / "b.yaml").unlink()  # the last one
            until(lambda: shown(gateway) == ["main", "two"], what="the last file's route is gone")
            assert not gateway.events("reload failed")
            # What is included is watched as the reloaded file says.
            (gateway.folder / "other.d").mkdir()
            gateway.configure({"include": "other.d/x*", "routes": {"main": ECHO}})
            until(lambda: shown(gateway) == ["main"], what="the new list of files is in force")
            changed(lambda: (gateway.folder / "other.d/x1").write_text(routes(x=ECHO)), "main", "x")
        gateway.stop()
    finally:
        gateway.__exit__(None, None, None)


@pytest.mark.root("root refuses what others may write")
def test_root_refuses_an_included_file_or_its_folder_that_others_may_write():
    gateway = Gateway({"include": "*.yml", "routes": {"main": ECHO}})
    extra = gateway.folder / "extra.yml"
    extra.write_text(routes(extra=ECHO))
    extra.chmod(0o666)
    done = gateway.command("serve", str(gateway.path))
    assert done.returncode == 78 and re.search(r"extra\.yml: .*because its contents can start programs as root", done.stderr), done
    done = gateway.command("check", str(gateway.path))
    assert done.returncode == 0 and "extra.yml: warning: " in done.stderr, done
    # A user that may write to the folder could add a file.
    extra.chmod(0o644)
    gateway.folder.chmod(0o777)
    done = gateway.command("serve", str(gateway.path))
    assert done.returncode == 78 and f"{gateway.folder}: anybody may write to it" in done.stderr, done
    assert f"{gateway.folder}: warning: " in gateway.command("check", str(gateway.path)).stderr


def test_check_warns_of_a_folder_that_is_not_there():
    gateway = Gateway({"include": "conf.d/*.yaml", "routes": {"main": ECHO}}, stopping=False)
    done = gateway.command("check", str(gateway.path))
    assert done.returncode == 0 and done.stderr.endswith("conf.d: warning: 'include' names this folder, which is not there or can't be looked at\n"), done
    (gateway.folder / "conf.d").mkdir()
    assert "warning" not in gateway.command("check", str(gateway.path)).stderr
