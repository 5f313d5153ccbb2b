"""The runner on small steps of its own: what is red, what is flaky, what is never tried again."""
import argparse
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import flaky  # noqa: E402
import report as reports  # noqa: E402
import step as shared  # noqa: E402
import steps  # noqa: E402
from python_tests import python_tests  # noqa: E402
from step import Case, Failed, NotTried, Outcome, Run  # noqa: E402
from swift_tests import read  # noqa: E402


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ("RESULTS", "PASSED"):
        for module in (shared, reports):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, tmp_path / name)
    (tmp_path / ".build").mkdir()
    monkeypatch.setattr(reports, "REPORT", tmp_path / ".build" / "report.txt")
    monkeypatch.setattr(flaky, "LIST", tmp_path / "FLAKY.md")
    flaky.LIST.write_text("")
    monkeypatch.setenv("BAUDWAY_CRASHES", "")
    monkeypatch.setenv("BAUDWAY_SEED", "")
    return Run(argparse.Namespace(full=False, again=False, only=[], filter="", aims=False, long=False, seed=1))


def finished(run, *results, name="unit") -> tuple[int, str]:
    """The exit code and the report of a run whose steps come to `results`."""
    report = reports.Report(run)
    for result in results:
        report.start(name)
        report.end(name, result)
    flaky.run_again(run, report)
    code = report.finish()
    text = reports.REPORT.read_text()
    assert re.fullmatch(r"\d+ passed, \d+ failed, \d+ skipped", text.splitlines()[-1])
    return code, text


def case(code: int, name="a test", **fields) -> Case:
    return Case(name, [sys.executable, "-c", f"raise SystemExit({code})"], {}, **fields)


def test_all_passed(run):
    code, text = finished(run, Outcome(passed=3, skipped=1))
    assert code == 0 and "GATE passed" in text and text.endswith("3 passed, 0 failed, 1 skipped\n")


def test_a_test_that_passes_alone_is_flaky_and_the_run_green(run):
    code, text = finished(run, Outcome(passed=3, failed=[case(0)]))
    assert code == 0 and "FLAKY 1: a test, unit" in text and text.endswith("4 passed, 0 failed, 0 skipped\n")
    assert list(flaky.lines_of(text)) == ["a test"], "the line for FLAKY.md is one that the runner reads"


def test_a_test_that_fails_alone_is_red(run):
    code, text = finished(run, Outcome(passed=3, failed=[case(1)]))
    assert code == 1 and "fails alone" in text and text.endswith("3 passed, 1 failed, 0 skipped\n")


def test_more_than_three_flaky_tests_are_red(run):
    assert finished(run, Outcome(failed=[case(0, str(n)) for n in range(3)]))[0] == 0
    assert finished(run, Outcome(failed=[case(0, str(n)) for n in range(4)]))[0] == 1


@pytest.mark.parametrize("result", [Failed("crashed"), Outcome(failed=[case(0, may_be_flaky=False)])], ids=["crash", "wrong byte"])
def test_what_is_never_chance_is_not_tried_again(run, result):
    code, text = finished(run, result)
    assert code == 1 and "FLAKY" not in text


def test_a_crash_that_a_test_wrote_down_is_red_although_the_step_passed(run):
    report = reports.Report(run)
    report.start("e2e")
    run.file("crashes").write_text("test_x: the gateway ended by SIGILL\n")
    report.end("e2e", Outcome(passed=9))
    assert report.finish() == 1 and "SIGILL" in reports.REPORT.read_text()


def test_a_test_with_three_lines_is_not_tried_again(run):
    row = flaky.row("abc", "unit", "a test") + "\n"
    flaky.LIST.write_text(row * 2)
    assert finished(run, Outcome(failed=[case(0)]))[0] == 0
    flaky.LIST.write_text(row * 3)
    assert finished(run, Outcome(failed=[case(0)]))[0] == 1


