"""What Deploy/README.md says of Bluetooth in containers, with what they are made of: a network of its own or the host's, the image's
user or root, capabilities. The image itself is tried by Tests/EndToEnd/image.sh."""
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
# As container runtimes drop them. Who is not root has none after the start.
IMAGE_USER = ["--reuid", "900", "--regid", "20"]
ROOT_USER = ["--reuid", "0", "--regid", "20"]


def given() -> list[str]:
    """The capabilities of the page's command."""
    page = pathlib.Path(ROOT / "Deploy/README.md").read_text()
    command = re.search(r"^    docker run .*NET_ADMIN(?:.*\\\n)*.*\n", page, re.M)[0]
    assert "--cap-drop ALL" in command and "--user 0:20" in command and "--network host" in command
    return re.findall(r"--cap-add (\w+)", command)


def contained(guest, served: dict, user: list[str], capabilities=(), before=(), **more) -> GuestGateway:
    """`before`: what sets the stage for it, while it may do everything."""
    gateway = GuestGateway(guest, served, **more)
    gateway.folder.chmod(0o755)
    gateway.prefix += [*before, "env", "-u", "RUNTIME_DIRECTORY", "setpriv", *user, "--clear-groups", "--no-new-privs", "--bounding-set",
                       ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])]
    return gateway


def effective(guest) -> int:
    pid = guest.ask("busybox pidof baudway").split()[0]
    return int(guest.ask(f"grep CapEff /proc/{pid}/status").split()[1], 16)


def test_in_a_network_of_its_own_there_is_no_bluetooth_and_the_hosts_is_named(air, guest):
    served = {"routes": {
        "classic": route(f"rfcomm://{SERIAL}:3", device={"open": "always"}), "le": route(f"ble://FFE0/{HM10}", device={"open": "always"}),
        "door": route("sim://echo", listen="rfcomm://?channel=4")}}
    alone = ["unshare", "--net"]
    with contained(guest, served, ROOT_USER, given(), alone, ready=2) as gateway:
        for told in (lambda: said(gateway, "classic"), lambda: said(gateway, "le"), lambda: limits(gateway, "listener waiting")):
            until(lambda: "EAFNOSUPPORT" in told() and "the host's network" in told(), 30, "what is missing and what to do")
    done = guest.run(f"unshare --net {binary()} scan", 30)
    assert done.returncode == 69 and "the host's network" in done.stderr.decode(), done
    assert "No Bluetooth: the kernel has none, or keeps it from this container" in guest.ask(f"unshare --net {binary()} devices", 30)


def test_without_an_adapter_it_says_so_and_waits_for_one(air, guest):
    air.pull()
    served = config(f"rfcomm://{SERIAL}:3", open="always")
    served["routes"]["door"] = route("sim://echo", listen="rfcomm://?channel=4")
    with contained(guest, served, ROOT_USER, given(), ready=1) as gateway:
        until(lambda: "this machine has no Bluetooth adapter" in said(gateway), 30, "what is missing")
        until(lambda: "no Bluetooth adapter" in limits(gateway, "listener waiting"), 30, "what is missing")
        air.plug(on=False)
        gateway.event("link open", seconds=60)


def test_the_images_user_loses_what_is_given_and_reaches_what_is_named_and_is_told_what_takes_more(air, guest):
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
            until(lambda: "scanning takes CAP_NET_ADMIN" in said(gateway, "scan"), 30, "what is missing")
        until(lambda: "CAP_NET_BIND_SERVICE" in limits(gateway) and "CAP_NET_ADMIN" in limits(gateway), 30, "what is missing")
        air.adapter("down")
        with gateway.connect("radio"):
            until(lambda: "switching it on takes CAP_NET_ADMIN" in said(gateway), 30, "what is missing")


@pytest.mark.parametrize("is_writable", [True, False], ids=["with the volume", "read-only"])
def test_root_with_the_pages_capabilities_switches_on_and_pairs_and_keeps_bonds_where_it_can(air, guest, is_writable):
    air.pull()
    air.plug(on=False)
    guest.ask(f"mkdir -p -m 755 {BONDS}")
    # A file system that can't be written, in a view of its own.
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
