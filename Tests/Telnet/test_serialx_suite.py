"""serialx's own test suite over `rfc2217://`: two gateways' listeners, with a null-modem cable between their ports.

The suite takes a pair of URLs by its option `--adapter-pair`. Its tests of other backends (socat, ser2net, ESPHome, Windows, the list of
ports) do not apply to a server of ours, and are left out by `-k`: they make servers or ports of their own. Over `socket://` it is not run: its
tests write as soon as both ports are open, and raw TCP has no answer that the gateway has accepted the reader.
"""
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
import servers
from lines import NullModem
from servers import Baudway

SUITE = servers.STATE / "serialx-1.15.1"
CHOSEN = " and not ".join(["ADAPTER", "posix", "SER2NET", "HUB4COM", "ESPHOME"])


def outcomes(folder: str) -> dict[str, str]:
    """Test by test, "passed", "skipped" with the reason, or the cause of the failure."""
    results = f"{folder}/results.xml"
    with NullModem() as cable, gateway(cable.left) as left, gateway(cable.right) as right:
        pair = f"rfc2217://127.0.0.1:{left.port},rfc2217://127.0.0.1:{right.port}"
        done = subprocess.run(
            [servers.PYTHON, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "--adapter-pair", pair, "-k", CHOSEN,
             "--junitxml", results, "tests"], cwd=SUITE, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    found = {}
    for case in ElementTree.parse(results).iter("testcase"):
        problems = [child for child in case if child.tag in ("failure", "error")]
        skipped = case.find("skipped")
        name = re.sub(r"rfc2217://127\.0\.0\.1:\d+", "rfc2217", case.get("name"))
        found[name] = problems[0].get("message") if problems else "skipped" if skipped is not None else "passed"
    return found


def gateway(port) -> Baudway:
    return Baudway(port.path, environment=port.environment)


@pytest.mark.only("baudway")
def test_serialx_s_tests_pass_over_rfc2217(server, folder):
    found = outcomes(folder)
    assert not {name: cause for name, cause in found.items() if cause not in ("passed", "skipped")}
    assert list(found.values()).count("passed") >= 200, found