def test_what_could_not_be_fetched_is_neither_green_nor_red(run):
    code, text = finished(run, NotTried("no mirror"), Outcome(passed=1))
    assert code == 0 and "not tried: unit" in text and "passed, but for what was not tried" in text


def test_a_command_is_ended_at_its_time_limit_with_its_children(run, tmp_path):
    report = reports.Report(run)
    report.start("x")
    with pytest.raises(Failed, match="not finished within 1 s"):
        run.call("bash", "-c", f"sleep 300 & echo $! >{tmp_path}/child; wait", limit=1)
    child = int((tmp_path / "child").read_text())
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True, check=False).stdout.strip()
    assert state == "" or state.startswith("Z")


TESTS = """
import pathlib, pytest
def test_good(): pass
def test_late(): assert b"hello" == b"hell"
def test_wrong(): assert b"hello" == b"help!"
@pytest.mark.skip(reason="not here")
def test_skipped(): pass
def test_second_try():
    mark = pathlib.Path(__file__).with_name("tried")
    assert mark.exists() or mark.touch()
"""


def test_results_of_pytest_are_read_and_its_tests_run_alone(run, tmp_path):
    (tmp_path / "test_small.py").write_text(TESTS)
    report = reports.Report(run)
    report.start("e2e")
    outcome = python_tests(run, str(tmp_path), name="it", limit=60)
    assert (outcome.passed, outcome.skipped) == (1, 1)
    by_name = {case.name.rpartition("::")[2]: case for case in outcome.failed}
    assert {name: case.may_be_flaky for name, case in by_name.items()} == \
        {"test_late": True, "test_wrong": False, "test_second_try": True}
    assert run.call(*by_name["test_second_try"].again, limit=60, environment=by_name["test_second_try"].environment) == 0
    assert run.call(*by_name["test_late"].again, limit=60, environment=by_name["test_late"].environment) == 1


@pytest.mark.parametrize("count", [8, 9])
def test_more_than_eight_failures_of_a_step_are_not_tried_again(run, tmp_path, count):
    (tmp_path / "test_small.py").write_text("".join(f"def test_{n}(): assert False\n" for n in range(count)))
    report = reports.Report(run)
    report.start("e2e")
    if count == 8:
        assert len(python_tests(run, str(tmp_path), name="it", limit=60).failed) == 8
    else:
        with pytest.raises(Failed, match="9 tests failed"):
            python_tests(run, str(tmp_path), name="it", limit=60)


def test_a_pytest_that_does_not_finish_has_failed(run, tmp_path):
    (tmp_path / "test_small.py").write_text("import os\ndef test_it(): os._exit(0)\n")
    report = reports.Report(run)
    report.start("e2e")
    with pytest.raises(Failed, match="did not finish"):
        python_tests(run, str(tmp_path), name="it", limit=60)


def test_results_of_swift_tests_are_read(tmp_path):
    file = tmp_path / "results.xml"
    file.write_text("""<testsuites><testsuite name="TestResults">
      <testcase classname="A.B" name="good()" time="0.5" />
      <testcase classname="A.B" name="skipped()"><skipped>only root</skipped></testcase>
      <testcase classname="A.B" name="bad(of:)" time="0.1"><failure message="x" /></testcase>
    </testsuite></testsuites>""")
    results = read(file)
    assert (results.outcome.passed, results.outcome.skipped, results.failed) == (1, 1, [("A.B", "bad(of:)")])


def test_the_readme_has_the_list_of_steps():
    text = (shared.ROOT / "Tests" / "README.md").read_text()
    assert f"```\n{steps.listing()}\n```" in text


def test_no_test_has_three_lines_in_the_list_of_flaky_tests():
    """The third line of a test makes the gate red until the test is mended and its lines are removed."""
    known = flaky.lines_of((shared.ROOT / "Tests" / "FLAKY.md").read_text())
    assert not [name for name, count in known.items() if count > flaky.MOST_LINES]
