"""pyserial's own test suite over `rfc2217://` to a 16550 in loopback, whose CTS follows RTS and whose DSR follows DTR. The client is on
the host. RFC2217_SERVER=ser2net runs the suite over ser2net in the machine, as a control.
"""
import contextlib
import os
import pathlib
import sys

import pytest

from kit import until
from rig import PROGRAMS, UART, FarEnd, GuestGateway

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "Telnet"))
import servers  # noqa: E402
import suite  # noqa: E402

SERVER = os.environ.get("RFC2217_SERVER", "baudway")
PORT = 2217  # ser2net's, inside the machine


@contextlib.contextmanager
def baudway(guest):
    config = {"listen": "telnet://0.0.0.0:0", "endpoint": f"tty://{UART}", "device": {"open": "always"}}
    with GuestGateway(guest, {"routes": {"port": config}}) as gateway:
        gateway.event("link open")
        guest.ask(f"{PROGRAMS}/port loop $(busybox pidof baudway) {UART} on")
        yield gateway.address("port")
        guest.ask(f"{PROGRAMS}/port loop $(busybox pidof baudway) {UART} off")


@contextlib.contextmanager
def ser2net(guest):
    """It opens the port for each client. So the loopback is set through another process that keeps the port open."""
    config = servers.ser2net_config(PORT, servers.serialdev(UART), host="0.0.0.0")
    guest.ask(f"cat >/run/ser2net.yaml <<'E'\n{config}E\n")
    with guest.call(f"exec 3<>{UART}; echo $$; exec busybox sleep 1000") as keeper:
        pid = keeper.until(lambda text: text.endswith("\n") and text.strip())
        guest.ask(f"{PROGRAMS}/port loop {pid} {UART} on")
        with guest.call(f"exec {servers.SER2NET} -n -d -c /run/ser2net.yaml") as server:
            until(lambda: f":{PORT} " in guest.ask("busybox netstat -ltn"), 20, "ser2net listens")
            yield guest.forwarded_address(PORT)
            server.signal(15)
        guest.ask(f"{PROGRAMS}/port loop {pid} {UART} off")


def cause(url: str, name: str) -> str:
    """Why a test does not pass. It gets three tries: it waits 50 ms for bytes, too short for an emulated machine that is busy."""
    for _ in range(1 if name in suite.CLIENTS else 3):
        if not (found := suite.run(url, name, 60)["cause"]):
            break
    return found


@pytest.mark.timeout(900)
@pytest.mark.skipif(not (servers.STATE / "versions").exists(), reason="Tests/Telnet/prepare has not got pyserial's sources")
def test_pyserials_own_suite_passes_all_that_its_client_can(guest):
    with FarEnd(guest, "uart"), {"baudway": baudway, "ser2net": ser2net}[SERVER](guest) as (host, port):
        causes = {name: cause(f"rfc2217://{host}:{port}", name) for name in suite.names()}
    print(*(f"{name}: {cause}" for name, cause in causes.items() if cause), sep="\n")
    assert {name for name, cause in causes.items() if cause} == set(suite.CLIENTS)
