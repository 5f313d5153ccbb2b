"""Reset recipes on the wire of the USB bus: a slow client's sequence is replayed with exact times, both lines in one
request."""
import json
import time

import pytest

from control_channel import ControlChannel
from kit import connect
from listener_clients import finish
from rig import USB, BusRecord, GuestGateway
from test_modem_lines import Wire

# What the recipe makes of the lines, and the pauses after that, in seconds.
REPLAY = ["-dtr +rts", "+dtr -rts", "-dtr"]
PAUSES = [0.1, 0.05]


def gateway(guest, **device) -> GuestGateway:
    lab = {"listen": "ws://0.0.0.0:0/lab", "endpoint": f"tty://{USB}?dtr=off&rts=off",
           "device": {"open": "always", "retry": "250ms..1s", **device}}
    return GuestGateway(guest, {"routes": {"lab": lab}})


def pauses(wire: Wire) -> list[float]:
    return [after - before for before, after in zip(wire.times, wire.times[1:])]


@pytest.mark.usefixtures("adapter")
def test_a_slow_clients_reset_is_replayed_with_exact_times(guest):
    with BusRecord(guest) as record, gateway(guest, reset="esp32") as served:
        served.event("link open")
        wire = Wire(record)
        wire.moves()
        client = ControlChannel(connect(served.address("lab")))
        client.event("link", state="open")
        # esptool's sequence, with the round trips of a slow network.
        for line, on in (("dtr", False), ("rts", True), ("dtr", True)):
            assert client.answer(line, on=on)["ok"]
            time.sleep(0.3)
        # DTR is held back: with RTS on as well, the chip would leave its reset.
        assert wire.moves() == ["+rts"]
        assert client.answer("rts", on=False)["ok"]
        assert client.answer("dtr", on=False)["ok"]
        told = served.event("device reset")
        assert (told["recipe"], told["route"], "error" in told) == ("esp32", "lab", False)
        assert wire.moves() == ["+dtr -rts", "-dtr"]
        held, = pauses(wire)
        assert PAUSES[1] <= held < 10 * PAUSES[1]

        # Its hard reset is another sequence.
        assert client.answer("rts", on=True)["ok"] and client.answer("rts", on=False)["ok"]
        assert wire.moves() == ["+rts", "-rts"] and len(served.events("device reset")) == 1
        finish(client.client)


@pytest.mark.usefixtures("adapter")
def test_the_reset_command_uses_the_port_of_connected_clients(guest):
    with BusRecord(guest) as record, gateway(guest) as served:
        served.event("link open")
        client = ControlChannel(connect(served.address("lab")))
        client.event("link", state="open")
        assert client.answer("dtr", on=True)["ok"]
        wire = Wire(record)
        wire.moves()
        done = served.command("reset", "lab", "esp32", "-c", str(served.path), "--json", seconds=30)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"reset": True, "route": "lab", "recipe": "esp32"}), done
        assert wire.moves() == REPLAY
        for pause, wanted in zip(pauses(wire), PAUSES):
            assert wanted <= pause < 10 * wanted, pauses(wire)
        assert client.answer("status")["ok"]
        finish(client.client)
