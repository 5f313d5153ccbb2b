"""The functions that the gateway uses, one symbol per line: first those it uses in every case, sorted by number of
calls.
Run by ./layout. Clients of tcp, tls and ws listeners exchange bytes with TCP servers and ptys, connect and leave, under
callgrind, which counts calls independently of the machine's load. Code that no case uses, such as Bluetooth, keeps the
linker's order.
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
SECONDS = 1  # per case


def calls(path, program):
    """How often each function of `program` was called, from callgrind's file (its manual, "File Format")."""
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
                    names[number] = re.sub(r"'\d+$", "", name)  # recursion depth
                if word == "cfn":
                    callee = names[number]
                elif caller_is_ours:
                    counts[names[number]] += 0  # it ran, though no caller is known
            elif word == "calls":
                if callee_is_ours:
                    counts[callee] += int(number)
                callee_is_ours = caller_is_ours  # a "cob" applies to one call
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
    program, tools = map(os.path.realpath, sys.argv[1:])  # callgrind uses real paths
    descriptors()
    bench = Bench(os.path.join(tools, "load"), SECONDS, tools)
    [subject] = (one for one in all_subjects("", [("baudway", program)]) if one.name == "baudway")
    total, rows = collections.Counter(), collections.Counter()
    for case in CASES:
        if any(fnmatch.fnmatch(case.name, row) for row in ROWS):
            counts = profile(bench, case, subject, program)
            if not counts:
                sys.exit(f"{case.name}: callgrind has named no function of {program}")
            total.update(counts)  # adds; a Counter's + would drop functions without calls
            rows.update(counts.keys())
            print(f"{case.name}: {len(counts)} functions", file=sys.stderr, flush=True)
    for name in sorted(total, key=lambda name: (-rows[name], -total[name], name)):
        if not name.startswith(("0x", "(")):  # callgrind's own names for functions without one
            print(name)


main()
