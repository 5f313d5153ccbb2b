"""Runs the Swift tests of a build, and reads their results file."""
import pathlib
import re
from xml.etree import ElementTree

from step import MOST_FAILURES, Case, Failed, Outcome, Run

NO_SUCH_TEST = 69
# A failure here is a lost or wrong byte, or an input that was found before: never chance.
NEVER_CHANCE = re.compile(r"FuzzReplayTests\.|Conformance")
SHOWN = re.compile(rb"\xe2\x9c\x98|error:|warning:|SUMMARY: |Fatal|ThreadSanitizer|AddressSanitizer")


def swift_tests(run: Run, build: str, *, name: str, user: bool, limit: float, words="", environment=None, isolated=True) -> Outcome:
    """The tests of the build folder `build`, or those whose name matches `words`. One at a time: many at once in one process see
    each other's temporary state (a program being started has copies of all descriptors), and hit time limits on few cores."""
    results = run.file(f"{name}.xml")
    binary = [f"{build}/debug/baudwayPackageTests.xctest", "--testing-library", "swift-testing", "--no-parallel"]
    prefix = run.isolated(user=user) if isolated else ["Tests/unprivileged"] if user and run.is_root else []
    environment = {"NO_COLOR": "1", **(environment or {})}
    words = run.options.filter or words
    command = [*prefix, *binary, *(["--filter", words] if words else []), "--xunit-output", str(results)]
    code = run.call(*command, limit=limit, environment=environment, shown=SHOWN)
    if code == NO_SUCH_TEST and run.options.filter:
        return Outcome()
    try:
        outcome = read(results)
    except (OSError, ElementTree.ParseError) as error:
        raise Failed(f"the test process did not write its results (exit code {code}): it crashed") from error
    for path, case in outcome.failed:
        module, _, suite = path.partition(".")
        again = ["--filter", rf"^{re.escape(module)}\.{re.escape(suite).replace(re.escape('.'), '[./]')}[./]{re.escape(case)}"]
        outcome.outcome.failed.append(Case(
            f"{path}/{case}", [*prefix, *binary, *again], environment, may_be_flaky=not NEVER_CHANCE.search(path)))
    done = outcome.outcome
    # An issue on a thread that the library does not know belongs to no test, and its test counts as passed.
    run.log.flush()
    if "Test «unknown» recorded an issue" in pathlib.Path(run.log.name).read_text(errors="replace"):
        raise Failed("an issue was recorded outside of a test: see «unknown» in the output")
    print(f"{done.passed} passed, {len(done.failed)} failed, {done.skipped} skipped", flush=True)
    if code != 0 and not done.failed:
        raise Failed(f"exit code {code}, but no failed test in the results: an issue outside of a test, or a sanitizer's finding")
    if len(done.failed) > MOST_FAILURES:
        raise Failed(f"{len(done.failed)} tests failed: {', '.join(case.name for case in done.failed)}")
    return done


class read:
    """A results file: what passed, and (suite, test) of what failed."""

    def __init__(self, results: pathlib.Path):
        self.outcome, self.failed = Outcome(), []
        for case in ElementTree.parse(results).iter("testcase"):
            if case.find("failure") is not None:
                self.failed.append((case.get("classname"), case.get("name")))
            elif case.find("skipped") is not None:
                self.outcome.skipped += 1
            else:
                self.outcome.passed += 1
            self.outcome.slowest.append((float(case.get("time", 0)), f"{case.get('classname')}/{case.get('name')}"))
