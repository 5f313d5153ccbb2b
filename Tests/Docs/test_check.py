"""Shows that each check can fail: a small tree with one thing wrong at a time. Run: pytest Tests/Docs"""
import json
import pathlib

import check
import pytest

GOOD = {
    "README.md": "See [the page](Docs/page.md) and `Sources/Kit/Lane.swift`.\n",
    "Docs/page.md": "| key | |\n|---|---|\n| `version` | 1 |\n| `clients.max`, `buffer` | 8 |\n| `users.password` | hash |\n"
                    "Tests: `LaneTests.runs`, `test_lane.py::test_runs`.\n",
    "Docs/decisions/engine.md": "# Engine\n\n## E1. One lane\n\n2026-11-21. Because.\n",
    "Sources/Kit/Lane.swift": "// Runs jobs (decision E1); see LaneTests.swift.\nlet fast = 2 * 3\n",
    "Tests/KitTests/LaneTests.swift": "@Test(\"runs jobs\")\nfunc runs() {}\n",
    "Tests/KitTests/test_lane.py": "def test_runs(): pass\n",
    "config.yaml": "version: 1\ndefaults:\n  clients:\n    # A comment: not a key.\n    #max: 8\n    buffer: 64KiB  # bytes\n"
                   "#users:\n  #ada: { password: \"x, y\" }\n",
}


def tree(folder: pathlib.Path, **changed):
    for name, text in {**GOOD, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return check.Tree(folder)


def problems(found):
    return [f"{file}:{number}: {what}" for name in check.CHECKS for file, number, what in check.CHECKS[name](found)]


def test_a_good_tree_has_no_problem(tmp_path, capsys):
    assert problems(tree(tmp_path)) == []
    assert check.main([], tmp_path) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("file, text, problem", [
    ("README.md", "[page](Docs/other.md)\n", "README.md:1: no file for the link 'Docs/other.md'"),
    ("README.md", "[page](Docs/page.md#keys)\n", "README.md:1: no heading for the link 'Docs/page.md#keys'"),
    ("README.md", "\n" * 150, "README.md:150: 150 lines, at most 149: move reference to Docs/"),
    ("config.yaml", "version: 1\n" + "# one word too many\n" * 500,
     "config.yaml:1: 2000 words of comments, at most 1250: move stories to Docs/"),
    ("README.md", "[there](#page) [engine](/Docs/decisions/engine.md#e1-one-lane)\n# A `page`\n", "README.md:1: no heading for the link '#page'"),
    ("README.md", "[page](/page.md)\n", "README.md:1: no file for the link '/page.md'"),
    ("README.md", "\nSee `Kit/Hub.swift`.\n", "README.md:2: no file is called 'Kit/Hub.swift'"),
    ("Sources/Kit/Lane.swift", "let a = 1  // as in Hub.swift\n", "Sources/Kit/Lane.swift:1: no file is called 'Hub.swift'"),
    ("Sources/Kit/Lane.swift", "// As decisions E1 and E2 say.\n", "Sources/Kit/Lane.swift:1: there is no decision E2"),
    ("README.md", "A ring is mapped twice (E7).\n", "README.md:1: there is no decision E7"),
    ("Docs/decisions/more.md", "## E1. Again\n\nText.\n",
     "Docs/decisions/more.md:1: decision E1 stands in Docs/decisions/engine.md already"),
    ("Docs/decisions/engine.md", "## E1. Long\n\n" + "Line.\n" * 9,
     "Docs/decisions/engine.md:11: decision E1 is longer than eight lines"),
    ("Docs/other.md", "`LaneTests.stops`\n", "Docs/other.md:1: there is no test LaneTests.stops"),
    ("Docs/other.md", "`test_lane.py::test_stops`\n", "Docs/other.md:1: there is no test test_lane.py::test_stops"),
    ("config.yaml", "version: 1\n#limits: { handshakes: auto }\n",
     "config.yaml:2: the key 'limits.handshakes' has no table row in Docs/*.md"),
    ("Sources/Kit/Lane.swift", "// It runs. Who waits is told.\n",
     "Sources/Kit/Lane.swift:1: 'Who or Whoever begins a sentence' (1 in Sources/Kit, at most 0)"),
    ("Sources/Kit/Lane.swift", "// A client whose bytes are his.\n",
     "Sources/Kit/Lane.swift:1: 'he, him, his' (1 in Sources/Kit, at most 0)"),
    ("Sources/Kit/Lane.swift", "let text = \"so many clients\"\n",
     "Sources/Kit/Lane.swift:1: 'so many' (1 in Sources/Kit, at most 0)"),
    ("Sources/Kit/Lane.swift", "let help = \"\"\"\n  He waits.\n  \"\"\"\n",
     "Sources/Kit/Lane.swift:2: 'he, him, his' (1 in Sources/Kit, at most 0)"),
    ("Sources/Kit/page.js", "say(`${name} has left his route`)\n",
     "Sources/Kit/page.js:1: 'he, him, his' (1 in Sources/Kit, at most 0)"),
    ("Tests/KitTests/LaneTests.swift", "@Test(\n  \"is told of once\")\nfunc runs() {}\n",
     "Tests/KitTests/LaneTests.swift:2: 'told of' (1 in Tests/KitTests, at most 0)"),
    ("Tests/KitTests/test_lane.py", "def test_runs():\n    \"\"\"What becomes of a client.\"\"\"\n",
     "Tests/KitTests/test_lane.py:2: 'what becomes of' (1 in Tests/KitTests, at most 0)"),
])
def test_each_fault_is_reported_as_one_problem(tmp_path, capsys, file, text, problem):
    assert problems(tree(tmp_path, **{file: text})) == [problem]
    assert check.main([], tmp_path) == 1
    assert capsys.readouterr().out == problem + "\n"


def test_commented_out_keys_are_found_too(tmp_path):
    assert check.config_keys(tree(tmp_path).text("config.yaml")) == {
        "version": 1, "clients.max": 5, "clients.buffer": 6, "users.password": 8}


def test_a_link_to_a_heading_is_found(tmp_path):
    page = "# The page\n\n```sh\n# no heading\n```\n\n## `pty`: a port, & more\n"
    link = "[it](page.md#pty-a-port--more) [here](#above)\n\n## Above\n"
    assert list(check.links(tree(tmp_path, **{"Docs/page.md": page, "Docs/other.md": link}))) == []
    assert len(list(check.links(tree(tmp_path, **{"Docs/other.md": "[it](page.md#no-heading)\n"})))) == 1


def test_a_question_may_begin_with_who(tmp_path):
    assert problems(tree(tmp_path, **{"README.md": "| Who is admitted? | all |\n"})) == []


def test_counts_may_fall_and_must_not_rise(tmp_path):
    his = "// His ring.\n"
    most = {"Sources/Kit": {"he, him, his": 2, "so many": 1}, "Sources/Gone": {"told of": 1}}
    changed = {"Sources/Kit/Lane.swift": his, check.WORDS_FILE: json.dumps(most)}
    assert problems(tree(tmp_path, **changed)) == []
    check.main(["--update"], tmp_path)
    assert json.loads((tmp_path / check.WORDS_FILE).read_text()) == {"Sources/Kit": {"he, him, his": 1}}
    (tmp_path / "Sources/Kit/Lane.swift").write_text(his * 2)
    check.main(["--update"], tmp_path)
    assert json.loads((tmp_path / check.WORDS_FILE).read_text()) == {"Sources/Kit": {"he, him, his": 1}}
    assert len(problems(check.Tree(tmp_path))) == 2
