"""The list of steps, in the order in which they run, and what each of them does. --help and Tests/README.md print this list.

The gate has no step that measures time, memory or processor time, that waits long, that searches, or that needs a kernel, a
container, a browser or the network. Those are --full's.
"""
import dataclasses
import os
import platform
import re
import subprocess
import textwrap
from collections.abc import Callable

from python_tests import python_tests
from step import ROOT, Failed, NotTried, Outcome, Run
from swift_tests import swift_tests

MARKED = "timed or measured or raced or waits or heavy"
GATE = f"not ({MARKED} or counts)"


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    what: str
    work: Callable[[Run], Outcome]
    gate: bool = False
    builds: bool = False  # others need its programs, so it is never left out
    needs: tuple[str, ...] = ()


# --- the gate ---------------------------------------------------------------------------------------------------------


def lint(run: Run) -> Outcome:
    """Formats, shell scripts, documents, and that no test has three lines in FLAKY.md."""
    run.must("swift", "format", "lint", "--strict", "-r", "Sources", "Tests", "Package.swift", limit=600)
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True).stdout.splitlines()
    # Found by first line, so that a new script is found wherever it is and whatever its name is.
    run.must("shellcheck", "-x", *[name for name in files if _is_shell(name)], limit=600)
    run.must("/usr/bin/python3", "Tests/Docs/check.py", limit=300)
    documents = python_tests(run, "Tests/Docs", name="documents", limit=300)
    runner = python_tests(run, "Tests/Runner", name="runner", limit=600)
    return Outcome(passed=3) + documents + runner


def _is_shell(name: str) -> bool:
    path = ROOT / name
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return re.match(rb"#!/bin/(ba)?sh|#!/usr/bin/env bash|# shellcheck shell=", file.readline()) is not None


# One set of flags for all builds that are not releases; with others everything would be built anew. Floors: a target may
# import only what Package.swift allows. Package.swift makes warnings errors.
BUILD = ("swift", "build", "--explicit-target-dependency-import-check", "error")


def build(run: Run) -> Outcome:
    """The debug build of everything, and that SwiftNIO is nowhere in the dependency graph."""
    run.must(*BUILD, "--build-tests", limit=2700)
    run.programs["examples"] = run.output(*BUILD, "--show-bin-path")
    graph = run.output("swift", "package", "show-dependencies", "--format", "json")
    if "swift-nio" in graph:
        raise Failed("SwiftNIO is in the dependency graph:\n" + graph)
    return Outcome(passed=2)


def unit(run: Run) -> Outcome:
    """Once as an ordinary user, because root may do what others may not; as root only the suites that need it."""
    outcome = swift_tests(run, ".build", name="unit", user=True, limit=2400, environment={"REPLAY_EVERY": "16"})
    if run.is_root and not run.options.filter:
        outcome += swift_tests(run, ".build", name="unit-root", user=False, limit=900, words=_root_suites())
    return outcome


def _root_suites() -> str:
    suites = []
    for path in sorted(ROOT.glob("Tests/*Tests/*.swift")):
        text = path.read_text()
        if "geteuid() == 0" in text:
            suites += re.findall(r"^struct (\w+)", text, re.M)
    return rf"\.({'|'.join(suites)})/"


def release(run: Run) -> Outcome:
    """The gateway as it is shipped; for the emulated machines also programs of library users."""
    run.programs["baudway"] = run.output("Deploy/build").splitlines()[-1]
    return Outcome(passed=1)


def e2e(run: Run) -> Outcome:
    return _end_to_end(run, "e2e", GATE, limit=3000)


def _end_to_end(run: Run, name: str, marks: str, limit: float, environment=None) -> Outcome:
    """On the release, because that is what ships; as an ordinary user, and as root what needs root or expects other answers."""
    environment = {"BAUDWAY": run.programs["baudway"], "BAUDWAY_EXAMPLES": run.programs["examples"], **(environment or {})}
    outcome = python_tests(
        run, "Tests/EndToEnd", name=name, marks=marks, limit=limit, environment=environment, prefix=run.isolated(user=True),
        knows=("aims", "long"))
    if run.is_root:
        outcome += python_tests(
            run, "Tests/EndToEnd", name=f"{name}-root", marks=f"(root or both) and ({marks})", limit=limit, environment=environment,
            prefix=run.isolated(user=False), knows=("aims", "long"))
    return outcome


