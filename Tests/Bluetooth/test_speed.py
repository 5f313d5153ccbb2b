"""What speed.py measures and does not depend on the machine."""
import speed


def test_an_idle_link_wakes_nobody(air, guest):
    assert speed.idle(guest, 3) == 0
