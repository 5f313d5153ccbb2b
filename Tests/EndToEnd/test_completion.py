"""Completion, typed in real shells: commands, options, routes and sessions of the running gateway, devices, files."""
import json
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import time

import pytest
from kit import GUARD, Gateway, binary, round_trip

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "Deploy/completions"
START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "PS1='> '; bind 'set bell-style none'; source {scripts}/baudway.bash"),
    "zsh": (["zsh", "-f", "-i"], "PS1='> '; fpath=({scripts} $fpath); autoload -U compinit; compinit -D -u"),
    "fish": (["fish", "--no-config", "-i"], "function fish_prompt; echo '> '; end; source {scripts}/baudway.fish"),
}
SHELLS = [pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"no {name} here")) for name in START]


class Shell:
    """A shell on a terminal."""

    def __init__(self, name: str, folder: pathlib.Path, environment: dict):
        words, setup = START[name]
        self.master, slave = pty.openpty()
        environment = {
            **environment, "PATH": f"{pathlib.Path(binary()).parent}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "xterm",
            "COLUMNS": "200", "LINES": "50", "fish_greeting": ""}
        subprocess.run(["stty", "cols", "200", "rows", "50"], stdin=slave, check=True)
        self.process = subprocess.Popen(
            ["setsid", "-c", *words], stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=folder)
        os.close(slave)
        self.text = ""
        self.type(setup.format(scripts=SCRIPTS) + "; echo rea''dy\r")
        self.wait("ready")

    def type(self, text: str):
        os.write(self.master, text.encode())

    def wait(self, pattern: str) -> str:
        """What the terminal shows up to a match, without control sequences."""
        end = time.monotonic() + GUARD
        while not (found := re.search(pattern, self.text)):
            left = end - time.monotonic()
            assert left > 0 and self.process.poll() is None, f"no {pattern!r} in {self.text!r}"
            if select.select([self.master], [], [], left)[0]:
                piece = os.read(self.master, 65536).decode("utf-8", "replace")
                if "\x1b[6n" in piece:  # where the cursor is
                    os.write(self.master, b"\x1b[1;1R")
                if "\x1b[c" in piece or "\x1b[0c" in piece:  # which terminal this is
                    os.write(self.master, b"\x1b[?6c")
                self.text += re.sub(r"\x1b(\[[0-9;?<>=]*[a-zA-Z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])", "", piece)
        shown, self.text = self.text[:found.end()], self.text[found.end():]
        return shown

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def gateway():
    config = {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}
    with Gateway({"routes": {"weather-station": config, "pump": config}}) as gateway:
        yield gateway


@pytest.mark.parametrize("name", SHELLS)
def test_a_session_is_kicked_with_a_few_letters(name, gateway, tmp_path):
    shell = Shell(name, tmp_path, gateway.environment)
    try:
        with gateway.connect("weather-station") as client:
            round_trip(client)
            session = gateway.event("session opened")["session"]
            shell.type("baudway ki\twea\t")
            shell.wait("weather-station")
            shell.type("\t")
            shell.wait(f"{session}")
            shell.type("\r")
            shell.wait(f"session {session} of weather-station ended")
            assert gateway.event("session ended")["reason"] == "kicked"
    finally:
        shell.close()


@pytest.mark.parametrize("name", SHELLS)
def test_options_values_and_files(name, gateway, tmp_path):
    (tmp_path / "garden.yaml").write_bytes(gateway.path.read_bytes())
    (tmp_path / "garden.txt").write_text("not this one")
    shell = Shell(name, tmp_path, gateway.environment)
    try:
        shell.type("baudway che\tgar\t")
        shell.wait(r"garden\.yaml")
        shell.type("\r")
        shell.wait("weather-station:")
        shell.wait("> ")
        shell.type("baudway hash-p\t--met\tsha\t")
        shell.wait("sha-512")
        shell.type("</dev/null\r")
        shell.wait("the password is empty")
    finally:
        shell.close()


@pytest.fixture
def shell_of(gateway, tmp_path):
    """Makes a shell whose `baudway` answers with these lines, and prints its words when it is run."""
    shells = []

    def make(name: str, lines: str) -> Shell:
        folder = tmp_path / "bin"
        folder.mkdir()
        fake = folder / "baudway"
        fake.write_text(f"""#!/bin/sh\n[ "$1" != complete ] || {{ printf '{lines}\\n'; exit; }}\necho "words: <$*>"\n""")
        fake.chmod(0o755)
        shell = Shell(name, tmp_path, gateway.environment)
        shells.append(shell)
        shell.type(f"set -x PATH {folder} $PATH\r" if name == "fish" else f"export PATH={folder}:$PATH\r")
        shell.wait("> ")
        return shell

    yield make
    for shell in shells:
        shell.close()


@pytest.mark.parametrize("name", SHELLS)
def test_a_url_is_completed_behind_its_colon(name, shell_of):
    """Shells divide words at a colon."""
    shell = shell_of(name, "tty:///dev/serial/by-id/one")
    shell.type("baudway connect tty:///dev/s\t\r")
    shell.wait("words: <connect tty:///dev/serial/by-id/one>")


@pytest.mark.parametrize("name", SHELLS)
def test_a_file_is_completed_behind_an_equals_sign(name, shell_of, tmp_path):
    (tmp_path / "garden.yaml").write_text("")
    (tmp_path / "garden.txt").write_text("not this one")
    shell = shell_of(name, r":files\tyaml")
    shell.type("baudway status --config=gar\t\r")
    shell.wait(r"words: <status --config=garden\.yaml>")


@pytest.mark.parametrize("name", SHELLS)
def test_any_file_is_completed_inside_folders(name, shell_of, tmp_path):
    """bash offered each folder twice, so a folder's name was never complete."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inside.txt").write_text("")
    shell = shell_of(name, ":files")
    for words in ("import -o ", "import --output="):
        shell.type(f"baudway {words}fol\tins\t\r")
        shell.wait(f"words: <{words}folder/inside.txt>")


def test_the_ports_of_this_machine_complete_a_url():
    ports = json.loads(subprocess.check_output([binary(), "devices", "--json"]))["serial"]
    lines = subprocess.check_output([binary(), "complete", "--", "connect", "tty:"], text=True).splitlines()
    assert sorted(line.split("\t")[0] for line in lines) == sorted(port["url"] for port in ports)


def test_bash_completion_leaves_no_variable_behind(tmp_path):
    script = f"source {SCRIPTS}/baudway.bash; COMP_LINE='baudway ' COMP_POINT=8; baudway() {{ printf ':files\\tyaml\\n'; }}; before=$(compgen -v)"
    asked = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", f"{script}; _baudway; diff <(echo \"$before\") <(compgen -v)"],
        cwd=tmp_path, capture_output=True, text=True, timeout=GUARD)
    new = {line[2:] for line in asked.stdout.splitlines() if line.startswith("> ")}
    assert new <= {"COMPREPLY", "BASH_REMATCH", "before"} and not asked.stderr, asked
