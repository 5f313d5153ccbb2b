"""pyserial's own test suite over `rfc2217://`, to a port with modem lines and to a bare pty."""
import pytest
import suite
from lines import Loop, WiredLoop
from servers import SERVERS
from suite import CLIENTS, NO_LINES

# The names of the tests that the controls pass, where they are not all: ser2net answers no SET-CONTROL of DTR and RTS on a pty, and
# pyserial's server ends its thread at the first look at the modem lines.
CONTROLS_ON_A_PTY = suite.NOT_OPENED


def outcomes(server: str, port, names=None) -> dict[str, str]:
    """Test by test, the cause of its failure, or "" """
    causes = {}
    with port, SERVERS[server](port.path, environment=port.environment) as served:
        for name in names or suite.names():
            causes[name] = suite.run(served.url, name)["cause"]
    passed = sum(not cause for cause in causes.values())
    print(f"{server}: {passed} of {len(causes)}", *(f"{name}: {cause}" for name, cause in causes.items() if cause), sep="\n")
    return causes


def test_the_suite_has_the_tests_that_are_listed_here():
    assert (len(suite.all_names()), len(suite.names())) == (61, 42)
    assert {*CLIENTS, *NO_LINES, *suite.NOT_OPENED} <= set(suite.names())


@pytest.mark.waits
@pytest.mark.timeout(600)
def test_a_port_with_modem_lines_passes_all_that_the_client_can(server):
    causes = outcomes(server, WiredLoop())
    assert {name for name, cause in causes.items() if cause} == set(CLIENTS)


@pytest.mark.waits
@pytest.mark.timeout(600)
def test_a_bare_pty_passes_all_but_what_needs_modem_lines(server):
    causes = outcomes(server, Loop())
    passed = {name for name, cause in causes.items() if not cause}
    if server == "baudway":
        assert set(causes) - passed <= {*CLIENTS, *NO_LINES}
    else:
        assert passed == CONTROLS_ON_A_PTY
