"""Prints and keeps what a run comes to: a line for each step, what failed, what was flaky. The file is .build/report.txt."""
import datetime
import os
import pathlib
import subprocess
import tempfile
import time

import flaky
from step import ROOT, Failed, NotTried, Outcome, Run

PASSED = ROOT / ".build" / "passed"  # a folder a tree, in it a file a step that passed
REPORT = ROOT / ".build" / "report.txt"
IMPORTANT = ("✘", "FAIL", "ERROR", "E  ", "error:", "warning:", "SUMMARY: ", "FOUND something", "BROKEN", "Fatal", "==ERROR", "Base64")


class Report:

    def __init__(self, run: Run):
        self.run, self.lines, self.flakes, self.is_red = run, [], [], False
        REPORT.parent.mkdir(exist_ok=True)
        self._steps: list[tuple[str, Outcome]] = []
        self._untried: list[str] = []
        self._hard_failures = 0  # steps that failed as a whole
        self.tree, is_clean = _tree(), not _git("status", "--porcelain")
        self.commit = _git("rev-parse", "--short", "HEAD")
        self._began = time.monotonic()
        self._write(f"{datetime.datetime.now():%Y-%m-%d %H:%M}, commit {self.commit}{'' if is_clean else ' with changes'}, tree {self.tree[:12]}")
        self._write(f"{os.cpu_count()} processors{_model()}, load {os.getloadavg()[0]:.2f} before, as {'root' if run.is_root else 'a user'}, seed {run.options.seed}")
        self._write(f"{'step':<10} {'result':<10} {'seconds':>7} {'passed':>7} {'failed':>7} {'skipped':>7}")

    # Steps.

    def start(self, name: str, counts=True):
        print(f"\n=== {name}", flush=True)
        self._name, self._step_began = name, time.monotonic()
        self.run.log = open(self.run.file(f"{name}.log"), "wb")  # noqa: SIM115 - closed when the step ends

    def end(self, name: str, result: Outcome | Failed):
        self.run.log.close()
        seconds = time.monotonic() - self._step_began
        if crashes := self.run.crashes():
            self.run.file("crashes").write_text("")
            result = Failed("; ".join(crashes))
        if isinstance(result, NotTried):
            self._untried.append(name)
            self._row(name, "not tried", seconds, Outcome())
            self._write(f"           {result}")
        elif isinstance(result, Failed):
            self.is_red = True
            self._row(name, "FAILED", seconds, Outcome())
            self._write(f"           FAILED: {name}: {result}")
            self._print_important(name)
            self._hard_failures += 1
        else:
            self._steps.append((name, result))
            self._row(name, "failed" if result.failed else "ok", seconds, result)
            if not result.failed and not self.run.options.filter:
                folder = PASSED / self.tree
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(f"{result.passed} {result.skipped}")
            for took, test in sorted(result.slowest, reverse=True)[:10]:
                self.run.file("slowest").open("a").write(f"{took:8.2f} s  {name}  {test}\n")

    def passed_before(self, name: str) -> bool:
        return (PASSED / self.tree / name).exists()

    def add_earlier(self, name: str):
        passed, skipped = map(int, (PASSED / self.tree / name).read_text().split())
        self._steps.append((name, Outcome(passed=passed, skipped=skipped)))
        self._row(name, "ok before", 0, Outcome(passed=passed, skipped=skipped))

    def outcomes(self) -> list[tuple[str, Outcome]]:
        return self._steps

    # What failed.

    def flaky(self, step: str, case):
        self.flakes.append((step, case))
        self.note(f"FLAKY {len(self.flakes)}: {case.name}, {step}")

    def end_again(self):
        self.run.log.close()
        if crashes := self.run.crashes():
            self.is_red = True
            self.note(f"FAILED: {'; '.join(crashes)}")

    def note(self, text: str):
        self._write(text)
        self.is_red = self.is_red or text.startswith("FAILED")

    # The end.

    def finish(self) -> int:
        passed = sum(outcome.passed for _, outcome in self._steps) + len(self.flakes)
        failed = sum(len(outcome.failed) for _, outcome in self._steps) - len(self.flakes) + self._hard_failures
        skipped = sum(outcome.skipped for _, outcome in self._steps)
        if self.is_red and failed == 0:
            failed = 1
        if self.flakes:
            self._write("For Tests/FLAKY.md:")
            for step, case in self.flakes:
                self._write(flaky.row(self.commit, step, case.name))
        for name in self._untried:
            self._write(f"not tried: {name}")
        what = "FULL" if self.run.options.full else "STEPS" if self.run.options.only or self.run.options.filter else "GATE"
        seconds = time.monotonic() - self._began
        end = "failed" if self.is_red else "passed, but for what was not tried," if self._untried else "passed"
        self._write(f"{what} {end} at {self.tree[:12]} in {seconds:.0f} s, load {os.getloadavg()[0]:.2f} after")
        self._write(f"{passed} passed, {failed} failed, {skipped} skipped")
        return 1 if self.is_red else 0

    # Lines.

    def _row(self, name: str, result: str, seconds: float, outcome: Outcome):
        self._write(f"{name:<10} {result:<10} {seconds:>7.0f} {outcome.passed:>7} {len(outcome.failed):>7} {outcome.skipped:>7}")
        for case in outcome.failed:
            self._write(f"           failed at first: {case.name}")

    def _print_important(self, name: str):
        """Again, at the end of the step: often only the end of the output is kept."""
        text = self.run.file(f"{name}.log").read_text(errors="replace").splitlines()
        for line in ([line for line in text if any(word in line for word in IMPORTANT)] or text)[-20:]:
            print("  " + line[:1000], flush=True)

    def _write(self, line: str):
        print(line, flush=True)
        self.lines.append(line)
        REPORT.write_text("\n".join(self.lines) + "\n")


def _git(*words: str, environment=None) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **(environment or {})}, check=False)
    return done.stdout.strip()


def _tree() -> str:
    """What the tree of a commit of all files here would be."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        _git("add", "-A", environment=index)
        return _git("write-tree", environment=index) or "unknown"


def _model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f" ({line.split(':', 1)[1].strip()})"
    return ""
