"""What speed.py measures and does not depend on the machine."""
import speed


def test_an_idle_link_wakes_nobody(air, guest):
    assert speed.idle(guest, "gatt", 3) == 0


def test_a_scan_of_somebody_else_wakes_no_open_link(air, guest):
    assert speed.idle_beside_a_scan(guest, 1) == 0
