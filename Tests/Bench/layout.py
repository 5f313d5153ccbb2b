"""The functions that the gateway uses, one symbol a line: first those that it uses whatever it does, and of these those that
are called most.

Run by ./layout. Clients of tcp, tls and ws listeners talk with TCP servers and ptys, come and go, under callgrind, which counts calls
whatever else the machine does. What is not in the rows, such as Bluetooth, is laid out as the linker found it.
"""

import collections
import fnmatch
import glob
import os
import re
import sys
import tempfile

from cases import CASES
from measure import Bench, Processes, descriptors
from subjects import all_subjects

ROWS = ("tcp-both", "pty-both", "rounds-*", "tls-up", "tls-down", "ws-up-1k", "ws-down", "accepts", "handshakes-*")
SECONDS = 1  # each


def calls(path, program):
    """How often each function of `program` was called, by callgrind's file (its manual, "File Format")."""
    names, objects, counts = {}, {}, collections.Counter()
    caller_is_ours = callee_is_ours = False
    with open(path) as file:
        for line in file:
            word, _, rest = line.rstrip("\n").partition("=")
            number, _, name = rest.partition(" ")
            if word in ("ob", "cob"):
                if name:
                    objects[number] = name
                callee_is_ours = objects[number] == program
                if word == "ob":
                    caller_is_ours = callee_is_ours
            elif word in ("fn", "cfn"):
                if name:
                    names[number] = re.sub(r"'\d+$", "", name)  # how deep in a recursion
                if word == "cfn":
                    callee = names[number]
                elif caller_is_ours:
                    counts[names[number]] += 0  # it ran, though nobody is known to have called it
            elif word == "calls":
                if callee_is_ours:
                    counts[callee] += int(number)
                callee_is_ours = caller_is_ours  # a "cob" holds for one call
    return counts


def profile(bench, case, subject, program):
    with tempfile.TemporaryDirectory(prefix="layout-") as folder, Processes(folder) as processes:
        out = os.path.join(folder, "calls.%p")
        valgrind = ["valgrind", "--tool=callgrind", "--demangle=no", f"--callgrind-out-file={out}"]
        load, _ = bench.prepare(case, subject, processes, prefix=valgrind)
        load.hear("ready")
        load.say("go")
        load.result(within=120)
        load.say("done")
        for process in processes.started[:]:
            processes.end(process)
        [path] = glob.glob(os.path.join(folder, "calls.*"))
        return calls(path, program)


def main():
    program, tools = map(os.path.realpath, sys.argv[1:])  # as callgrind names it
    descriptors()
    bench = Bench(os.path.join(tools, "load"), SECONDS, tools)
    [subject] = (one for one in all_subjects("", [("baudway", program)]) if one.name == "baudway")
    total, rows = collections.Counter(), collections.Counter()
    for case in CASES:
        if any(fnmatch.fnmatch(case.name, row) for row in ROWS):
            counts = profile(bench, case, subject, program)
            if not counts:
                sys.exit(f"{case.name}: callgrind has named no function of {program}")
            total.update(counts)  # adds; a Counter's + would drop those without calls
            rows.update(counts.keys())
            print(f"{case.name}: {len(counts)} functions", file=sys.stderr, flush=True)
    for name in sorted(total, key=lambda name: (-rows[name], -total[name], name)):
        if not name.startswith(("0x", "(")):  # callgrind's own names for what has none
            print(name)


main()
