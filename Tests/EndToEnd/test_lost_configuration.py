"""A configuration that was broken or removed after the start: the gateway continues, and the commands still find it."""
import json
import os
import pathlib

import pytest
from kit import Gateway, round_trip, until

ROUTES = {"echo": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}
BROKEN = "routes: { echo: { listen: tcp://[::1]:1 }\n"


@pytest.fixture(params=["in the runtime folder", "by an abstract address"])
def gateway(request, monkeypatch):
    if request.param == "by an abstract address":
        if os.access("/run/baudway", os.F_OK):
            pytest.skip("there is a runtime folder on this machine")
        kept = {k: v for k, v in os.environ.items() if k != "RUNTIME_DIRECTORY"}
        monkeypatch.setattr(Gateway, "environment", property(lambda self: kept))
    made = Gateway({"routes": ROUTES})
    folder = made.folder / "sockets"
    folder.mkdir()
    made.configure({**json.loads(made.path.read_text()), "control": {"socket": str(folder / "own.sock")}})
    with made:
        yield made


def break_configuration(path: pathlib.Path, how: str):
    if how == "gone":
        path.unlink()
    else:
        path.write_text(BROKEN)


@pytest.mark.parametrize("how", ["broken", "gone"])
def test_the_commands_find_the_gateway(gateway, how):
    good = gateway.path.read_text()
    break_configuration(gateway.path, how)
    config = str(gateway.path)
    health = gateway.command("health", config)
    assert (health.returncode, health.stderr) == (0, ""), health
    status = json.loads(gateway.command("status", "--json", config).stdout)
    assert status["pid"] == gateway.pid and "reload-failed" not in status
    with gateway.connect("echo") as client:
        round_trip(client)
        done = gateway.command("kick", "echo", "--all", "--config", config)
        assert done.returncode == 0 and "ended" in done.stdout, done
    # The gateway refuses the reload, and reports why, then and as long as the fault lasts.
    done = gateway.command("reload", config)
    assert done.returncode == 78 and config in done.stderr, done
    status = json.loads(gateway.command("status", "--json", config).stdout)
    (problem,) = status["reload-failed"]["problems"]
    assert problem in done.stderr and status["reload-failed"]["seconds"] < 60
    table = gateway.command("status", config).stdout
    assert "the last reload failed 0." in table and problem in table, table
    assert json.loads(gateway.command("health", config).stdout)["reload-failed"] is True
    gateway.path.write_text(good)
    assert gateway.command("reload", config).returncode == 0
    assert "reload-failed" not in json.loads(gateway.command("status", "--json", config).stdout)


def test_the_commands_find_the_gateway_by_another_name_of_its_folder(gateway):
    other = gateway.folder / "other"
    other.symlink_to(gateway.folder)
    break_configuration(gateway.path, "gone")
    assert gateway.command("health", str(other / gateway.path.name)).returncode == 0


@pytest.mark.parametrize("how", ["broken", "gone"])
def test_the_commands_find_a_gateway_with_its_socket_at_the_default_path(how):
    with Gateway({"routes": ROUTES}) as gateway:
        break_configuration(gateway.path, how)
        assert json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)["pid"] == gateway.pid


def test_a_broken_configuration_finds_a_single_gateway_and_neither_of_two():
    first = Gateway({"routes": ROUTES})
    first.configure({"control": {"socket": str(first.folder / "own.sock")}, "routes": ROUTES})
    with first:
        broken = first.folder / "broken.yaml"
        break_configuration(broken, "broken")
        status = first.command("status", "--json", str(broken))
        assert json.loads(status.stdout)["pid"] == first.pid, status
        second = Gateway({"routes": ROUTES})
        second._folder.cleanup()
        second.path, second.folder = first.folder / "second.yaml", first.folder  # one runtime folder for both
        second.configure({"control": {"socket": str(first.folder / "second.sock")}, "routes": ROUTES})
        with second:
            assert second.command("health", str(second.path)).returncode == 0
            assert first.command("health", str(broken)).returncode != 0


def test_a_reload_may_move_the_control_socket(gateway):
    config = json.loads(gateway.path.read_text())
    for name in ("other.sock", "own.sock"):
        config["control"]["socket"] = str(gateway.folder / "sockets" / name)
        gateway.path.write_text(json.dumps(config))
        done = gateway.command("reload", str(gateway.path))
        assert done.returncode == 0 and "control.socket" in done.stdout, done
        # The answer still came through the old socket; the new one appears a moment later.
        until(lambda: gateway.command("health", "--control", config["control"]["socket"]).returncode == 0, what=name)


def test_a_stop_leaves_no_socket(gateway):
    assert gateway.command("health", str(gateway.path)).returncode == 0
    gateway.stop()
    left = {p.name for p in gateway.folder.rglob("*.sock")}
    assert not left
    done = gateway.command("health", str(gateway.path))
    assert done.returncode == 1 and "no gateway answers at" in done.stderr


def test_another_gateways_socket_is_not_replaced():
    with Gateway({"routes": ROUTES}) as first:
        second = Gateway({"control": {"socket": str(first.folder / "second.sock")}, "routes": ROUTES})
        second._folder.cleanup()
        second.path, second.folder = first.folder / "second.yaml", first.folder  # one runtime folder for both
        second.configure({"control": {"socket": str(first.folder / "second.sock")}, "routes": ROUTES})
        with second:
            second.path.unlink()
            status = json.loads(second.command("status", "--json", str(second.path)).stdout)
            assert status["pid"] == second.pid
            assert json.loads(first.command("status", "--json", str(first.path)).stdout)["pid"] == first.pid
