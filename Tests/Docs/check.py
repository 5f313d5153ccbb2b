#!/usr/bin/env python3
"""Checks what documents and comments refer to, and their words. Prints `file:line: what` and exits with 1 if anything is wrong.

  links      links of *.md lead to files of the tree, and to headings of documents
  names      file names in *.md (in backticks) and in comments exist somewhere in the tree
  decisions  cited decisions stand in Docs/decisions, each number once, none longer than eight lines
  tests      tests that Docs/*.md cite exist: `NameTests.function`, `test_file.py::test_name`
  keys       each key of config.yaml, also a commented-out one, has a table row in some Docs/*.md: | `clients.max` | ...
  lengths    README.md has under 150 lines, and the comments of config.yaml are read in some minutes
  words      words to avoid, counted per folder: words.json has the most there may be, and counts may only fall

`check.py` runs all of them, `check.py links keys` these, `check.py --in FOLDER links` there. `check.py --update` lowers the counts in words.json, and never raises one.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
from collections import defaultdict

# Names that look like files of ours and are not: examples, keys, other projects' files.
NOT_OUR_FILES = {
    "control.socket",  # a key of config.yaml
    "info.flags",  # a field of a struct
    "rfcomm/core.c",  # Linux
    "bluetooth.service", "testssl.sh",
    "NAME.md", "test_file.py",  # placeholders
    "test_small.py",  # the runner's tests write it
}
# What was true on its day is left as it was.
DATED = ("CHANGELOG.md", "Tests/Bench/results/", "Tests/Faults/results/")
# Where comments are read.
COMMENTED = ("Sources/", "Tests/", "Deploy/", "Package.swift", "Dockerfile", "config.yaml")
# Placeholders in texts that say how to cite.
NOT_TESTS = {("NameTests", "function"), ("test_file.py", "test_name")}

EXTENSIONS = "swift|md|py|sh|c|h|json|service|socket|rules|flags|order"
NAME = re.compile(rf"(?<![\w/.:$~<>{{*…-])((?:[\w+.-]+/)*[\w+-]+\.(?:{EXTENSIONS}))(?![\w/*-])")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TICKS = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^## ([A-Z]\d+)\. ")
CITED = re.compile(r"\b[Dd]ecisions? ((?:[A-Z]\d+)(?:(?:,| and| to|, and) [A-Z]\d+)*)")
CITED_IN_BRACKETS = re.compile(r"\(([A-Z]\d+)\)")
SWIFT_TEST = re.compile(r"`(\w+Tests)\.(\w+)`")
PYTHON_TEST = re.compile(r"`(test_\w+\.py)::(\w+)`")
DOCSTRING = re.compile(r'^\s*"""(.*?)"""', re.DOTALL | re.MULTILINE)
TEST_NAME = re.compile(r'@(?:Test|Suite)\(\s*"((?:[^"\\\n]|\\.)*)"')

WORDS = {
    "he, him, his": re.compile(r"\b(?:he|him|his|himself)\b", re.IGNORECASE),
    # A question may begin so.
    "Who or Whoever begins a sentence": re.compile(r"(?:^|[.;:!?] |\| )(?:Who|Whoever) (?![^.;:!|]*\?)"),
    "told of": re.compile(r"\btold of\b", re.IGNORECASE),
    "so many": re.compile(r"\bso many\b", re.IGNORECASE),
    "what becomes of": re.compile(r"\bwhat becomes of\b", re.IGNORECASE),
}
# Lines in which such a word is right: (file, part of the line).
WORDS_ARE_RIGHT = [
    ("Tests/Docs/", ""),
]
WORDS_FILE = "Tests/Docs/words.json"
MOST_SHOWN = 20


class Tree:
    """The files of the repository, or of any folder."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.files = sorted(self._list())
        self.tails = set()  # every end of a path: "Link.swift", "Routes/Link.swift"
        for file in self.files:
            parts = file.split("/")
            for start in range(len(parts)):
                self.tails.add("/".join(parts[start:]))
                for end in range(start + 1, len(parts)):
                    self.tails.add("/".join(parts[start:end]) + "/")
        self._texts = {}

    def _list(self):
        command = ["git", "-C", str(self.root), "ls-files", "-co", "--exclude-standard", "-z"]
        try:
            if (self.root / ".git").exists():
                listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
                return [name for name in listed if name and (self.root / name).is_file()]
        except (OSError, subprocess.CalledProcessError):
            pass
        found = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if name not in (".git", ".build", "__pycache__")]
            found += [str(pathlib.Path(folder, name).relative_to(self.root)) for name in names]
        return found

    def text(self, file):
        if file not in self._texts:
            try:
                self._texts[file] = (self.root / file).read_text()
            except (OSError, UnicodeDecodeError):
                self._texts[file] = ""
        return self._texts[file]

    def lines(self, file):
        return enumerate(self.text(file).split("\n"), 1)

    def documents(self):
        return [file for file in self.files if file.endswith(".md") and not file.startswith(DATED)]

    def sources(self):
        """Files with comments, and the pattern of a comment there."""
        for file in self.files:
            if file.startswith(DATED) or not file.startswith(COMMENTED):
                continue
            if file.endswith(".swift"):
                yield file, re.compile(r"(?:^|(?<=\s))///?(?=\s)(.*)")
            elif file.endswith((".c", ".h")):
                yield file, re.compile(r"(?:(?:^|(?<=\s))//|^\s*/?\*+)(?=\s)(.*)")
            elif file.endswith((".py", ".sh", ".yaml", ".service", ".socket", ".rules", ".conf", "Dockerfile")) or self.text(file)[:2] == "#!":
                yield file, re.compile(r"(?:^|(?<=\s))#+(?=\s)(.*)")

    def comments(self):
        for file, pattern in self.sources():
            for number, line in self.lines(file):
                if match := pattern.search(line):
                    yield file, number, match[1]
            if file.endswith(".py"):
                for match in DOCSTRING.finditer(self.text(file)):
                    first = self.text(file).count("\n", 0, match.start()) + 1
                    for number, line in enumerate(match[1].split("\n"), first):
                        yield file, number, line


