"""README.md and Docs/: the screens are what the gateway prints, the configurations are valid, no option and no parameter is missing."""
import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml
from kit import GUARD, ROOT, Gateway, binary, free_port, receive_until, until

README = (ROOT / "README.md").read_text()
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "Docs").glob("*.md"))]}
LIBRARY = {path.name: path.read_text() for path in (ROOT / "Docs/Library.docc").glob("*.md")}


def blocks(page: str, kind: str = "") -> list[str]:
    """The texts in fences of this kind. All fences are matched, so that none that ends one is taken for a beginning."""
    return [text for found, text in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.S | re.M) if found == kind]


def screen(beginning: str) -> list[str]:
    """The lines of README's block that begins like this."""
    return next(text for text in blocks(README) if text.startswith(beginning)).splitlines()


CONFIGURATIONS = [
    pytest.param(text, id=f"{name} {number}")
    for name, page in PAGES.items() for number, text in enumerate(blocks(page, "yaml"), 1) if "cert.pem" not in text]


def run(*words: str, folder=None) -> subprocess.CompletedProcess:
    return subprocess.run([binary(), *words], capture_output=True, text=True, timeout=GUARD, cwd=folder, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_each_configuration_is_valid(text, tmp_path):
    (tmp_path / "my.yaml").write_text(text)
    done = run("check", "my.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("title", ["A password over TLS", "A certificate for a program"])
def test_a_log_in_over_tls_works_step_by_step(tmp_path, title):
    def section(title):
        return PAGES["Docs/listeners.md"].split(f"## {title}\n")[1].split("\n## ")[0]

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/baudway").symlink_to(binary())
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    def shell(command: str, text: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["sh", "-ec", command], input=text, capture_output=True, text=True, timeout=GUARD, cwd=tmp_path, env=environment)

    for steps in dict.fromkeys(["A password over TLS", title]):
        (commands,) = blocks(section(steps), "sh")
        assert shell(commands, "secret\n").returncode == 0
    (text,), (connect,) = blocks(section(title), "yaml"), re.findall(r"`(baudway connect '[^`]*)`", section(title))
    port = free_port()
    (tmp_path / "my.yaml").write_text(text.replace("8443", str(port)))
    wrong = connect.replace("…", "wrong").replace("&cert=logger.pem&key=logger.key", "")
    gateway = subprocess.Popen([binary(), "serve", "my.yaml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert any("listening" in line for line in iter(gateway.stderr.readline, ""))
        for command, refused in [(connect.replace("…", "secret"), False), (wrong, True)]:
            done = shell(command.replace("8443", str(port)) + " --silence 1s", "uptime\r")
            assert (done.returncode != 0) == refused and ("up 0 seconds" in done.stdout) != refused, done
    finally:
        gateway.terminate()
        gateway.wait(GUARD)
        gateway.stderr.close()


def test_an_error_is_reported_as_the_readme_shows_it(tmp_path):
    (line,) = screen("my.yaml:")
    first = next(text for text in blocks(README, "yaml") if "board-3" in text)
    (tmp_path / "my.yaml").write_text(first.replace("endpoint: tty:", "endpoint: tyy:"))
    done = run("check", "my.yaml", folder=tmp_path)
    assert (done.returncode, done.stderr) == (78, line + "\n")


def test_two_errors_are_reported_together_and_a_yaml_error_hides_them(tmp_path):
    mistakes = "version: 1\nlog: { level: loud }\nroutes:\n  a: { listen: 'tcp://:4001', endpoint: 'tyy:///dev/ttyUSB0' }\n"
    (tmp_path / "my.yaml").write_text(mistakes)
    assert len(run("check", "my.yaml", folder=tmp_path).stderr.splitlines()) == 2
    (tmp_path / "my.yaml").write_text(mistakes + "users: [\n")
    assert len(run("check", "my.yaml", folder=tmp_path).stderr.splitlines()) == 1


def test_the_first_command_prints_nmea_sentences():
    sentence = re.compile(r"\$GPRMC,\d{6}\.\d\d,A,\d{4}\.\d{4},N,\d{5}\.\d{4},E,\d{3}\.\d,\d{3}\.\d,\d{6},,,A\*[0-9A-F]{2}")
    assert sentence.search(README)
    with Gateway({"routes": {"gps": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://nmea"}}}) as gateway:
        url = "tcp://%s:%d" % gateway.address("gps")
        connect = subprocess.Popen([binary(), "connect", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert sentence.match(connect.stdout.readline().decode()), "the first line"
        finally:
            connect.terminate()
            connect.wait(GUARD)
            connect.stdin.close()
            connect.stdout.close()


def test_a_port_without_hardware_works_as_the_readme_says(tmp_path):
    (command,) = re.findall(r"`(socat [^`]*)`", README)
    assert "`tty:///tmp/port`" in README and "`baudway connect tty:///tmp/board`" in README
    socat = subprocess.Popen(command.replace("/tmp/", f"{tmp_path}/").split())
    try:
        until(lambda: all((tmp_path / name).exists() for name in ("port", "board")), what="both ends")
        board = subprocess.Popen([binary(), "connect", f"tty://{tmp_path}/board"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            with Gateway({"routes": {"board-3": {"listen": "tcp://127.0.0.1:0", "endpoint": f"tty://{tmp_path}/port"}}}) as gateway:
                with gateway.connect("board-3") as client:
                    client.sendall(b"from the client\n")
                    assert board.stdout.readline() == b"from the client\n"
                    board.stdin.write(b"from the board\n")
                    board.stdin.flush()
                    receive_until(client, b"from the board\n")
        finally:
            board.kill()
            board.communicate(timeout=GUARD)
    finally:
        socat.terminate()
        socat.wait(GUARD)


def shape(lines: list[str]) -> list[str]:
    """Lines without what differs from run to run: numbers with their units, and the widths of columns."""
    return [re.sub(r" +", " ", re.sub(r"\d[\d.]*(?: ?(?:[KMG]i)?B\b|m?s\b)?", "#", line)).rstrip() for line in lines]


def test_status_prints_what_the_readme_shows(tmp_path):
    missing = tmp_path / "ttyUSB0"
    ports = {"4010": free_port(), "4003": free_port(), "4001": free_port()}
    config = {"routes": {
        "board-3": {"listen": f"tcp://127.0.0.1:{ports['4010']}", "endpoint": f"tty://{missing}", "device": {"open": "always"}},
        "console": {"listen": f"tcp://127.0.0.1:{ports['4003']}", "endpoint": "sim://console", "clients": {"writers": "one"}},
        "gps": {"listen": f"tcp://127.0.0.1:{ports['4001']}", "endpoint": "sim://nmea"}}}
    with Gateway(config) as gateway:
        one, gps, two = gateway.connect("console"), gateway.connect("gps"), None
        try:
            receive_until(one, b"sim> ")
            receive_until(gps, b"\n")
            two = gateway.connect("console")
            one.sendall(b"uptime\r")
            receive_until(two, b"sim> ")
            until(lambda: gateway.events("link waiting", route="board-3"), what="board-3 waiting")
            done = gateway.command("status", str(gateway.path))
        finally:
            for client in (one, gps, two):
                if client:
                    client.close()
    lines = done.stdout.replace(str(missing), "/dev/ttyUSB0").splitlines()
    assert shape(lines) == shape(screen("baudway "))


def test_each_command_and_option_has_a_row():
    page = PAGES["Docs/commands.md"]
    commands = re.findall(r"^  ([a-z-]+) {2,}\S", run("--help").stdout.split("Commands:")[1].split("Options:")[0], re.M)
    assert len(commands) >= 10
    for command in set(commands) - {"help"}:
        assert f"`baudway {command}" in page, command
        rows = "".join(row for row in page.splitlines() if re.match(rf"\| [^|]*`{command}`", row))
        options = set(re.findall(r"--[a-z-]+", run(command, "--help").stdout.split("Options:")[1].split("\n\n")[0])) - {"--help"}
        for option in options:
            assert f"`{option}" in rows, f"{command} {option}"


def parameters() -> list[tuple[str, str]]:
    """Of each scheme, from the schema that is made of the tables in the code."""
    definitions = json.loads((ROOT / "Deploy/config.schema.json").read_text())["definitions"]
    return [(kind, name) for kind, content in definitions.items() if kind.startswith(("listen-", "endpoint-"))
            for name in content["properties"] if name != "url"]


@pytest.mark.parametrize("kind", ["listen", "endpoint"])
def test_each_parameter_of_a_url_has_a_row(kind):
    page = {"listen": "Docs/listeners.md", "endpoint": "Docs/endpoints.md"}[kind]
    for scheme, name in parameters():
        if not scheme.startswith(kind):
            continue
        radio = scheme.split("-")[1] in ("rfcomm", "ble")
        cells = [row.split("|")[1] for row in PAGES["Docs/bluetooth.md" if radio else page].splitlines() if row.startswith("| `")]
        assert any(f"`{name}`" in cell or f"?{name}=" in cell for cell in cells), f"{scheme}: {name}"


def test_the_libraries_articles_have_each_parameter_of_a_url():
    for kind, name in parameters():
        if kind.startswith("endpoint-"):
            article = "BluetoothWithoutDBus.md" if kind in ("endpoint-rfcomm", "endpoint-ble") else "Endpoints.md"
            assert re.search(rf"`{name}[`=]|[?&]{name}=", LIBRARY[article]), f"{kind}: {name}"


def test_the_commands_of_deploy_match_the_service_document():
    short = (ROOT / "Deploy/README.md").read_text()
    commands = blocks(short, "sh") + re.findall(r"(?:^    .*\n)+", short, re.M)
    assert len(commands) == 4
    for block in commands:
        assert block in PAGES["Docs/service.md"], block


def test_the_shipped_configuration_refers_to_existing_documents():
    for name in re.findall(r"\b(?:Docs|Deploy)/[\w.-]+\.\w+", pathlib.Path(ROOT / "config.yaml").read_text()):
        assert (ROOT / name).is_file(), name
    assert yaml.safe_load((ROOT / "config.yaml").read_text())["version"] == 1
