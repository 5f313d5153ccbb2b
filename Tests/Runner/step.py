"""What steps share: the run with its options, a command with a time limit, and what a step comes to."""
import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / ".build" / "results"
NOT_TRIED = 75  # EX_TEMPFAIL: a script could not fetch what it needs
MOST_FAILURES = 8  # in one step: more are no chance, and are not run again


class Failed(Exception):
    """A step has failed, and is not tried again: a build, a crash, a time limit, a finding of a sanitizer or fuzzer."""


class NotTried(Failed):
    """Something could not be fetched, or this machine lacks it: neither passed nor failed."""


@dataclasses.dataclass
class Case:
    """One test that failed, and what runs it alone."""
    name: str
    again: list[str]
    environment: dict[str, str]
    may_be_flaky: bool = True


@dataclasses.dataclass
class Outcome:
    """Of a step, or of a part of one: `passed` and `skipped` are counts of tests."""
    passed: int = 0
    failed: list[Case] = dataclasses.field(default_factory=list)
    skipped: int = 0
    slowest: list[tuple[float, str]] = dataclasses.field(default_factory=list)

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped, self.slowest + other.slowest)


class Run:
    """The options, and what one step leaves for later ones."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.is_root = os.geteuid() == 0
        self.programs: dict[str, str] = {}  # built programs: name → path
        self.log = None  # the current step's output
        os.chdir(ROOT)
        # A test process of another user writes here, too.
        shutil.rmtree(RESULTS, ignore_errors=True)
        RESULTS.mkdir(parents=True)
        RESULTS.chmod(0o1777)
        os.environ["BAUDWAY_SEED"] = str(options.seed)
        os.environ["BAUDWAY_CRASHES"] = str(self.file("crashes"))
        self.file("crashes").touch()
        self.file("crashes").chmod(0o666)

    def file(self, name: str) -> pathlib.Path:
        return RESULTS / name

    def crashes(self) -> list[str]:
        """What tests have written down that is never chance: a gateway that crashed, a wrong byte."""
        return self.file("crashes").read_text().splitlines()

    def isolated(self, *command: str, user: bool) -> list[str]:
        """The command in namespaces of its own; with `user`, as an ordinary user."""
        return ["Tests/alone", *(["Tests/unprivileged"] if user and self.is_root else []), *command]

    def call(self, *command, limit: float, environment=None, quiet=False, shown: re.Pattern | None = None) -> int:
        """Runs a command, and ends it with all its children after `limit` seconds. Its output goes to the step's log, and is
        printed: all lines, or those that match `shown`; with `quiet`, the last ones if the command fails. Returns the exit code."""
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})}, start_new_session=True)
        late = threading.Event()

        def end():
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit, end)
        timer.start()
        kept = []
        for line in process.stdout:
            self.log.write(line)
            if quiet:
                kept.append(line)
            elif shown is None or shown.search(line):
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
        code = process.wait()
        timer.cancel()
        self.log.flush()
        if quiet and code not in (0, NOT_TRIED):
            sys.stdout.buffer.write(b"".join(kept[-200:]))
            sys.stdout.flush()
        if late.is_set():
            raise Failed(f"not finished within {limit:.0f} s: {command[0]}")
        return code

    def must(self, *command, limit: float, environment=None, quiet=True):
        """A command that must succeed, or the step has failed."""
        code = self.call(*command, limit=limit, environment=environment, quiet=quiet)
        if code == NOT_TRIED:
            raise NotTried(f"{command[0]} could not fetch what it needs")
        if code != 0:
            raise Failed(f"{command[0]} failed (exit code {code})")

    def output(self, *command: str) -> str:
        """The standard output of a command that must succeed; the rest of its output goes to the log."""
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True, check=False)
        if done.returncode != 0:
            self.log.flush()
            raise Failed(f"{command[0]} failed (exit code {done.returncode}): see {self.log.name}")
        return done.stdout.strip()