def anchors(text):
    """What links may name after #: the headings of a document, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(tree):
    for file in tree.documents():
        for number, line in tree.lines(file):
            for link in LINK.findall(line):
                target, _, anchor = link.partition("#")
                if re.match(r"[a-z]+:", target):
                    continue
                there = tree.root / (target[1:] if target.startswith("/") else pathlib.Path(file).parent / target) if target else tree.root / file
                if not there.exists():
                    yield file, number, f"no file for the link '{target}'"
                elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text()):
                    yield file, number, f"no heading for the link '{link}'"


def names(tree):
    def missing(text):
        for name in NAME.findall(text):
            name = name.removeprefix("./")
            if name not in tree.tails and name not in NOT_OUR_FILES and name.split("/")[-1] not in NOT_OUR_FILES:
                yield name

    for file in tree.documents():
        for number, line in tree.lines(file):
            for text in TICKS.findall(line):
                for name in missing(text):
                    yield file, number, f"no file is called '{name}'"
    for file, number, comment in tree.comments():
        for name in missing(comment):
            yield file, number, f"no file is called '{name}'"


def decisions(tree):
    known = {}
    for file in tree.documents():
        if not file.startswith("Docs/decisions/"):
            continue
        title, length = None, 0
        for number, line in tree.lines(file):
            if match := HEADING.match(line):
                title, length = match[1], 0
                if title in known:
                    yield file, number, f"decision {title} stands in {known[title]} already"
                known.setdefault(title, file)
            elif title and line.strip():
                length += 1
                if length == 9:
                    yield file, number, f"decision {title} is longer than eight lines"
    letters = {title[0] for title in known}

    def unknown(text, patterns):
        for pattern in patterns:
            for cited in pattern.findall(text):
                for title in re.findall(r"[A-Z]\d+", cited):
                    if title not in known and (pattern is CITED or title[0] in letters):
                        yield title

    for file in tree.documents():
        for number, line in tree.lines(file):
            for title in unknown(line, [CITED, CITED_IN_BRACKETS]):
                yield file, number, f"there is no decision {title}"
    for file, number, comment in tree.comments():
        for title in unknown(comment, [CITED]):
            yield file, number, f"there is no decision {title}"


def tests(tree):
    files = {}
    for file in tree.files:
        if file.startswith("Tests/"):
            files.setdefault(os.path.basename(file), []).append(file)

    def has(name, pattern):
        return any(re.search(pattern, tree.text(file)) for file in files.get(name, []))

    for file in tree.documents():
        if not file.startswith("Docs/"):
            continue
        for number, line in tree.lines(file):
            for name, function in SWIFT_TEST.findall(line):
                if (name, function) not in NOT_TESTS and not has(f"{name}.swift", rf"\bfunc {function}\b"):
                    yield file, number, f"there is no test {name}.{function}"
            for name, function in PYTHON_TEST.findall(line):
                if (name, function) not in NOT_TESTS and not has(name, rf"\bdef {function}\b"):
                    yield file, number, f"there is no test {name}::{function}"


# MARK: keys

NAMED = {"routes", "users"}  # mappings whose keys are names
VALUES = {"users.roles"}  # mappings whose keys are values


def flow_keys(text):
    """The keys of `{ a: 1, b: { c: 2 }, d: [ 3 ] }`, each with the text of its value."""
    depth, quote, parts, start = 0, None, [], 1
    for place, letter in enumerate(text):
        if quote:
            quote = None if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
        if depth == 1 and letter == "," and not quote or depth == 0 and letter == "}":
            parts.append(text[start:place])
            start = place + 1
            if depth == 0:
                break
    for part in parts:
        if match := re.match(r"\s*\"?([\w.*-]+)\"?\s*:\s*(.*)", part, re.DOTALL):
            yield match[1], match[2].strip()


def config_keys(text):
    """Dotted names of the keys that hold values, with their lines: no names of routes and users, nothing of `defaults`."""
    found = {}

    def dotted(path):
        names = [name for place, name in enumerate(path) if not (place and path[place - 1] in NAMED)]
        return ".".join(name for name in names if name not in ("defaults", "routes"))

    def add(path, value, line):
        name = dotted(path)
        if value.startswith("{") and name not in VALUES:
            for key, inner in flow_keys(value):
                add([*path, key], inner, line)
        elif name and name not in found:
            found[name] = line

    stack = []  # (indent, name)
    open_key = None  # the last one without a value: a mapping, if what follows is indented further
    for number, line in enumerate(text.split("\n"), 1):
        # A # right before a key hides a setting; a # and a blank begin a comment, but for `clients.users`, which is a mistake
        # while there are no users.
        line = re.sub(r"^(\s*)#(?=[a-z])", r"\1", line)
        line = re.sub(r"^#(\s+)(?=users: \[)", r"\1", line)
        match = re.match(r"^(\s*)([\w.-]+):(?:\s+(.*))?$", re.sub(r"\s#\s.*$", "", line).rstrip())
        if not match:
            continue
        indent, name, value = len(match[1]), match[2], match[3] or ""
        if open_key and indent <= open_key[0]:
            add(open_key[1], "", open_key[2])
        while stack and stack[-1][0] >= indent:
            stack.pop()
        path = [name for _, name in stack] + [name]
        open_key = None if value else (indent, path, number)
        if value:
            add(path, value, number)
        stack.append((indent, name))
    return found


def documented_keys(tree):
    """Names in the first cells of tables. After a dotted name, one without dots has the same section: | `clients.allow`, `deny` |"""
    known = set()
    for file in tree.documents():
        if not file.startswith("Docs/") or "/" in file.removeprefix("Docs/"):
            continue
        for _, line in tree.lines(file):
            if not line.lstrip().startswith("|"):
                continue
            section = ""
            for name in TICKS.findall(line.lstrip()[1:].split("|")[0]):
                name = ".".join(part for part in name.strip("?:=").split(".") if not re.fullmatch(r"[A-Z*<>{}]+", part))
                known.add(name)
                if "." in name:
                    section = name.rsplit(".", 1)[0]
                elif section:
                    known.add(f"{section}.{name}")
    return known


def keys(tree):
    known = documented_keys(tree)
    for name, line in config_keys(tree.text("config.yaml")).items():
        # A parameter of a URL may stand by its own name; `url` is the URL itself.
        accepted = {name, name.removeprefix("endpoint."), name.removesuffix(".url")}
        if not accepted & known:
            yield "config.yaml", line, f"the key '{name}' has no table row in Docs/*.md"


# MARK: lengths

MOST_README_LINES = 149
MOST_CONFIG_WORDS = 1250  # at 250 words a minute, five minutes from top to bottom


def lengths(tree):
    lines = tree.text("README.md").count("\n")
    if lines > MOST_README_LINES:
        yield "README.md", lines, f"{lines} lines, at most {MOST_README_LINES}: move reference to Docs/"
    # A # right before a letter hides a setting.
    comments = " ".join(comment for _, line in tree.lines("config.yaml") for comment in re.findall(r"#(?![a-z]).*", line))
    count = len(re.findall(r"[A-Za-z][A-Za-z'-]+", re.sub(r"\S*:/\S*", "", comments)))  # without URLs
    if count > MOST_CONFIG_WORDS:
        yield "config.yaml", 1, f"{count} words of comments, at most {MOST_CONFIG_WORDS}: move stories to Docs/"


# MARK: words

def folder(file):
    parts = file.split("/")
    return "/".join(parts[:-1][:2]) or "."


def prose(tree):
    """Lines that people read: documents, comments, names of tests, texts of messages in Sources, and the status page."""
    for file in tree.documents():
        for number, line in tree.lines(file):
            yield file, number, line
    yield from tree.comments()
    for file in tree.files:
        if file.startswith("Sources/") and file.endswith((".js", ".html")):  # the status page
            for number, line in tree.lines(file):
                yield file, number, line
        if not file.endswith(".swift"):
            continue
        text = tree.text(file)
        if file.startswith("Tests/"):
            for match in TEST_NAME.finditer(text):
                yield file, text.count("\n", 0, match.start(1)) + 1, match[1]
        elif file.startswith("Sources/"):
            is_inside = False  # a text of several lines
            for number, line in tree.lines(file):
                if line.count('"""') % 2:
                    is_inside = not is_inside
                elif is_inside:
                    yield file, number, line
                elif not line.lstrip().startswith("//"):
                    for string in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
                        yield file, number, string


