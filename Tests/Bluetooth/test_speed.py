"""The figures of speed.py that do not depend on the machine."""
import speed


def test_neither_an_idle_link_nor_another_programs_scan_wakes_the_gateway(air, guest):
    assert speed.idle_beside_a_scan(guest, 3) == (0, 0)
