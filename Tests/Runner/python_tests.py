"""Runs a folder of Python tests with pytest, and reads what the plug-in pytest_results.py has written."""
import json

from step import MOST_FAILURES, ROOT, Case, Failed, Outcome, Run

NO_TESTS = 5
PYTHON = "/usr/bin/python3"  # Debian's, which has the packages that Tests/run installs; another one earlier in PATH may not


def python_tests(run: Run, folder: str, *, name: str, limit: float, marks="", environment=None, prefix=(), options=(),
                 knows=()) -> Outcome:
    """The tests of a folder, those with `marks` (pytest's -m). `prefix` is a command that runs pytest, Tests/alone for example; `knows` are
    the options of Tests/run that the folder's conftest has, too."""
    results = run.file(f"{name}.jsonl")
    environment = {
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT / "Tests" / "Runner"), "BAUDWAY_RESULTS": str(results), **(environment or {})
    }
    pytest = [*prefix, PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_results", *options]
    pytest += [f"--{option}" for option in knows if getattr(run.options, option)]
    chosen = ["-m", marks] if marks else []
    if run.options.filter:
        chosen += ["-k", run.options.filter]
    code = run.call(*pytest, folder, *chosen, limit=limit, environment=environment)
    if code == NO_TESTS and run.options.filter:
        return Outcome()
    outcome, ended = Outcome(), False
    for line in results.read_text().splitlines() if results.exists() else []:
        entry = json.loads(line)
        if entry.get("ended"):
            ended = True
        elif entry["outcome"] == "passed":
            outcome.passed += 1
            outcome.slowest.append((entry["seconds"], entry["test"]))
        elif entry["outcome"] == "skipped":
            outcome.skipped += 1
        else:
            outcome.failed.append(Case(entry["test"].removeprefix(f"{ROOT}/"), [*pytest, entry["test"]], environment, may_be_flaky=not entry["wrong_bytes"]))
    if not ended:
        raise Failed(f"pytest did not finish (exit code {code})")
    if code != 0 and not outcome.failed:
        raise Failed(f"pytest ended with exit code {code}, but no test failed")
    if len(outcome.failed) > MOST_FAILURES:
        raise Failed(f"{len(outcome.failed)} tests failed: {', '.join(case.name for case in outcome.failed)}")
    return outcome
