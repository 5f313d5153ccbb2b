"""Twice the routes, twice the work: no command may compare each route with all others. Counts instructions
(growth.py)."""
import growth
import pytest
from certificates import Authority
from kit import binary

pytestmark = [pytest.mark.counts, pytest.mark.timeout(1200)]  # Valgrind is fifty times as slow

# A little more than twice: tables grow in steps, and figures have more digits.
MOST = 2.5
# With fewer routes the cost per route would hide a quadratic part.
COUNTS = (500, 1000)


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    if "/debug/" in binary():
        pytest.skip("counted on the release: Valgrind 3.19 itself aborts in a gateway that was built without optimisation")
    pair = Authority(tmp_path_factory.mktemp("certificates")).issue("gw.test", "gw.test")
    files = (pair.certificate, pair.key)
    return [growth.measure(binary(), count, files) for count in COUNTS]


@pytest.mark.parametrize("command", growth.COLUMNS)
def test_twice_the_routes_take_at_most_two_and_a_half_times_the_instructions(counts, command):
    few, many = (count[command] for count in counts)
    assert 0 < few and many <= MOST * few, f"{command}: {few:,} instructions for {COUNTS[0]} routes, {many:,} for {COUNTS[1]}"


# In thousands; what is counted is in growth.py.
@pytest.mark.parametrize("command, aim", [("metrics", 300), ("events", 560)])
def test_instructions_for_each_route_are_stated(counts, figure, command, aim):
    figure(f"instructions for each of {COUNTS[1]:,} routes, {command}", counts[1][command] / COUNTS[1] / 1000, "thousand", aim)


def test_a_start_takes_few_instructions(tmp_path):
    """What each start does: it loads the program, reads its arguments, a large environment and one route."""
    if "/debug/" in binary():
        pytest.skip("counted on the release")
    path = tmp_path / "config.yaml"
    path.write_text("version: 1\nroutes: { echo: { listen: tcp://127.0.0.1:4001, endpoint: sim://echo } }\n")
    path.chmod(0o644)
    counted = growth.of_command(binary(), "check", str(path), environment={f"V{number:099}": "x" for number in range(100)})
    assert counted < 19_000_000, f"{counted:,} instructions"
