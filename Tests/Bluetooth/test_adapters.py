"""`baudway devices` in a machine with a Bluetooth adapter."""
import json

from radio import SERIAL
from rig import GuestGateway, route


def test_adapters_are_listed(air, guest):
    with GuestGateway(guest, {"routes": {"radio": route(f"rfcomm://{SERIAL}")}}) as served:
        told = json.loads(served.command("devices", "--json", seconds=30).stdout)["bluetooth"]
        assert told[0] == {"adapter": "hci0", "address": "00:AA:01:00:00:00", "on": True}
        table = served.command("devices", seconds=30).stdout
        assert "rfcomm://ADDRESS?adapter=hci0" in table
