"""What speed.py measures and does not depend on the machine."""
import speed


def test_an_idle_link_wakes_nobody_and_no_scan_of_somebody_else_does(air, guest):
    assert speed.idle_beside_a_scan(guest, 3) == (0, 0)
