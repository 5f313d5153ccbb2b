"""Baudway and its peers, interleaved in one run; README.md explains the results.

Run by ./run, which builds what is needed first.
"""

import argparse
import datetime
import fnmatch
import os
import platform
import signal
import sys

import report
from cases import CASES
from measure import Bench, Broken, NotMeasured, descriptors
from subjects import all_subjects

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser(prog="Tests/Bench/run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is run (default 3)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of each run (default 1.5)")
    parser.add_argument("--rows", default="*", help="only these rows, by shell patterns: 'tcp-*,rounds-pty-1'")
    parser.add_argument("--subjects", help="only these, by name: 'baudway,gensiot'")
    parser.add_argument("--subject", action="append", default=[], metavar="NAME=PATH", help="another baudway binary")
    parser.add_argument("--quick", action="store_true", help="one short round with the best peers only")
    parser.add_argument("--instructions", action="store_true", help="count instructions too (needs valgrind)")
    parser.add_argument("--count-tuned", action="store_true", help="haproxy-64k and nginx-64k count for the bars too")
    parser.add_argument("--output", metavar="FILE.md", help="write the table into Tests/Bench/results/")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--load", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--relay", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--certificate", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--baudway", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 1.0)
    return options


def chosen_cases(options):
    patterns = options.rows.split(",")
    return [
        case
        for case in CASES
        if any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns)
        and (case.how != "callgrind" or options.instructions)
    ]


def chosen_subjects(options):
    baudways = [("baudway", options.baudway)] if options.baudway else []
    for word in options.subject:
        name, _, path = word.partition("=")
        if not path or not os.access(path, os.X_OK):
            sys.exit(f"--subject {word}: NAME=PATH of a program is wanted")
        baudways.append((name, os.path.abspath(path)))
    subjects = all_subjects(options.relay, baudways, options.count_tuned)
    if options.subjects:
        names = options.subjects.split(",")
        if unknown := set(names) - {subject.name for subject in subjects}:
            sys.exit(f"--subjects: no {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in subjects)}")
        subjects = [subject for subject in subjects if subject.name in names]
    chosen = [subject.name for subject in subjects]
    return subjects, [name for name, _ in baudways if name in chosen]


def wanted(case, subject, baudways, options):
    return not options.quick or options.subjects or subject.name in (*baudways, *case.peers)


def measure_all(options, cases, subjects, baudways):
    bench, results = Bench(options.load, options.seconds, options.certificate), report.Results()
    for round_number in range(options.rounds):
        # A B C, B C A, …: no subject always runs right after the same one.
        shift = round_number % len(subjects)
        turn = subjects[shift:] + subjects[:shift]
        for case in cases:
            if case.once and round_number:
                continue
            for subject in turn:
                if not wanted(case, subject, baudways, options):
                    continue
                place = f"round {round_number + 1} {case.name:14} {subject.name:14}"
                try:
                    values = bench.measure(case, subject)
                    results.add(case, subject, round_number, values)
                    known = [metric for metric in case.metrics if metric.name in values]
                    told = ", ".join(f"{m.unit} {report.number(values[m.name], m.digits)}" for m in known)
                except Broken as what:
                    results.add_reason(case, subject, "BROKEN", str(what))
                    told = f"BROKEN: {what}"
                except NotMeasured as why:
                    results.add_reason(case, subject, "–", str(why))
                    told = f"– {why}"
                print(place, told, file=sys.stderr, flush=True)
    return results


def machine():
    model = "unknown processor"
    with open("/proc/cpuinfo") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), model)
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    kernel = f"Linux {platform.release()}"
    return f"{model}, {os.cpu_count()} cores, {kernel}, {system}, {descriptors():,} descriptors a process"


def write_report(options, cases, subjects, baudways, results, load_before):
    baudway = baudways[0] if baudways else None
    now = datetime.datetime.now(datetime.timezone.utc)
    parts = [
        f"# Bench, {now:%Y-%m-%d %H:%M} UTC",
        f"{machine()}. {options.rounds} round(s) of {options.seconds:g} s a run, load average {load_before} before. "
        "Medians, ± half the spread; ratios are formed within a round; every byte was compared.",
        report.table(results, cases, subjects, baudway),
    ]
    if baudway:
        parts.append(report.verdict(results, cases, subjects, baudway))
    for other in baudways[1:]:
        parts.append(report.against(results, cases, baudway, other))
    parts.append(report.notes(results, cases, subjects))
    text = "\n\n".join(parts) + "\n"
    print(text)
    if options.output:
        path = os.path.join(HERE, "results", os.path.basename(options.output))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        print(f"written to {path}", file=sys.stderr)


def main():
    options = arguments()
    cases = chosen_cases(options)
    if options.list:
        for case in cases:
            print(f"{case.name:16} {case.title}")
        return
    subjects, baudways = chosen_subjects(options)
    if not cases or not subjects:
        sys.exit("nothing to run: see --list")
    # SIGTERM must also end the running programs, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    descriptors()
    load_before = " ".join(f"{value:.2f}" for value in os.getloadavg())
    results = measure_all(options, cases, subjects, baudways)
    write_report(options, cases, subjects, baudways, results, load_before)
    # Baudway does every case, so a case that is broken or not measured for it is a failure.
    if any(name in baudways for _, name in results.reasons):
        sys.exit(1)


if __name__ == "__main__":
    main()
