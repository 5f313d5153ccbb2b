"""What speed.py measures: that it can be measured, and what does not depend on the machine. Its bars are for a quiet one."""
import speed


def test_the_gateway_and_the_relay_carry_the_same(air, guest):
    rows = speed.compare(guest, air, "gatt", rounds=1, size=32 << 10)
    assert len(rows) == 4, rows


def test_an_idle_link_wakes_nobody(air, guest):
    assert speed.idle(guest, 3) == 0
