"""Tests/README.md names every test that is skipped without root, or for root, and why."""
import ast
import importlib
import re
import subprocess
import sys

from kit import GUARD, ROOT

TESTS = ROOT / "Tests"


def rows(heading: str) -> dict[str, str]:
    """The table after a line that starts with `heading`: test and reason."""
    text = (TESTS / "README.md").read_text().split(heading, 1)[1]
    table = re.search(r"\n\n((?:\|.*\n)+)", text)[1].splitlines()[2:]
    # A function's name has no apostrophe.
    parts = [re.fullmatch(r"\| (.*?) \| (.*?) \|", row).groups() for row in table]
    return {test.replace("'", "") if test.startswith("`") else test: reason for test, reason in parts}


def words(function: str) -> str:
    return function.removeprefix("test_").replace("_", " ")


def swift_tests(condition: str) -> dict[str, str]:
    """The Swift tests that are enabled if `condition` holds."""
    found = {}
    for path in sorted(TESTS.rglob("*.swift")):
        suite = None
        for match in re.finditer(r'@Suite\(\s*"(?P<suite>[^"]*)"|@Test\(\s*"(?P<test>[^"]*)"(?P<traits>[^{]*?)\)\s*\n *(?:@|func|nonisolated)',
                                 path.read_text()):
            if match["suite"] is not None:
                suite = match["suite"]
            elif enabled := re.search(r'\.enabled\(if: ' + re.escape(condition) + r'(?:, "([^"]*)")?\)', match["traits"]):
                assert suite, path
                assert enabled[1], f"{path}: '{match['test']}' does not say why it is skipped"
                found[f"{suite}: {match['test']}"] = enabled[1]
    return found


def python_tests() -> dict[str, str]:
    """The tests that pytest collects with the marker `root`."""
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-m", "root", TESTS / "EndToEnd"],
        capture_output=True, text=True, timeout=GUARD, cwd=TESTS)
    found = {}
    for module, function in re.findall(r"^(?:\S*/)?(\w+)\.py::(\w+)", collected.stdout, re.M):
        marks = getattr(importlib.import_module(module), function).pytestmark
        found[f"`{module}.py`: {words(function)}"] = next(mark.args[0] for mark in marks if mark.name == "root")
    assert found, collected
    return found


def test_the_readme_lists_the_tests_that_need_root():
    assert rows("Without root these are skipped") == swift_tests("geteuid() == 0") | python_tests()


def test_the_readme_lists_the_tests_that_root_cannot_run():
    assert rows("As root this one") == swift_tests("geteuid() != 0")


def test_no_other_test_is_skipped_for_lack_of_root():
    """The rows come only from the marker `root` and from `.enabled(if:)` with a reason."""
    for path in sorted((TESTS / "EndToEnd").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("skip", "skipif"):
                assert not re.search(r"root|uid", ast.unparse(node), re.I), f"{path}:{node.lineno}"
    for path in sorted(TESTS.rglob("*.swift")):
        silent = re.search(r"guard (?:!?is_?root|gete?uid\(\) [!=]= 0) else \{ return", path.read_text(), re.I)
        assert not silent, f"{path}: {silent}"
