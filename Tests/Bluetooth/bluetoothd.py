"""BlueZ's daemon in the emulated machine, with the bus that it needs."""
import contextlib

from kit import until
from radio import STATE

BLUEZ = STATE / "bluez"
HAS_IT = ("dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.NameHasOwner "
          "string:org.bluez | grep -q true")


@contextlib.contextmanager
def bluetoothd(guest, air, *words: str):
    """Runs bluetoothd. It powers the adapter and changes its settings: afterwards the adapter must be made anew."""
    guest.ask(
        f"mkdir -p /run/dbus /etc/bluetooth /etc/dbus-1/system.d; cp {BLUEZ}/etc/dbus-1/system.d/bluetooth.conf "
        f"/etc/dbus-1/system.d/; cp {BLUEZ}/etc/bluetooth/* /etc/bluetooth/; [ -S /run/dbus/system_bus_socket ] || "
        "{ rm -f /run/dbus/pid; dbus-daemon --system --fork; }")
    daemon = guest.call(f"exec {BLUEZ}/usr/libexec/bluetooth/bluetoothd -n {' '.join(words)}")
    try:
        until(lambda: guest.run(HAS_IT).returncode == 0, 30, "bluetoothd", every=0.2)
        until(lambda: air.adapter() == "on", 20, "an adapter that bluetoothd has switched on", every=0.2)
        yield
    finally:
        daemon.close()
        until(lambda: guest.run("busybox pidof bluetoothd").returncode != 0, 20, "bluetoothd's end", every=0.1)
        guest.ask("rm -f /run/sdp")
        air.pull()
