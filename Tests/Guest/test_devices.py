"""`baudway devices` in a machine with a UART and a USB adapter."""
import json

from kit import receive
from rig import UART, USB, GuestGateway, route


def devices(gateway: GuestGateway) -> dict:
    """The listed ports by node."""
    done = gateway.command("devices", "--json", seconds=30)
    assert (done.returncode, done.stderr) == (0, "")
    return {port["node"]: port for port in json.loads(done.stdout)["serial"]}


def test_ports_are_listed_with_their_holders_and_working_urls(guest, adapter):
    with GuestGateway(guest, {"routes": {"uart": route(f"tty://{UART}", device={"open": "always"})}}) as served:
        served.event("link open", route="uart")
        listed = devices(served)
        assert [holder["program"] for holder in listed[UART]["held-by"]] == ["baudway"]
        usb = listed[USB]
        assert usb["usb"]["serial"] == adapter.serial and usb["held-by"] == []
        assert usb["url"] == f"tty://usb/{usb['usb']['vendor']}:{usb['usb']['product']}/{adapter.serial}"
        table = served.command("devices", seconds=30).stdout
        assert usb["url"] in table and f"baudway ({listed[UART]['held-by'][0]['pid']})" in table
    adapter.echo = True
    with GuestGateway(guest, {"routes": {"usb": route(usb["url"])}}) as served, served.connect("usb") as client:
        client.settimeout(30)
        client.sendall(b"pasted")
        assert receive(client, 6) == b"pasted"
        (shown,) = json.loads(served.command("status", "--json", seconds=30).stdout)["routes"]
        said = usb["usb"]
        assert shown["state"]["device"] == {
            "manufacturer": said["manufacturer"], "model": said["name"], "serial": said["serial"]}
        assert served.event("device known")["manufacturer"] == said["manufacturer"]
    adapter.echo = False
    adapter.unplug()
    assert USB not in devices(served)
    adapter.plug()
