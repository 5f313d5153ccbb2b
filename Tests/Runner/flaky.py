"""Runs failed tests once more, alone. One that passes then is flaky; Tests/FLAKY.md keeps a list of those."""
import collections
import datetime
import re

from report import Report
from step import ROOT, Failed, Run

MOST_FLAKY = 3  # in one run
MOST_LINES = 2  # of one test in FLAKY.md
LIST = ROOT / "Tests" / "FLAKY.md"
LIMIT = 600


def lines_of(text: str) -> collections.Counter:
    """How many lines each test has in FLAKY.md: | date | commit | step | test |"""
    return collections.Counter(re.findall(r"^\| \d{4}-\d\d-\d\d \| \S+ \| \S+ \| `(.+)` \|$", text, re.M))


def run_again(run: Run, report: Report):
    """After all steps: each failed test alone. Not after a crash, which says that chance has no part in it."""
    failed = [(step, case) for step, outcome in report.outcomes() for case in outcome.failed]
    if not failed:
        return
    known = lines_of(LIST.read_text())
    report.start("again", counts=False)
    for step, case in failed:
        if not case.may_be_flaky:
            report.note(f"FAILED: {case.name}, {step}: never chance (a wrong byte, or an input that was found before)")
        elif known[case.name] > MOST_LINES:
            report.note(f"FAILED: {case.name}, {step}: it has {known[case.name]} lines in Tests/FLAKY.md and is not tried again")
        elif not _passes(run, case):
            report.note(f"FAILED: {case.name}, {step}: it fails alone, too")
        else:
            report.flaky(step, case)
    report.end_again()
    if len(report.flakes) > MOST_FLAKY:
        report.note(f"FAILED: {len(report.flakes)} flaky tests; at most {MOST_FLAKY} are accepted")
        report.is_red = True


def _passes(run: Run, case) -> bool:
    print(f"--- once more: {case.name}", flush=True)
    try:
        return run.call(*case.again, limit=LIMIT, environment=case.environment) == 0
    except Failed:
        return False


def row(commit: str, step: str, name: str) -> str:
    return f"| {datetime.date.today()} | {commit} | {step} | `{name}` |"