# --- what only --full has -----------------------------------------------------------------------------------------------

FULL = {"BAUDWAY_FULL": "1"}


def timed(run: Run) -> Outcome:
    outcome = swift_tests(run, ".build", name="timed", user=True, limit=3600, environment=FULL)
    if run.is_root and not run.options.filter:
        outcome += swift_tests(run, ".build", name="timed-root", user=False, limit=3600, environment=FULL)
    return outcome


def marked(run: Run) -> Outcome:
    _other_programs(run)
    if run.call("Tests/EndToEnd/axe.sh", limit=900, quiet=True) != 0:
        print("axe-core could not be fetched from PyPI: its tests are skipped, by name.")
    return _end_to_end(run, "marked", f"({MARKED}) and not counts", limit=5400, environment=FULL)


def growth(run: Run) -> Outcome:
    return python_tests(
        run, "Tests/EndToEnd", name="growth", marks="counts", limit=3600, environment={"BAUDWAY": run.programs["baudway"], **FULL})


def thread(run: Run) -> Outcome:
    """The examples of the libraries under ThreadSanitizer, too."""
    folder, library = ".build/sanitize-thread", ROOT / ".build" / "sanitize-mutex.so"
    run.must(*BUILD, "--build-tests", "--sanitize=thread", "--scratch-path", folder, limit=5400)
    # ThreadSanitizer does not see Swift's Mutex without this. The compiler that belongs to swift: gcc does not support
    # Swift's calling convention.
    clang = os.path.join(os.path.dirname(os.path.realpath(run.output("which", "swift"))), "clang")
    run.must(clang, "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", library, "Tests/Sanitizers/mutex.c", limit=300)
    preload = {"LD_PRELOAD": str(library), **({} if run.options.long else {"REPLAY_EVERY": "8"})}
    outcome = swift_tests(run, folder, name="thread", user=True, limit=3600, environment=preload)
    examples = run.output(*BUILD, "--sanitize=thread", "--scratch-path", folder, "--show-bin-path")
    return outcome + python_tests(
        run, "Tests/EndToEnd/test_library_examples.py", name="thread-examples", limit=1800, prefix=run.isolated(user=True),
        environment={"BAUDWAY": run.programs["baudway"], "BAUDWAY_EXAMPLES": examples, "BAUDWAY_EXAMPLES_PRELOAD": str(library)})


def address(run: Run) -> Outcome:
    # LeakSanitizer reports memory that Swift's runtime keeps. The tests look for leaks by counting descriptors instead.
    folder = ".build/sanitize-address"
    run.must(*BUILD, "--build-tests", "--sanitize=address", "--scratch-path", folder, limit=5400)
    environment = {"ASAN_OPTIONS": "detect_leaks=0", **({} if run.options.long else {"REPLAY_EVERY": "4"})}
    return swift_tests(run, folder, name="address", user=True, limit=3600, environment=environment)


def docs(run: Run) -> Outcome:
    """DocC without a warning, each public symbol documented, the interface as in Docs/interface, each code sample compiled."""
    run.must("Docs/build", limit=1800)
    run.must("Tests/Docs/interface.py", ".build/docs/graphs", limit=300)
    run.must("Tests/Docs/samples.py", limit=1800)
    return Outcome(passed=3)


def library(run: Run) -> Outcome:
    run.must("Tests/Library/run", limit=3600, quiet=False)
    return Outcome(passed=1)


def telnet(run: Run) -> Outcome:
    _other_programs(run)
    return python_tests(run, "Tests/Telnet", name="telnet", limit=5400, environment={"BAUDWAY": run.programs["baudway"], **FULL},
                        knows=("aims",))


def _other_programs(run: Run):
    if run.call("Tests/Telnet/prepare", limit=900, quiet=True) != 0:
        print("Programs of others could not be fetched from PyPI and Debian: their tests are skipped, by name.")


