#!/usr/bin/python3
"""pyserial's own test suite, over a URL.

    suite.py URL [NAME...]     runs the tests that apply to a URL, or these: a line of JSON for each, then the counts

A process for each test, because some would wait forever on a port that does not answer.
"""
import json
import os
import subprocess
import sys
import time
import unittest

import servers

TESTS = servers.PYSERIAL / "test"
# Of the suite's 61 tests these do not apply to a URL.
OTHERS = {
    "test_cancel": "the client for rfc2217:// has no cancel_read and no cancel_write",
    "test_exclusive": "for local ports; it skips itself for others",
    "test_pty": "opens ptys of its own",
    "test_rfc2217": "connects to closed ports of its own",
    "test_timeout_class": "opens no port",
    "test_url": "opens no port",
    "test_util": "opens no port",
}
# These make a port's object and do not open it, so they pass without a server.
NOT_OPENED = {
    "test_advanced.Test_ChangeAttributes." + name for name in (
        "test_BytesizeSetting", "test_ParitySetting", "test_RtsCtsSetting", "test_StopbitsSetting", "test_TimeoutSetting",
        "test_XonXoffSetting")
} | {
    "test_settings_dict.Test_SettingsDict." + name for name in (
        "test_getsettings", "test_init_sets_the_correct_attrs", "test_partial_settings", "test_unknown_settings")
} | {"test_rs485.Test_RS485_settings.test_enable_RS485"}

# The client's own: no server can make these pass.
CLIENTS = {
    "test.Test_MoreTimeouts.test_WriteTimeout": "the client has no write timeout",
    "test.Test4_Nonblocking.test2_Loopback": "with a timeout of 0 the client returns one byte of a read, whatever it has",
    "test.Test4_Nonblocking.test2_LoopbackTimeout": "with a timeout of 0 the client returns one byte of a read, whatever it has",
    "test_rs485.Test_RS485_class.test_RS485_class": "skips itself where the port is not local",
}
# What a bare pty cannot pass, and why.
NO_LINES = {
    "test.Test0_DataWires.test1_RTS": "a pty has no CTS",
    "test.Test0_DataWires.test2_DTR": "a pty has no DSR",
    "test.Test0_DataWires.test3_RI": "a pty has no RI; a server that knows no modem lines notifies of none",
}


def load(module: str):
    sys.path[:0] = [str(TESTS), str(servers.PYSERIAL)]
    return __import__(module)


def all_names() -> list[str]:
    names = []

    def walk(suite):
        for test in suite:
            if isinstance(test, unittest.TestSuite):
                walk(test)
            else:
                names.append(test.id())

    for path in sorted(TESTS.glob("test*.py")):
        walk(unittest.defaultTestLoader.loadTestsFromModule(load(path.stem)))
    return names


def names() -> list[str]:
    """The tests that apply to a URL."""
    return [name for name in all_names() if name.split(".")[0] not in OTHERS]


def run_here(url: str, name: str):
    module, kind, function = name.split(".")
    loaded = load(module)
    loaded.PORT = url
    result = unittest.TestResult()
    getattr(loaded, kind)(function).run(result)
    problems = result.errors + result.failures
    cause = problems[0][1].strip().splitlines()[-1] if problems else ""
    if result.skipped:
        cause = "skipped: " + result.skipped[0][1]
    sys.stdout.write(json.dumps({"passed": not cause, "cause": cause}))
    sys.stdout.flush()
    os._exit(0)  # its threads may wait forever


def run(url: str, name: str, seconds: float = 30) -> dict:
    """Runs one test: name, whether it passed, cause and seconds."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--here", url, name], capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL,
            env=servers.program_environment(), cwd=TESTS)
        outcome = json.loads(done.stdout or json.dumps({"passed": False, "cause": done.stderr[-300:]}))
    except subprocess.TimeoutExpired:
        outcome = {"passed": False, "cause": f"not over within {seconds:g} s"}
    return {"name": name, **outcome, "seconds": round(time.monotonic() - start, 2)}


def main():
    if sys.argv[1:2] == ["--here"]:
        return run_here(*sys.argv[2:])
    url, chosen = sys.argv[1], sys.argv[2:] or names()
    outcomes = []
    for name in chosen:
        outcomes.append(run(url, name))
        print(json.dumps(outcomes[-1]), flush=True)
    print(json.dumps({"url": url, "tests": len(outcomes), "passed": sum(outcome["passed"] for outcome in outcomes)}))


if __name__ == "__main__":
    main()
