"""`baudway hash-password`: piped and typed at a terminal, and how `check` judges the result."""
import os
import pty
import re
import select
import subprocess
import termios

import pytest
import yaml
from kit import GUARD, Deadline, binary

WHOLE = {"yescrypt": r"\$y\$\S+\$\S{43}", "sha-512": r"\$6\$\S+\$\S{86}", "bcrypt": r"\$2b\$\d\d\$\S{53}"}
CHEAP = {"yescrypt": "1", "sha-512": "1000", "bcrypt": "4"}


def hashed(text: bytes, *words) -> subprocess.CompletedProcess:
    return subprocess.run([binary(), "hash-password", *words], input=text, capture_output=True, timeout=GUARD)


@pytest.mark.parametrize("method", WHOLE)
def test_a_piped_password_becomes_one_line_that_crypt_can_check(method):
    done = hashed(b"s\xc3\xa4cret\n", "--method", method, "--cost", CHEAP[method])
    assert (done.returncode, done.stderr) == (0, b"")
    hash = done.stdout.decode()
    assert re.fullmatch(WHOLE[method] + "\n", hash), hash
    # glibc's own crypt(3), as any other program calls it.
    script = "import sys, crypt; sys.exit(crypt.crypt('s\xe4cret', sys.argv[1]) != sys.argv[1])"
    subprocess.run(["/usr/bin/python3", "-W", "ignore", "-c", script, hash.strip()], check=True, timeout=GUARD)


def test_the_default_method_is_yescrypt_and_line_ends_are_removed():
    done = hashed(b"secret\r\nmore\n")
    assert re.fullmatch(WHOLE["yescrypt"] + "\n", done.stdout.decode())
    script = "import sys, crypt; sys.exit(crypt.crypt('secret', sys.argv[1]) != sys.argv[1])"
    subprocess.run(
        ["/usr/bin/python3", "-W", "ignore", "-c", script, done.stdout.decode().strip()], check=True, timeout=GUARD)


@pytest.mark.parametrize("text,words,code", [
    (b"", [], 65), (b"\n", [], 65), (b"a\0b\n", [], 65), (b"\xff\n", [], 65), (b"x" * 600, [], 65),
    (b"x" * 73, ["--method", "bcrypt"], 65), (b"x", ["--method", "md5"], 64), (b"x", ["--cost", "9999999999"], 64),
    (b"x", ["--cost", "0"], 64),
])
def test_an_invalid_password_is_refused(text, words, code):
    done = hashed(text, *words)
    assert (done.returncode, done.stdout) == (code, b"") and done.stderr


@pytest.mark.parametrize("method,cost,words", [
    ("yescrypt", "99", b"from 1 to 11"), ("bcrypt", "3", b"from 4 to 31"), ("sha-512", "999", b"from 1000 to 999999999")])
def test_an_invalid_cost_is_refused_with_the_valid_range(method, cost, words):
    done = hashed(b"x", "--method", method, "--cost", cost)
    assert (done.returncode, done.stdout) == (64, b"") and words in done.stderr


class Typed:
    """The command at its own terminal."""

    def __init__(self):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [binary(), "hash-password", "--cost", "1"], stdin=slave, stdout=subprocess.PIPE, stderr=slave,
            start_new_session=True)
        self.slave, self.shown = slave, b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        os.close(self.master)
        os.close(self.slave)

    def expect(self, text: bytes):
        deadline = Deadline(GUARD)
        while text not in self.shown:
            assert select.select([self.master], [], [], deadline.left)[0], self.shown
            self.shown += os.read(self.master, 1000)

    def type(self, text: bytes):
        os.write(self.master, text)

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.slave)[3] & termios.ECHO)


def test_a_typed_password_is_asked_twice_and_never_shown():
    with Typed() as typed:
        typed.expect(b"Password: ")
        assert not typed.echoes
        typed.type(b"hunter2\n")
        typed.expect(b"Once more: ")
        typed.type(b"hunter2\n")
        out, _ = typed.process.communicate(timeout=GUARD)
        assert typed.process.returncode == 0
        assert re.fullmatch(WHOLE["yescrypt"] + "\n", out.decode())
        assert typed.echoes and b"hunter2" not in typed.shown


@pytest.mark.parametrize("words,code", [((b"hunter2\n", b"hunter3\n"), 65), ((b"\x03",), 66), ((b"hunter2\n", b"\x03"), 66)])
def test_a_mistyped_or_aborted_password_prints_no_hash_and_restores_the_terminal(words, code):
    with Typed() as typed:
        for prompt, word in zip((b"Password: ", b"Once more: "), words):
            typed.expect(prompt)
            typed.type(word)
        assert typed.process.wait(timeout=GUARD) == code
        assert typed.process.stdout.read() == b"" and typed.echoes
