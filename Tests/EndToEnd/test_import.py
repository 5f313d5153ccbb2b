"""`import`: every example of ser2net's own files becomes a route that `check` accepts, or is named as unsupported; and a
gateway serves the result."""
import gzip
import pathlib
import re
import socket
import subprocess

import pytest
import yaml
from certificates import Authority
from kit import GUARD, Gateway, binary, free_port, reset

# Schemes that the build under test has not got yet: `check` may refuse them, and nothing else. To require them, empty it.
LATER = ("rfc2217",)

# Unpacked by Tests/Telnet/prepare: the installed package would start a service.
UNPACKED = pathlib.Path(__file__).resolve().parents[2] / ".build/telnet/ser2net"
DEBIAN = UNPACKED / "etc/ser2net.yaml"
EXAMPLES = UNPACKED / "usr/share/doc/ser2net/examples/ser2net.yaml"
MANUAL = UNPACKED / "usr/share/man/man5/ser2net.yaml.5.gz"


def run(*words) -> subprocess.CompletedProcess:
    return subprocess.run(
        [binary(), *map(str, words)], capture_output=True, text=True, timeout=GUARD, stdin=subprocess.DEVNULL)


def installed(path: pathlib.Path, read=pathlib.Path.read_text) -> str:
    if not path.exists():
        pytest.skip(f"{path} is missing: ser2net or its documentation is not installed")
    return read(path)


def manual() -> str:
    """The manual's text without the commands of its typesetting."""
    text = installed(MANUAL, lambda path: gzip.open(path, "rt").read())
    return text.replace("\\-", "-").replace("\\e", "\\")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates")).issue("gw.test", "gw.test")


def accepted(text: str, folder: pathlib.Path) -> list[str]:
    """The names of the routes that `check` accepts. All may be refused for what the build has not got yet."""
    (folder / "made.yaml").write_text(text)
    done = run("check", folder / "made.yaml")
    routes = yaml.safe_load(text)["routes"]
    if done.returncode == 0:
        assert list(yaml.safe_load(done.stdout)["routes"]) == list(routes)
    else:
        assert done.returncode == 78
        for line in done.stderr.splitlines():
            missing = [f"scheme '{scheme}' is not in" for scheme in LATER]
            lost = ["has an effect only for tls and wss listeners"] if LATER else []
            assert any(words in line for words in missing + lost), line
    return list(routes)


def convert(text: str, folder: pathlib.Path, pair=None, name="ser2net.yaml"):
    """The names of the routes that are made, and what is said about everything else."""
    (folder / name).write_text(text)
    done = run("import", folder / name)
    if done.returncode == 78:
        assert done.stdout == "", done
        return [], done.stderr
    assert done.returncode == 0, done.stderr
    made = done.stdout
    if pair:
        made = made.replace("/etc/ser2net/ser2net.crt", str(pair.certificate)).replace("/etc/ser2net/ser2net.key", str(pair.key))
        made = re.sub(r"client-ca: .*", f"client-ca: {pair.certificate}", made)
    return accepted(made, folder), done.stderr


def test_debians_own_configuration(tmp_path):
    installed(DEBIAN)
    done = run("import", DEBIAN)
    assert done.returncode == 0
    # Four connections to two ports, at two rates each.
    assert accepted(done.stdout, tmp_path) == ["con0096", "con1096"]
    assert "con0192: route 'con0096' has this device, with baud=9600" in done.stderr
    assert done.stderr.endswith(f"{DEBIAN}: 2 routes from 4 connections; 2 things without an equivalent\n")
    assert done.stderr.count("\n") == 3


def uncommented(text: str) -> str:
    """The examples, which are comments; their own comments have two marks."""
    lines = text[text.index("define: &confver"):].splitlines()
    return "\n".join(line.removeprefix("# ") for line in lines if not line.startswith("# #")).split("# VERSION 2")[0]


def test_each_example_of_the_commented_file_imports_or_is_named(tmp_path, pair):
    text = uncommented(installed(EXAMPLES))
    names = re.findall(r"^connection: &(\S+)", text, re.M)
    assert len(names) >= 11
    made, said = convert(text, tmp_path, pair)
    named = set(re.findall(r"^\S+?:\d+:\d+: ([^:\n]+): ", said, re.M))
    assert {"con00", "con01", "con6", "rack-3-slot-5"} <= set(made)
    for name in names:
        assert name in made or name in named, name
    for other in ("admin", "led led1", "rotator rot1"):
        assert other in named, said


def blocks(text: str) -> dict[str, str]:
    """Connections of the manual: name and lines."""
    found = {}
    for name, body in re.findall(r"^connection: &(\w+)\n(.*?)^\.(?:PP|RE\n\.RE)", text, re.M | re.S):
        lines, deeper = [], False
        for line in body.splitlines():
            if line.startswith("."):
                deeper = deeper and line != ".RE"
                continue
            if re.match(r"(accepter|connector|timeout|options):", line):
                deeper = line.startswith("options:")
                lines.append("  " + line)
            else:
                lines.append("    " + line)
        found[name] = f"connection: &{name}\n" + "\n".join(lines) + "\n"
    return found


