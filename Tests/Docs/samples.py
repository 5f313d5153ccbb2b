#!/usr/bin/env python3
"""Compiles each code sample in Swift: of Docs/Library.docc, README.md, and comments (`///`) of the libraries. Prints the compiler's
messages with the file and line of the sample, and exits with 1 if one does not compile. Docs/build must have run before.

  samples.py            compiles all
  samples.py --list     prints where they are
  samples.py --print NAME  prints the one that declares this struct
  samples.py --package FOLDER  uses the build of that package

A sample is a block that begins with ```swift. It is compiled with the settings of a new Swift 6 program. Warnings are errors, but a sample
need not use each value that it shows:

  - One that declares a whole file (a line that begins with `import`, `extension` or `@main`) is a file of its own.
  - Any other is the body of an async throwing function with the arguments `stream` (a StreamHandle), `broker` (a Broker) and `url`.
    The comments of a lane's types (`Sources/ByteStreams`) are no different: they make what they need.
  - One that begins with `// swift-tools-version` is a manifest, which `swift package dump-package` reads.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARIES = ("ByteStreams", "StreamBroker", "StreamBrokerBluetooth", "StreamBrokerCore", "StreamBrokerFoundation")
WHOLE = re.compile(r"^(?:import|extension|@main)\b", re.MULTILINE)
IMPORTS = "import Glibc\nimport StreamBroker\nimport StreamBrokerBluetooth\n"


def documents():
    yield ROOT / "README.md"
    yield from sorted((ROOT / "Docs/Library.docc").glob("*.md"))
    yield from sorted((ROOT / "Docs").glob("*.md"))
    for library in LIBRARIES:
        yield from sorted((ROOT / "Sources" / library).rglob("*.swift"))


def samples():
    """(file, number of its first line, text)"""
    for file in documents():
        lines = file.read_text().split("\n")
        if file.suffix == ".swift":
            lines = [match[1] if (match := re.match(r"\s*/// ?(.*)", line)) else None for line in lines]
        first, kept = None, []
        for number, line in enumerate(lines, 1):
            if first is None:
                if line is not None and line.strip() == "```swift":
                    first, kept = number + 1, []
            elif line is None or line.strip() == "```":
                yield file.relative_to(ROOT), first, "\n".join(kept) + "\n"
                first = None
            else:
                kept.append(line)


def source(number, file, line, text):
    """The file to compile. Its lines have the numbers of the document."""
    place = f'#sourceLocation(file: "{file}", line: {line})\n'
    if WHOLE.search(text):
        # Several programs in one module: none is the main one.
        return place + re.sub(r"^@main$", "", text, flags=re.MULTILINE)
    uses = "".join(f"_ = {name}\n" for name in re.findall(r"^let (\w+)", text, re.MULTILINE))
    return (f"{IMPORTS}func sample{number}(_ stream: StreamHandle, _ broker: Broker, _ url: String) async throws {{\n"
            f"{place}{text}#sourceLocation()\n{uses}}}\n")


def flags(package):
    products = pathlib.Path(run(["swift", "build", "--show-bin-path"], package).stdout.strip())
    maps = [package / f"Sources/{name}/module.modulemap" for name in ("COpenSSL", "CZlib")]
    maps += [products / f"{name}.build/module.modulemap" for name in ("CBluetooth", "CLinux")]
    return ["-I", str(products / "Modules")] + [part for file in maps for part in ("-Xcc", f"-fmodule-map-file={file}")]


def run(command, folder):
    return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def compile_all(found, package, folder):
    """Whether all compile. A file with its own declarations is a module of its own, since names may occur in several."""
    modules, bodies = [], []
    for number, (file, line, text) in enumerate(found):
        swift = folder / f"sample{number}.swift"
        swift.write_text(source(number, file, line, text))
        if WHOLE.search(text):
            modules.append([swift])
        else:
            bodies.append(swift)
    fine = True
    common = flags(package)
    for number, files in enumerate([bodies, *modules]):
        result = run(["swiftc", "-swift-version", "6", "-warnings-as-errors", "-parse-as-library", "-wmo", "-Onone", "-module-name", f"Samples{number}",
                      *common, "-c", *map(str, files), "-o", str(folder / f"{number}.o")], ROOT)
        if result.returncode:
            print(result.stderr + result.stdout)
            fine = False
    return fine


def read_manifest(file, line, text, folder):
    folder.mkdir()
    (folder / "Package.swift").write_text(text)
    result = run(["swift", "package", "dump-package"], folder)
    if result.returncode:
        print(f"{file}:{line}: not a manifest\n{result.stderr}")
    return result.returncode == 0


def main(arguments):
    package = ROOT
    if arguments[:1] == ["--package"] and len(arguments) == 2:
        package, arguments = pathlib.Path(arguments[1]).resolve(), []
    found = list(samples())
    if arguments[:1] == ["--print"] and len(arguments) == 2:
        texts = [text for _, _, text in found if re.search(rf"^struct {arguments[1]} ", text, re.MULTILINE)]
        print(*texts, end="")
        return 0 if len(texts) == 1 else 1
    if arguments == ["--list"]:
        for file, line, text in found:
            print(f"{file}:{line}: {len(text.splitlines())} lines")
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 64
    manifests = [sample for sample in found if sample[2].startswith("// swift-tools-version")]
    with tempfile.TemporaryDirectory(prefix="samples-") as folder:
        folder = pathlib.Path(folder)
        fine = compile_all([sample for sample in found if sample not in manifests], package, folder)
        for number, manifest in enumerate(manifests):
            fine &= read_manifest(*manifest, folder / f"manifest{number}")
    print(f"{len(found)} samples" + ("" if fine else ": not all compile"))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
