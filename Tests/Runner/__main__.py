"""The test runner: runs the steps one after the other, what failed once more, and writes the report.

Read steps.py first: it is the list of steps. Tests/run starts this file.
"""
import argparse
import sys

import flaky
import steps
from report import Report
from step import Failed, Run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="Tests/run", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs the tests, one step after the other. Without options: the gate, which decides whether a change may\n"
        "land. A failed test is run once more, alone, after all steps.\n\n" + steps.listing(),
        epilog="The report is in .build/report.txt, the output of each step in .build/results. The exit code is 0 if all passed.")
    parser.add_argument("--full", action="store_true", help="all steps; those that passed on the same files before are not run again")
    parser.add_argument("--again", action="store_true", help="with --full: run all steps, whatever passed before")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", choices=[s.name for s in steps.ALL],
                        help="only this step, with the builds it needs (may be repeated)")
    parser.add_argument("--filter", default="", metavar="WORDS",
                        help="only tests whose name matches: a regular expression for Swift tests, pytest's -k for the others")
    parser.add_argument("--aims", action="store_true", help="figures must meet their aims (on a quiet machine)")
    parser.add_argument("--long", action="store_true", help="as many executions, bytes and builds as a release needs: hours")
    parser.add_argument("--seed", type=int, default=1, help="seed of the tests that choose at random (1)")
    return parser.parse_args()


def main() -> int:
    run = Run(arguments())
    report = Report(run)
    for step in steps.chosen(run):
        if run.options.full and not run.options.again and not step.builds and report.passed_before(step.name):
            report.add_earlier(step.name)
            continue
        report.start(step.name)
        try:
            report.end(step.name, step.work(run))
        except Failed as failure:
            report.end(step.name, failure)
    flaky.run_again(run, report)
    return report.finish()


sys.exit(main())
