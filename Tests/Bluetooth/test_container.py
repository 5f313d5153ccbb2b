"""Checks what Deploy/README.md says about Bluetooth in containers, with their building blocks: own or host network, the
image's user or root, capabilities. Tests/EndToEnd/image.sh tests the image itself."""
import pathlib
import re

import pytest

from kit import ROOT, binary, until
from radio import HM10, LOCKED, SERIAL
from rig import GuestGateway, route
from test_ble import bare
from test_rfcomm import answers, config, said
from test_rfcomm_listener import limits

PAIRED = f"ble://FFE0/{LOCKED}?address-type=random"
BONDS = "/var/lib/baudway"
# As container runtimes drop them: a non-root user has none after the start.
IMAGE_USER = ["--reuid", "900", "--regid", "20"]
ROOT_USER = ["--reuid", "0", "--regid", "20"]


def given() -> list[str]:
    """The capabilities in the page's command."""
    page = pathlib.Path(ROOT / "Deploy/README.md").read_text()
    command = re.search(r"^    docker run .*NET_ADMIN(?:.*\\\n)*.*\n", page, re.M)[0]
    assert "--cap-drop ALL" in command and "--user 0:20" in command and "--network host" in command
    return re.findall(r"--cap-add (\w+)", command)


def contained(guest, served: dict, user: list[str], capabilities=(), before=(), **more) -> GuestGateway:
    """`before`: a command that prepares the environment, still with all rights."""
    gateway = GuestGateway(guest, served, **more)
    gateway.folder.chmod(0o755)
    gateway.prefix += [*before, "env", "-u", "RUNTIME_DIRECTORY", "setpriv", *user, "--clear-groups", "--no-new-privs", "--bounding-set",
                       ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])]
    return gateway


def effective(guest) -> int:
    pid = guest.ask("busybox pidof baudway").split()[0]
    return int(guest.ask(f"grep CapEff /proc/{pid}/status").split()[1], 16)


def test_a_container_with_its_own_network_reports_the_missing_bluetooth(air, guest):
    served = {"routes": {
        "classic": route(f"rfcomm://{SERIAL}:3", device={"open": "always"}), "le": route(f"ble://FFE0/{HM10}", device={"open": "always"}),
        "door": route("sim://echo", listen="rfcomm://?channel=4")}}
    alone = ["unshare", "--net"]
    with contained(guest, served, ROOT_USER, given(), alone, ready=2) as gateway:
        for told in (lambda: said(gateway, "classic"), lambda: said(gateway, "le"), lambda: limits(gateway, "listener waiting")):
            until(lambda: "EAFNOSUPPORT" in told() and "the host's network" in told(), 30, "what is missing and what to do")
    done = guest.run(f"unshare --net {binary()} scan", 30)
    assert done.returncode == 69 and "the host's network" in done.stderr.decode(), done
    assert "No Bluetooth: the kernel does not support it, or this container" in guest.ask(f"unshare --net {binary()} devices", 30)


def test_without_an_adapter_the_gateway_reports_it_and_waits(air, guest):
    air.pull()
    served = config(f"rfcomm://{SERIAL}:3", open="always")
    served["routes"]["door"] = route("sim://echo", listen="rfcomm://?channel=4")
    with contained(guest, served, ROOT_USER, given(), ready=1) as gateway:
        until(lambda: "this machine has no Bluetooth adapter" in said(gateway), 30, "what is missing")
        until(lambda: "no Bluetooth adapter" in limits(gateway, "listener waiting"), 30, "what is missing")
        air.plug(on=False)
        gateway.event("link open", seconds=60)


def test_the_images_user_connects_by_address_and_missing_capabilities_are_reported(air, guest):
    with bare(guest, f"ble://FFE0/{HM10}?address-type=public", "+net_admin") as gateway, gateway.connect("radio"):
        gateway.event("link open", seconds=40)  # Low Energy is on now
    served = config(f"rfcomm://{SERIAL}:3")
    served["routes"]["le"] = route(f"ble://FFE0/{HM10}?address-type=public")
    served["routes"]["scan"] = route("ble://FFE0")
    served["routes"]["door"] = route("sim://echo", listen="rfcomm://?channel=4&discoverable=yes")
    with contained(guest, served, IMAGE_USER, given()) as gateway:
        assert effective(guest) == 0
        with gateway.connect("radio") as classic, gateway.connect("le") as le, gateway.connect("scan"):
            for name, client in (("radio", classic), ("le", le)):
                gateway.event("link open", seconds=40, route=name)
                answers(client, b"hello")
            until(lambda: "scanning needs CAP_NET_ADMIN" in said(gateway, "scan"), 30, "what is missing")
        until(lambda: "CAP_NET_BIND_SERVICE" in limits(gateway) and "CAP_NET_ADMIN" in limits(gateway), 30, "what is missing")
        air.adapter("down")
        with gateway.connect("radio"):
            until(lambda: "switching it on needs CAP_NET_ADMIN" in said(gateway), 30, "what is missing")


@pytest.mark.parametrize("is_writable", [True, False], ids=["with the volume", "read-only"])
def test_root_with_the_documented_capabilities_switches_on_pairs_and_keeps_bonds(air, guest, is_writable):
    air.pull()
    air.plug(on=False)
    guest.ask(f"mkdir -p -m 755 {BONDS}")
    # A read-only file system, in its own mount namespace.
    sealed = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o ro none {BONDS}; exec \"$@\"", "sh"]
    with contained(guest, config(PAIRED), ROOT_USER, given(), () if is_writable else sealed) as gateway:
        assert effective(guest) == 1 << 12 | 1 << 10
        with gateway.connect("radio") as client:
            gateway.event("link open", seconds=60)
            answers(client, b"secret")
        if is_writable:
            gateway.event("bond kept", seconds=30)
            assert LOCKED in guest.ask(f"cat {BONDS}/bonds")
        else:
            assert "EROFS" in gateway.event("bonds not kept", seconds=30)["error"]
            assert not gateway.events("bond kept")
