"""What commands do without a file: `serve` and `check` look for one, the others for the gateway that runs here."""
import os
import re
import subprocess

import pytest
from kit import GUARD, Gateway, binary

ECHO = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
CONFIG = 'version: 1\nroutes: { %s: { listen: "unix://%s/%s.sock", endpoint: "sim://echo" } }\n'


def run(*words, folder, cwd="/", seconds=GUARD, **more):
    return subprocess.run(
        [binary(), *words], env={**os.environ, "RUNTIME_DIRECTORY": str(folder)}, cwd=cwd, capture_output=True, text=True,
        timeout=seconds, **more)


def test_the_only_gateway_is_found_whatever_file_lies_here(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG % ("other", tmp_path, "other"))
    with Gateway({"routes": {"echo": {**ECHO, "listen": f"unix://{tmp_path}/echo.sock"}}}) as gateway:
        for words in (["health"], ["status"], ["reload"], ["kick", "echo", "--all"]):
            done = run(*words, folder=gateway.folder, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, ""), done
        assert "echo has no clients" in done.stdout
        done = run("reset", "echo", folder=gateway.folder)
        assert done.returncode == 1 and "echo was not reset" in done.stderr
        assert not gateway.events("session opened"), "a listener in the runtime folder was taken for a control socket"


# A machine without /run/baudway: with it, every gateway of root has the same address, whatever its path is.
WITHOUT_RUN = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]