def test_each_connection_of_the_manual_imports_or_is_named(tmp_path, pair):
    found = blocks(manual())
    assert set(found) >= {"toS0tcp", "toS0telnet", "tomyhost", "authsol"}
    for name, text in found.items():
        made, said = convert(text, tmp_path, pair)
        assert made == [name.lower()] or f": {name}: " in said, (name, said)
        assert (made != []) == (name in ("toS0tcp", "toS0telnet")), (name, said)


def test_each_accepter_of_the_manual_imports_or_is_named(tmp_path, pair):
    text = manual()
    accepters = re.findall(r"^accepter: (.*\d)$", text, re.M) + [
        line for line in re.findall(r"^(telnet,\S*tcp,\d+)$", text, re.M)]
    assert len(accepters) >= 12
    results = {}
    for accepter in accepters:
        made, said = convert(f"connection: &one\n  accepter: {accepter}\n  connector: echo\n", tmp_path, pair)
        assert made == ["one"] or ": one: " in said, (accepter, said)
        results[accepter] = made == ["one"]
    assert results["telnet,ssl,tcp,1234"] and results["tcp,1234"] and results["ssl(CA=/etc/ser2net/my\\ CA/),tcp,3000"]
    # A log-in never becomes a listener without one.
    assert not results["telnet,ssl(clientauth),tcp,1234"] and not results["telnet,mux,certauth,ssl,tcp,1234"]


def test_each_connector_of_the_manual_imports_or_is_named(tmp_path):
    connectors = re.findall(r"^connector: ([^<\n]*[^,\n<])$", manual(), re.M)
    assert len(connectors) >= 5
    for connector in connectors:
        made, said = convert(f"connection: &one\n  accepter: tcp,1\n  connector: {connector}\n", tmp_path)
        assert made == ["one"] or ": one: " in said, (connector, said)
    (made, said) = convert('connection: &one\n  accepter: tcp,1\n  connector: "serialdev,/dev/ttyUSB0,9600n81  local"\n', tmp_path)
    assert made == ["one"] and "0 things" in said


def test_serve_and_check_name_the_command(tmp_path):
    file = tmp_path / "ser2net.yaml"
    file.write_text("connection: &a\n  accepter: tcp,1\n  connector: echo\n")
    for command in ("check", "serve"):
        done = run(command, file)
        assert done.returncode == 78 and f"'baudway import {file}'" in done.stderr, done


def test_a_file_is_written_once(tmp_path):
    source, result = tmp_path / "ser2net.yaml", tmp_path / "made.yaml"
    source.write_text("connection: &a\n  accepter: tcp,1\n  connector: echo\n")
    done = run("import", source, "--output", result)
    assert (done.returncode, done.stdout) == (0, "") and str(result) in done.stderr
    assert result.stat().st_mode & 0o022 == 0 and run("check", result).returncode == 0
    result.write_text("mine")
    done = run("import", source, "--output", result)
    assert done.returncode == 73 and "nothing is overwritten" in done.stderr and result.read_text() == "mine"
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere")
    assert run("import", source, "--output", tmp_path / "link.yaml").returncode == 73
    assert not (tmp_path / "nowhere").exists()
    assert run("import", source, "--output", tmp_path / "no" / "made.yaml").returncode == 73


def test_exit_codes_of_files_that_are_none(tmp_path):
    file = tmp_path / "x"
    for text, words in [
        ("routes: { a: { listen: 'tcp://:1', endpoint: sim://echo } }\n", "not a configuration of ser2net"),
        ("connection: &a\n  accepter: udp,1\n  connector: echo\n", "no route can be made"),
        ("connection: &a\n accepter: tcp,1\n  connector: echo\n", f"{file}:3:"),
    ]:
        file.write_text(text)
        done = run("import", file, "-o", tmp_path / "made.yaml")
        assert (done.returncode, done.stdout) == (78, "") and words in done.stderr, done
    assert run("import", tmp_path / "nowhere").returncode == 78
    assert run("import").returncode == 64
    assert not (tmp_path / "made.yaml").exists()


def test_a_gateway_serves_what_was_imported(tmp_path):
    port = free_port()
    source = tmp_path / "ser2net.conf"
    source.write_text(
        f"BANNER:hello:\\N at \\p\\r\\n\nOPENSTR:start:begin\\r\n127.0.0.1,{port}:raw:600:/dev/null:9600 hello start\n")
    text = run("import", source).stdout.replace("tty:///dev/null?baud=9600", "sim://echo")
    (tmp_path / "made.yaml").write_text(text)
    with Gateway(tmp_path / "made.yaml", ready=1, text=True) as gateway:
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.settimeout(GUARD)
            client.sendall(b"ping")
            received = b""
            while not received.endswith(b"ping"):
                received += client.recv(100)
            reset(client)
        assert received == f"port-{port} at {port}\r\nbegin\rping".encode()
        assert gateway.event("session ended", route=f"port-{port}")
