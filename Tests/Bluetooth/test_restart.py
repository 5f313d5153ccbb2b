"""A gateway that replaces another: which of them owns the list of services."""
from kit import until
from rig import GuestGateway
from test_rfcomm_listener import channel, finds, found, limits, served


def test_the_next_gateway_gets_the_list_of_services_after_the_first(air, guest):
    with GuestGateway(guest, served("rfcomm://?channel=4&name=first")) as first:
        channel(first)
        assert finds(air) == "4 first"
        with GuestGateway(guest, served("rfcomm://?channel=5&name=second")) as second:
            channel(second)
            until(lambda: "another gateway" in limits(second), 20, "whose it is")
            assert "bluetoothd" not in limits(second) and found(air) == "4 first"
            first.stop()
            until(lambda: found(air) == "5 second", 40, "the list", every=0.2)
