"""serialx's own test suite, over two URLs: two gateways' listeners, with a null-modem cable between their ports.

The suite takes a pair of URLs by its option `--adapter-pair`. Its tests of other backends (socat, ser2net, ESPHome, Windows, the list of
ports) do not apply to a server of ours, and are left out by `-k`: they make servers or ports of their own.
"""
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
import servers
from lines import NullModem
from servers import Baudway

SUITE = servers.STATE / "serialx-1.15.1"
LISTEN = {"rfc2217": "telnet://127.0.0.1:0", "socket": "tcp://127.0.0.1:0"}
# Why serialx's `socket://` fails tests, with any server.
CLIENTS = {
    "test_sync_invalid_byte_size": "socket:// does not look at settings; the suite knows that of its own server only",
    "test_async_invalid_byte_size": "the same",
    "test_lifecycle_invalid_kwarg_surfaces_no_callbacks": "the same",
}
# The writer sends right after both connects. A TCP connection exists before the server accepts it, and TCP has no answer that
# the port is open: what arrives at the reader's port before that is lost.
RACES = {"test_lifecycle_close_drains_pending_writes", "test_async_rtscts_setting", "test_sync_context_manager_multiple_times"}


def outcomes(scheme: str, folder: str) -> dict[str, str]:
    """Test by test, "passed", "skipped" with the reason, or the cause of the failure."""
    results = f"{folder}/results.xml"
    with NullModem() as cable, gateway(scheme, cable.left) as left, gateway(scheme, cable.right) as right:
        pair = ",".join(f"{scheme}://127.0.0.1:{end.port}" for end in (left, right))
        done = subprocess.run(
            [servers.PYTHON, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "--adapter-pair", pair,
             "-k", "ADAPTER and not posix and not SER2NET and not HUB4COM and not ESPHOME", "--junitxml", results, "tests"],
            cwd=SUITE, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    found = {}
    for case in ElementTree.parse(results).iter("testcase"):
        problems = [child for child in case if child.tag in ("failure", "error")]
        skipped = case.find("skipped")
        name = re.sub(r"(rfc2217|socket)://127\.0\.0\.1:\d+", r"\1", case.get("name"))
        found[name] = problems[0].get("message") if problems else "skipped" if skipped is not None else "passed"
    return found


def gateway(scheme: str, port) -> Baudway:
    # Raw TCP has no answer that the port is open: what came before must not be discarded. It is not needed over RFC 2217.
    more = {"device": {"flush": "none"}} if scheme == "socket" else {}
    return Baudway(port.path, environment=port.environment, listen=LISTEN[scheme], **more)


def failures(found: dict[str, str]) -> dict[str, str]:
    return {name: cause for name, cause in found.items() if cause not in ("passed", "skipped")}


@pytest.mark.only("baudway")
def test_all_of_serialx_s_tests_pass_over_rfc2217(server, folder):
    found = outcomes("rfc2217", folder)
    assert not failures(found)
    assert list(found.values()).count("passed") >= 200, found


@pytest.mark.only("baudway")
def test_serialx_s_tests_over_raw_tcp_pass_but_for_what_tcp_cannot_carry(server, folder):
    found = outcomes("socket", folder)
    failed = {name.partition("[")[0] for name in failures(found)}
    assert set(CLIENTS) <= failed <= {*CLIENTS, *RACES}, failures(found)
    assert list(found.values()).count("passed") >= 190, found
