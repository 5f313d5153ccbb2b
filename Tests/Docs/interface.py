#!/usr/bin/env python3
"""The public interface of the libraries, from their symbol graphs (Docs/build --graphs FOLDER).

  interface.py GRAPHS                 compares it with Docs/interface/*.txt; fails if they differ, and prints how
  interface.py --write GRAPHS         writes these files
  interface.py --undocumented GRAPHS  fails if a public symbol has no documentation, and prints which

A line is a symbol: its path, its declaration, and for types what they conform to. The files are for review: a commit that changes the
interface shows how. A line that goes or changes needs a new major version once 1.0.0 is released (Docs/Library.docc/DependOnATag.md).
"""
import difflib
import json
import pathlib
import re
import sys
from collections import defaultdict

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ROOT / "Docs/interface"
LIBRARIES = ("ByteStreams", "StreamBroker", "StreamBrokerBluetooth", "StreamBrokerCore", "StreamBrokerFoundation")
# Conformances that the compiler adds to nearly every type.
IMPLIED = {"Copyable", "Escapable", "SendableMetatype", "BitwiseCopyable"}


def load(folder):
    """module → list of symbols, and type → names of protocols."""
    symbols, names, conformances = {}, {}, defaultdict(set)
    graphs = [json.loads(file.read_text()) for file in sorted(pathlib.Path(folder).glob("*.symbols.json"))]
    if not graphs:
        sys.exit(f"{folder}: no symbol graphs")
    for graph in graphs:
        for symbol in graph["symbols"]:
            names[symbol["identifier"]["precise"]] = ".".join(symbol["pathComponents"])
            # What the compiler makes (`==` of an enum, `init(rawValue:)`) stands in no file.
            # An extension of a type elsewhere is the place of its members.
            if symbol["kind"]["identifier"] == "swift.extension":
                continue
            if "location" in symbol and "::SYNTHESIZED::" not in symbol["identifier"]["precise"]:
                symbols[symbol["identifier"]["precise"]] = symbol
    for graph in graphs:
        for relation in graph["relationships"]:
            if relation["kind"] == "conformsTo":
                name = names.get(relation["target"]) or relation.get("targetFallback", relation["target"])
                if name.split(".")[-1] not in IMPLIED:
                    conformances[relation["source"]].add(re.sub(rf"^(?:Swift|{'|'.join(LIBRARIES)})\.", "", name))
    return symbols, conformances


def file_of(symbol):
    return re.sub(r"^.*/Sources/", "Sources/", symbol["location"]["uri"])


def interface(folder):
    """module → its lines."""
    symbols, conformances = load(folder)
    lines = defaultdict(set)
    for precise, symbol in symbols.items():
        module = file_of(symbol).split("/")[1]
        text = "".join(part["spelling"] for part in symbol["declarationFragments"])
        text = " ".join(text.split())
        # A protocol's declaration names them itself.
        protocols = "" if symbol["kind"]["identifier"] == "swift.protocol" else ", ".join(sorted(conformances[precise]))
        lines[module].add(f"{'.'.join(symbol['pathComponents'])}: {text}{' : ' + protocols if protocols else ''}")
    return {module: sorted(found) for module, found in lines.items()}


def undocumented(folder):
    """Symbols without a comment. One that implements a requirement of a protocol has the comment of that requirement."""
    symbols, _ = load(folder)
    missing = [symbol for symbol in symbols.values() if not "".join(line["text"] for line in symbol.get("docComment", {}).get("lines", [])).strip()]
    for symbol in sorted(missing, key=lambda symbol: (file_of(symbol), symbol["location"]["position"]["line"])):
        print(f"{file_of(symbol)}:{symbol['location']['position']['line'] + 1}: no documentation for {'.'.join(symbol['pathComponents'])}")
    print(f"{len(symbols)} public symbols, {len(missing)} without documentation")
    return 1 if missing else 0


def compare(folder):
    now, status = interface(folder), 0
    for module in sorted({*now, *(file.stem for file in FILES.glob("*.txt"))}):
        file = FILES / f"{module}.txt"
        before = file.read_text().splitlines() if file.exists() else []
        changes = list(difflib.unified_diff(before, now.get(module, []), "known", "now", n=0, lineterm=""))[2:]
        for line in changes:
            if not line.startswith("@@"):
                print(f"{module}: {line}")
                status = 1
    if status:
        print("The public interface has changed. If that is intended, write it down and commit the files with the change:\n"
              "  Docs/build --graphs .build/docs/graphs && Tests/Docs/interface.py --write .build/docs/graphs")
    return status


def write(folder):
    FILES.mkdir(exist_ok=True)
    for file in FILES.glob("*.txt"):
        file.unlink()
    for module, lines in interface(folder).items():
        (FILES / f"{module}.txt").write_text("\n".join(lines) + "\n")
    return 0


def main(arguments):
    actions = {"--write": write, "--undocumented": undocumented}
    if len(arguments) == 2 and arguments[0] in actions:
        return actions[arguments[0]](arguments[1])
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 64
    return compare(arguments[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