def _machine(run: Run) -> dict[str, str]:
    """Makes the emulated machines' files and programs; returns the environment of their tests."""
    if platform.machine() != "x86_64":
        raise NotTried("the emulated machine runs this machine's programs, and is made for x86-64")
    run.must("bash", "-c", '. Deploy/packages.sh; install_packages "$@"', "install", "qemu-system-x86", "busybox-static", "kmod", "cpio", "xz-utils",
             "zstd", "python3-venv", "gcc", "libc6-dev", "dbus-daemon", "dbus-bin", "dbus-system-bus-common", "libglib2.0-0", "libdbus-1-3",
             "libudev1", "libasound2", "libdw1", "libreadline8", limit=900)  # what bluetoothd needs; itself it is unpacked, not installed
    run.must("Tests/Guest/image", limit=1800)
    for product in ("library-probe", "foundation-streams"):
        run.programs[product] = run.output("Deploy/build", product).splitlines()[-1]
    return {
        "BAUDWAY": run.programs["baudway"], "LIBRARY_PROBE": run.programs["library-probe"],
        "FOUNDATION_STREAMS": run.programs["foundation-streams"], **FULL,
        **({"OPENINGS": "300", "STREAM_BYTES": "3145728"} if run.options.long else {})
    }


def monitoring(run: Run) -> Outcome:
    if run.call("Tests/Monitoring/prepare", limit=900) == 75:
        raise NotTried("Debian's Prometheus could not be fetched")
    return python_tests(run, "Tests/Monitoring", name="monitoring", limit=1800, environment={"BAUDWAY": run.programs["baudway"], **FULL})


def guest(run: Run) -> Outcome:
    return python_tests(run, "Tests/Guest", name="guest", limit=5400, environment=_machine(run), knows=("aims",))


def bluetooth(run: Run) -> Outcome:
    environment = _machine(run)
    run.must("Tests/Bluetooth/prepare", limit=900)
    return python_tests(run, "Tests/Bluetooth", name="bluetooth", limit=5400, environment=environment, options=("--durations=12",),
                        knows=("aims",))


def autobahn(run: Run) -> Outcome:
    """The quick groups; with --long all 517 cases, four times."""
    run.must("Tests/Conformance/autobahn/run", "--prepare", limit=1800)
    words = ["--long"] if run.options.long else []
    run.must("Tests/Conformance/autobahn/run", *words, limit=7200 if run.options.long else 900, quiet=False)
    return Outcome(passed=1)


def scanners(run: Run) -> Outcome:
    run.must("Tests/Conformance/scanners/run", "--prepare", limit=900)
    run.must("Tests/Conformance/scanners/run", limit=3600, environment={"BAUDWAY": run.programs["baudway"]}, quiet=False)
    return Outcome(passed=1)


def service(run: Run) -> Outcome:
    return _script(run, "Tests/EndToEnd/unit.sh", limit=2700)


def package(run: Run) -> Outcome:
    outcome = _script(run, "Tests/Package/run", *(["--long"] if run.options.long else []), limit=3600)
    for name in ("release", "arm64", "machine") if run.options.long else ():
        outcome += _script(run, f"Tests/Package/{name}", limit=7200)
    return outcome


def image(run: Run) -> Outcome:
    words = ["--long"] if run.options.long else []
    return _script(run, "Tests/EndToEnd/image.sh", *words, limit=7200 if run.options.long else 3600)


def bare(run: Run) -> Outcome:
    words = ["--tests"] if run.options.long else []
    return _script(run, "Tests/EndToEnd/bare.sh", *words, limit=14400 if run.options.long else 5400)


def faults(run: Run) -> Outcome:
    """The same choices as last time, then others, whose seed is printed."""
    if run.options.long:
        return _script(run, "Tests/Faults/run", "--seconds", "1800", limit=5400)
    return _script(run, "Tests/Faults/run", "--seconds", "30", "--seed", str(run.options.seed), limit=1800) + \
        _script(run, "Tests/Faults/run", "--seconds", "30", limit=1800)


def attacks(run: Run) -> Outcome:
    if not run.is_root:
        raise NotTried("network namespaces need root")
    return _script(run, "Tests/Faults/attacks", "--seconds", "600" if run.options.long else "25", limit=5400)