def found_words(tree):
    """folder → word → places."""
    found = defaultdict(lambda: defaultdict(list))
    for file, number, line in prose(tree):
        if any(file.startswith(name) and part in line for name, part in WORDS_ARE_RIGHT):
            continue
        for word, pattern in WORDS.items():
            for _ in pattern.findall(line.strip()):
                found[folder(file)][word].append((file, number))
    return found


def limits(tree):
    text = tree.text(WORDS_FILE)
    return json.loads(text) if text else {}


def words(tree):
    most = limits(tree)
    for name, by_word in sorted(found_words(tree).items()):
        for word, places in by_word.items():
            limit = most.get(name, {}).get(word, 0)
            if len(places) <= limit:
                continue
            for file, number in places[:MOST_SHOWN]:
                yield file, number, f"'{word}' ({len(places)} in {name}, at most {limit})"


def update(tree):
    """Lowers the counts. Without a file it makes one."""
    found = found_words(tree)
    counts = {name: {word: len(places) for word, places in by_word.items()} for name, by_word in found.items()}
    if tree.text(WORDS_FILE):
        counts = {
            name: {word: min(limit, counts.get(name, {}).get(word, 0)) for word, limit in by_word.items()}
            for name, by_word in limits(tree).items()}
    counts = {name: {word: by_word[word] for word in WORDS if by_word.get(word)} for name, by_word in sorted(counts.items())}
    counts = {name: by_word for name, by_word in counts.items() if by_word}
    (tree.root / WORDS_FILE).write_text(json.dumps(counts, indent=2) + "\n")


CHECKS = {"links": links, "names": names, "decisions": decisions, "tests": tests, "keys": keys, "lengths": lengths, "words": words}


def main(arguments, root):
    if arguments[:1] == ["--in"]:
        root, arguments = arguments[1], arguments[2:]
    tree = Tree(root)
    if arguments == ["--update"]:
        update(tree)
        return 0
    wanted = arguments or list(CHECKS)
    if unknown := [name for name in wanted if name not in CHECKS]:
        print(f"{__doc__}\nno such check: {', '.join(unknown)}", file=sys.stderr)
        return 64
    wrong = sorted({problem for name in wanted for problem in CHECKS[name](tree)})
    for file, number, what in wrong:
        print(f"{file}:{number}: {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], pathlib.Path(__file__).resolve().parents[2]))
