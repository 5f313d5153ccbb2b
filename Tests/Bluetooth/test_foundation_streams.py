"""Programs with Foundation's streams (Sources/Examples/FoundationStreams) over radio links, to devices that echo."""
import os

import pytest
from radio import NUS, NUS_SERVICE, SERIAL
from rig import foundation_streams

COUNT = int(os.environ.get("STREAM_BYTES", 128 << 10))  # Tests/run --long: 3 MiB


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind, loop", [("delegate", "main"), ("delegate", "foreign"), ("polling", "main"), ("transfer", "foreign")])
@pytest.mark.parametrize("url", [f"rfcomm://{SERIAL}:3", f"ble://{NUS_SERVICE}/{NUS}?address-type=random"], ids=["rfcomm", "ble"])
def test_bytes_go_both_ways(air, guest, url, kind, loop):
    text = guest.ask(f"{foundation_streams()} {kind} '{url}' {COUNT} {loop}", 580)
    assert f"{COUNT} bytes, the same" in text