def fuzz(run: Run) -> Outcome:
    """By number of executions, so that a slow machine searches no less."""
    command = ["Tests/Fuzz/run", "--seed", str(run.options.seed)]
    if run.options.long:
        run.must(*command, "--runs", "10000000", limit=43200, quiet=False)
    else:
        run.must(*command, "--address", "--runs", "50000", "--jobs", "2", limit=5400, quiet=False)
    return Outcome(passed=1)


def _script(run: Run, *command: str, limit: float) -> Outcome:
    """A script that prints `ok: …` and `FAIL: …`."""
    code = run.call(*command, limit=limit, environment={"BAUDWAY": run.programs["baudway"]})
    run.log.flush()
    text = (ROOT / run.log.name).read_text(errors="replace")
    if code == 75:
        raise NotTried(f"{command[0]} could not fetch what it needs")
    if code != 0:
        raise Failed(f"{command[0]} failed (exit code {code})")
    return Outcome(passed=max(1, len(re.findall(r"^ok: ", text, re.M))), skipped=len(re.findall(r"^skipped", text, re.M)))


ALL = (
    Step("lint", "format of Swift, shellcheck, links and words of documents, the runner's own tests", lint, gate=True),
    Step("build", "debug build with floors, warnings as errors; no SwiftNIO", build, gate=True, builds=True),
    Step("unit", "unit tests and all inputs that fuzzers have found, as an ordinary user; as root what needs root", unit, gate=True,
         needs=("build",)),
    Step("release", "the gateway as it is shipped", release, gate=True, builds=True),
    Step("e2e", "end to end on the release, as an ordinary user; as root what needs root", e2e, gate=True, needs=("build", "release")),
    Step("timed", "unit tests with those that measure time, as both", timed, needs=("build",)),
    Step("marked", "end-to-end tests that measure, race, wait long or are heavy", marked, needs=("build", "release")),
    Step("docs", "the libraries' documentation, interface and code samples", docs),
    Step("library", "packages of library users", library),
    Step("thread", "unit tests and examples under ThreadSanitizer", thread, needs=("release",)),
    Step("address", "unit tests under AddressSanitizer", address),
    Step("growth", "instructions with a growing number of routes, under Valgrind", growth, needs=("release",)),
    Step("telnet", "telnet and RFC 2217 programs of others, pyserial's own suite, esptool", telnet, needs=("release",)),
    Step("monitoring", "Debian's Prometheus with the shipped alert rules and dashboard", monitoring, needs=("release",)),
    Step("guest", "real serial drivers in an emulated machine", guest, needs=("release",)),
    Step("bluetooth", "Bluetooth in an emulated machine", bluetooth, needs=("release",)),
    Step("autobahn", "Autobahn's WebSocket cases, server and client", autobahn),
    Step("scanners", "sslyze and testssl.sh on a TLS listener, schemathesis and wapiti on the API", scanners, needs=("release",)),
    Step("service", "the systemd unit in a booted Debian", service, needs=("release",)),
    Step("package", "the Debian package: lintian, install, upgrade, remove", package, needs=("release",)),
    Step("image", "container images, compose, pod", image, needs=("release",)),
    Step("bare", "Deploy/run on a bare Debian 12", bare, needs=("release",)),
    Step("faults", "faults under traffic", faults, needs=("release",)),
    Step("attacks", "attacks from a network namespace", attacks, needs=("release",)),
    Step("fuzz", "fuzzers under AddressSanitizer, by number of executions", fuzz),
)


def chosen(run: Run) -> list[Step]:
    """The steps of this run, in order, with the builds that they need."""
    if not run.options.only:
        return [step for step in ALL if step.gate or run.options.full]
    names = set(run.options.only)
    names.update(need for step in ALL if step.name in names for need in step.needs)
    return [step for step in ALL if step.name in names]


def listing() -> str:
    lines = []
    for title, gate in (("The gate", True), ("Only with --full", False)):
        lines.append(f"{title}:")
        for step in ALL:
            if step.gate == gate:
                lines += textwrap.wrap(step.what, 100, initial_indent=f"  {step.name:<10} ", subsequent_indent=" " * 13)
    return "\n".join(lines)