@pytest.mark.skipif(subprocess.run([*WITHOUT_RUN, "true"], capture_output=True).returncode != 0, reason="no mount namespaces here")
@pytest.mark.parametrize("given", ["config.yaml", "one/config.yaml"])
def test_a_gateway_is_found_by_its_path_after_the_link_leads_elsewhere(tmp_path, given):
    """As after Kubernetes has swapped a ConfigMap. A gateway with the name of what the link led to is not found: so the given
    path alone finds it."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(CONFIG % (name, tmp_path, name))
        (tmp_path / name / "config.yaml").chmod(0o644)
    (tmp_path / "..data").symlink_to("one")
    path = tmp_path / "config.yaml"
    path.symlink_to("..data/config.yaml")
    environment = {name: value for name, value in os.environ.items() if name != "RUNTIME_DIRECTORY"}
    ask = lambda *words: subprocess.run(
        [*WITHOUT_RUN, binary(), *words, str(path)], env=environment, cwd="/", capture_output=True, text=True, timeout=GUARD)
    gateway = subprocess.Popen(
        [*WITHOUT_RUN, binary(), "serve", str(tmp_path / given)], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        next(line for line in gateway.stderr if "listening" in line)
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(tmp_path / "..data")
        (tmp_path / "one" / "config.yaml").unlink()
        answers = [ask(*words) for words in (["health"], ["status"], ["reload"])]
        if given == "config.yaml":
            assert [answer.returncode for answer in answers] == [0, 0, 0], answers
            assert "two" in ask("status").stdout
        else:
            assert all("no gateway answers" in answer.stderr for answer in answers), answers
    finally:
        gateway.terminate()
        gateway.communicate(timeout=GUARD)


class Neighbour(Gateway):
    """A gateway with the runtime folder of another one."""

    def __init__(self, config, other: Gateway):
        self.other = other
        super().__init__(config)

    @property
    def environment(self) -> dict:
        return self.other.environment


def test_several_gateways_are_listed():
    with Gateway({"routes": {"one": ECHO}}) as one:
        with Neighbour({"control": {"socket": f"{one.folder}/two.sock"}, "routes": {"two": ECHO}}, one) as two:
            for words in (["status"], ["health"], ["reload"], ["kick", "one", "--all"], ["reset", "one"]):
                done = run(*words, folder=one.folder)
                assert done.returncode == 64 and not done.stdout, done
                found = dict(re.findall(r"^  --control (\S+)  \(pid (\d+): \S*baudway serve \S+\)$", done.stderr, re.M))
                assert set(found.values()) == {str(one.pid), str(two.pid)}, done.stderr
            for address, pid in found.items():
                done = run("status", "--control", address, folder=one.folder)
                assert f"pid {pid}," in done.stdout, done
            assert run("health", "-c", str(two.path), folder=one.folder).returncode == 0


def test_without_a_gateway_the_message_says_how_to_name_one(tmp_path):
    for words, code in (["status"], 69), (["reload"], 69), (["health"], 1):
        done = run(*words, folder=tmp_path)
        assert done.returncode == code and "no gateway was found on this machine; --config FILE or --control" in done.stderr, done


@pytest.mark.root("asks as another user")
def test_a_gateway_of_others_is_named_with_the_group_that_may_ask_it():
    with Gateway({"routes": {"echo": ECHO}}) as gateway:
        os.chmod(gateway.folder, 0o755)
        os.chown(gateway.folder / "control.sock", 0, 20)
        done = run("status", folder=gateway.folder, user=65534, group=65534, extra_groups=[])
        assert done.returncode == 77 and "run this as its user, as a member of group 'dialout' or as root" in done.stderr, done


IN_A_NETWORK_OF_ITS_OWN = """
set -eu
cd "$1"
"$2" serve >/dev/null 2>log &
trap 'kill $!; wait $!' EXIT
for _ in $(seq 100); do ! "$2" health 2>/dev/null || break; sleep 0.1; done
cd /
"$2" status
"$2" kick echo --all
"""


def test_a_gateway_with_an_abstract_socket_is_found(tmp_path):
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    (tmp_path / "config.yaml").write_text("control: { socket: auto }\n" + CONFIG % ("echo", tmp_path, "echo"))
    environment = {k: v for k, v in os.environ.items() if k != "RUNTIME_DIRECTORY"}
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", IN_A_NETWORK_OF_ITS_OWN, "sh", str(tmp_path), binary()], env=environment,
        capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 0 and ": healthy, 1 route" in done.stdout and "echo has no clients" in done.stdout, done


# --- the configuration of `serve` and `check` --------------------------------------------------------------------------


def test_the_file_here_is_read_and_can_be_named_in_two_ways(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG % ("here", tmp_path, "x"))
    (tmp_path / "named.yaml").write_text(CONFIG % ("named", tmp_path, "x"))
    for words, route in ([], "here"), (["named.yaml"], "named"), (["-c", "named.yaml"], "named"), (["--config=named.yaml"], "named"):
        done = run("check", *words, folder=tmp_path, cwd=tmp_path)
        assert done.returncode == 0 and re.search(rf"^ +{route}:", done.stdout, re.M), done
    done = run("check", "named.yaml", "-c", "config.yaml", folder=tmp_path, cwd=tmp_path)
    assert done.returncode == 64 and "the configuration is named twice" in done.stderr, done
    # A broken one is not passed over.
    (tmp_path / "config.yaml").write_text("routes: {")
    assert run("check", folder=tmp_path, cwd=tmp_path).returncode == 78


IN_A_SYSTEM_OF_ITS_OWN = """
set -eu
mount -t tmpfs none /etc
"$2" check 2>/etc/error || [ $? -eq 78 ]
cat /etc/error
mkdir /etc/baudway
cp "$1/config.yaml" /etc/baudway/
"$2" check
"""


def test_the_service_s_file_is_read_where_there_is_none(tmp_path):
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    (tmp_path / "config.yaml").write_text(CONFIG % ("service", tmp_path, "x"))
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", IN_A_SYSTEM_OF_ITS_OWN, "sh", str(tmp_path), binary()], cwd="/", capture_output=True, text=True,
        timeout=GUARD)
    assert done.returncode == 0, done
    assert "neither config.yaml in this folder nor /etc/baudway/config.yaml exists; use --config FILE" in done.stdout
    assert re.search(r"^ +service:", done.stdout, re.M), done
