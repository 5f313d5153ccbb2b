"""Files that others may write or read: `check` warns, and `serve` as root refuses a configuration that others may
write."""
import os
import signal
import subprocess

import pytest
from certificates import Authority
from kit import GUARD, Gateway, binary, until

pytestmark = pytest.mark.both

LAB = "routes:\n  lab: { listen: 'tcp://127.0.0.1:0', endpoint: 'sim://echo' }\n"
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def gateway():
    made = Gateway({"routes": {}}, stopping=False)
    yield made
    made._folder.cleanup()


def check(gateway, text: str, mode=0o644):
    gateway.path.write_text(text)
    gateway.path.chmod(mode)
    done = gateway.command("check", str(gateway.path))
    return done.returncode, done.stderr.replace(f"{gateway.path}: ", "").replace(f"{gateway.path}:", ""), done.stdout


@pytest.mark.parametrize("mode, who", [(0o664, "its group"), (0o646, "anybody"), (0o666, "anybody")])
def test_a_configuration_that_others_may_write_is_reported(gateway, mode, who):
    code, said, table = check(gateway, LAB, mode)
    assert code == 0 and table, said
    assert said.startswith(f"warning: {who} may write to it (mode 0{mode:o}); 'chmod go-w ") and len(said.splitlines()) == 1, said


def test_a_configuration_that_others_may_read_is_accepted(gateway):
    assert check(gateway, LAB)[:2] == (0, "")


@pytest.mark.parametrize("secret", [
    "users: { ada: { token: token-of-ada-0123 } }\nroutes:\n  lab: { listen: 'ws://127.0.0.1:0/a', endpoint: 'sim://echo' }\n",
    "routes:\n  lab: { listen: 'tcp://127.0.0.1:0', endpoint: 'ws://127.0.0.1:1/?token=abcdef' }\n",
    "routes:\n  lab: { listen: 'tcp://127.0.0.1:0', endpoint: { url: 'ws://127.0.0.1:1/', user: ada, password: abcdef } }\n"])
def test_a_secret_in_a_file_that_others_may_read_is_reported(gateway, secret):
    code, said, _ = check(gateway, secret)
    assert code == 0 and "warning: a secret in a file that anybody may read; 'chmod o-r " in said, said
    assert "abcdef" not in said and "token-of" not in said
    assert check(gateway, secret, 0o640)[:2] == (0, "")
    file = gateway.folder / "secret"
    file.write_text("token-of-ada-0123\n")
    file.chmod(0o640)
    moved = secret.replace("token-of-ada-0123", f"'file:{file}'").replace("abcdef", f"file:{file}")
    assert check(gateway, moved)[:2] == (0, "")
    assert check(gateway, secret.replace("token-of-ada-0123", "${HOME:-x}-token-of-ada-0123").replace("abcdef", "${HOME}"))[1].count(
        "a secret in a file") == 0


@pytest.mark.parametrize("mode, words", [
    (0o600, []), (0o640, []), (0o644, ["anybody may read this secret (mode 0644)"]), (0o620, ["its group may write to it (mode 0620)"]),
    (0o666, ["anybody may write to it", "anybody may read this secret"])])
def test_secret_files_that_others_may_access_are_reported(gateway, mode, words):
    file = gateway.folder / "token"
    file.write_text("token-of-ada-0123\n")
    file.chmod(mode)
    code, said, _ = check(
        gateway, "users: { ada: { token: 'file:token' } }\nroutes:\n  lab: { listen: 'ws://127.0.0.1:0/a', endpoint: 'sim://echo' }\n")
    assert code == 0 and len(said.splitlines()) == len(words), said
    for line, word in zip(said.splitlines(), words):
        assert line.startswith("1:24: users.ada.token: warning: ") and word in line and "chmod" in line, line


def test_keys_and_certificates_that_others_may_access_are_reported(gateway, tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("gw.test", "gw.test")
    text = (f"routes:\n  lab:\n    listen: tls://127.0.0.1:0\n    endpoint: sim://echo\n    tls:\n      certificate: {pair.certificate}\n"
            f"      key: {pair.key}\n      client-ca: {authority.certificate}\n")
    os.chmod(pair.key, 0o600)
    assert check(gateway, text)[:2] == (0, "")
    for path, mode, place, word in [
        (pair.key, 0o644, "7:7: routes.lab.tls.key", "anybody may read this secret"),
        (pair.key, 0o660, "7:7: routes.lab.tls.key", "its group may write to it"),
        (pair.certificate, 0o664, "6:7: routes.lab.tls.certificate", "its group may write to it"),
        (authority.certificate, 0o646, "8:7: routes.lab.tls.client-ca", "anybody may write to it"),
    ]:
        before = os.stat(path).st_mode & 0o777
        os.chmod(path, mode)
        code, said, _ = check(gateway, text)
        os.chmod(path, before)
        assert code == 0 and said.startswith(place) and word in said and len(said.splitlines()) == 1, said


def serve(gateway, *words):
    return subprocess.Popen(
        [binary(), "serve", *words, str(gateway.path)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=gateway.environment)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_serve_as_root_refuses_a_configuration_that_others_may_write(gateway, mode):
    gateway.path.write_text(LAB)
    gateway.path.chmod(mode)
    process = serve(gateway)
    if IS_ROOT:
        assert process.wait(GUARD) == 78
        said = process.stderr.read().decode()
        assert f"(mode 0{mode:o})" in said and "chmod go-w" in said and "--unsafe-permissions" in said, said
        process = serve(gateway, "--unsafe-permissions")
    try:
        line = process.stderr.readline().decode()
        assert ("warning: " in line) == IS_ROOT, line
        until(lambda: gateway.command("health", str(gateway.path)).returncode == 0, what="healthy")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(GUARD) == 0


@pytest.mark.root("tests a gateway that root runs")
def test_a_reload_as_root_refuses_a_configuration_that_others_may_write():
    with Gateway({"routes": {"lab": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}}) as gateway:
        gateway.path.chmod(0o664)
        done = gateway.command("reload", str(gateway.path))
        assert done.returncode == 78 and "may write to it (mode 0664)" in done.stderr, done
        gateway.path.chmod(0o644)
        assert gateway.command("reload", str(gateway.path)).returncode == 0


@pytest.mark.root("gives a file to another user")
def test_an_owner_other_than_root_is_a_warning(gateway):
    gateway.path.write_text(LAB)
    os.chown(gateway.path, 65534, 65534)
    code, said, _ = check(gateway, LAB)
    assert code == 0 and said.startswith("warning: it belongs to user 65534 and not to root; 'chown root "), said
    process = serve(gateway)
    try:
        assert b"warning: it belongs to user 65534" in process.stderr.readline()
        until(lambda: gateway.command("health", str(gateway.path)).returncode == 0, what="healthy")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(GUARD) == 0
