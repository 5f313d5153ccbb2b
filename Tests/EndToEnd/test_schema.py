"""Deploy/config.schema.json compared with the gateway: an editor must accept what `check` accepts, and must report
faults of shape, name, word or range.
"""
import copy
import functools
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
import yaml
from kit import GUARD, ROOT, binary

SCHEMA = json.loads((ROOT / "Deploy/config.schema.json").read_text())
GOLDEN = ROOT / "Tests/GatewayKitTests/Golden"


def as_text(config) -> str:
    return yaml.dump(config, Dumper=getattr(yaml, "CDumper", yaml.Dumper))


class YAML12(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """PyYAML as editors read it, by the core schema of YAML 1.2: there `on` is a word, and `1:20` is not a number."""

    yaml_implicit_resolvers = {}


YAML12.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), None)
YAML12.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), None)
YAML12.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:[0-9]+|0x[0-9a-fA-F]+)$"), None)
YAML12.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+\.[0-9]*$"), None)
YAML12.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), None)
YAML12.add_constructor(
    "tag:yaml.org,2002:int", lambda loader, node: int(node.value, 16 if "x" in node.value else 10))


def named(value):
    """Keys become strings, whatever type YAML gives them."""
    if isinstance(value, dict):
        return {"null" if k is None else str(k): named(v) for k, v in value.items()}
    return [named(item) for item in value] if isinstance(value, list) else value


@functools.cache
def validator():
    kind = jsonschema.validators.validator_for(SCHEMA)
    kind.check_schema(SCHEMA)
    return kind(SCHEMA)


def faults(config) -> list[str]:
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message}" for e in validator().iter_errors(named(config))]


def golden(name) -> str:
    return (GOLDEN / name).read_text().partition("----\n")[0]


def test_the_shipped_schema_is_what_the_command_prints():
    printed = subprocess.run([binary(), "schema"], capture_output=True, text=True, timeout=GUARD, check=True)
    assert printed.stdout == (ROOT / "Deploy/config.schema.json").read_text()


@pytest.mark.parametrize("path", ["config.yaml", "Deploy/container.yaml"])
def test_the_schema_accepts_the_shipped_configuration(path):
    assert faults(yaml.load((ROOT / path).read_text(), YAML12)) == []


# Files with listeners that are not in this build do not fit this build's schema.
@pytest.mark.parametrize("name", sorted(
    p.name for p in GOLDEN.glob("good*.golden") if not p.read_text().startswith("# listeners: ")))
def test_the_schema_accepts_valid_configurations(name):
    assert faults(yaml.load(golden(name), YAML12)) == []


@pytest.mark.parametrize("name", [
    "bad-all-at-once", "bad-empty", "bad-kinds", "bad-no-routes", "bad-not-in-this-version", "bad-unknown-keys",
    "bad-urls", "bad-yaml-1.1-traps",
])
def test_the_schema_refuses_invalid_configurations(name):
    assert faults(yaml.load(golden(name + ".golden"), YAML12))


@pytest.mark.parametrize("name", ["GPS", "gps 1", "", "x" * 65, "küche"])
def test_the_schema_knows_valid_names_of_routes(name):
    assert faults({"routes": {name: TTY}}) and not faults({"routes": {"gps_1.a-b": TTY}})


# --- compared with the gateway
#   ---------------------------------------------------------------------------------------

TTY = {"listen": "tcp://127.0.0.1:4001", "endpoint": {"url": "tty:///dev/ttyUSB0"}}
VALUES = [
    None, True, False, 0, 1, 8, 9, 70_000, -1, 1.5, "", "yes", "off", "On", "5", "08", "64KiB", "1GiB", "64K", "30s", "0",
    "10", "250ms..30s", "..", "idle:30s", "idle:", "10.0.0.0/8", "::1", "text", "two words", "/path", "a\\r\\x04", "a\\q",
    "${NONE:-7}", [], [5], {}, {"x": 1}, ["10.0.0.0/8"], "tcp://:4002", "tpc://:4002", "sim://echo", "sim://ehco",
    {"url": "tcp://127.0.0.1:4003"}, {"ulr": "sim://echo"}, ["tcp://:4004", {"url": "tcp://:4005", "role": "monitor"}],
]


def kind(schema) -> dict:
    return {k: v for k, v in schema.items() if k not in ("description", "default")}


def words(schema) -> list:
    """The enum words of a schema, at any depth above the next property name."""
    if isinstance(schema, dict):
        return schema.get("enum", []) + [w for k, v in schema.items() if k != "properties" for w in words(v)]
    return [w for item in schema for w in words(item)] if isinstance(schema, list) else []


def places(schema, path=()):
    """Every key that the schema names, as a path, with its schema."""
    if "$ref" in schema:
        yield from places(SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]], path)
    for choice in schema.get("anyOf", []):
        yield from places(choice, path)
    for name, inner in schema.get("properties", {}).items():
        if isinstance(inner, dict):
            yield (*path, name), inner
            yield from places(inner, (*path, name))


def keys_of_a_route():
    yield from places(SCHEMA["definitions"]["route"])
    for name, inner in SCHEMA["definitions"]["endpoint-tty"]["properties"].items():
        if name != "url":
            yield ("endpoint", name), inner


def keys_at_the_top():
    for path, inner in places(SCHEMA):
        # Keys that are also allowed under a route are tested there.
        if path[0] != "routes" and (path[0] != "defaults" or len(path) == 1):
            yield path, inner


def put(place: dict, path, value) -> dict:
    whole = place = copy.deepcopy(place)
    for name in path[:-1]:
        if not isinstance(place.get(name), dict):
            place[name] = {}
        place = place[name]
    place[path[-1]] = value
    return whole


# Faults that a schema cannot detect: a size or duration with a unit that is out of range, an odd number in quotes, an
# address with a small error, a fault within a URL that begins correctly, and the value of a variable.
UNSEEN = re.compile(
    r"expected (a size|a duration|a range of durations|an address|idle:|permission bits|off, or a duration)"
    r"|not '[0-9.-]*'|unknown sim 'ehco'|'7' is n|needs a host|needs to know where a packet ends")
# Faults of shape and name; the others concern several values together, which only `check` reports.
SHAPE = re.compile(r": (expected |unknown |needs |no routes|not in Baudway|.*is not in Baudway|'.*' is not a URL)")


class Judges:
    """The gateway and the schema judge the same configuration."""

    def __init__(self, folder):
        self.folder, self.tried, self.wrong = folder, 0, []

    def check(self, config, name="config") -> list[str]:
        path = self.folder / f"{name}.yaml"
        path.write_text(as_text(config))
        path.chmod(0o600)
        done = subprocess.run([binary(), "check", str(path)], capture_output=True, text=True, timeout=GUARD)
        told = done.stderr.splitlines()
        assert len(told) < 100, "it tells no more"
        return told

    def compare(self, what, told, config):
        self.tried += 1
        # As an editor gets it: through the same text.
        seen = faults(yaml.load(as_text(config), YAML12))
        # The gateway reads a list of one URL as that URL; an editor may report that a list is not allowed.
        if seen and not told and not what.endswith(": [5]"):
            self.wrong.append(f"{what}: check takes it, but: {seen[0]}")
        told = [line for line in told if SHAPE.search(line) and not UNSEEN.search(line)]
        if told and not seen:
            self.wrong.append(f"{what}: not seen: {told[0]}")

    def verdict(self, least):
        assert self.tried > least
        assert not self.wrong, f"{len(self.wrong)} of {self.tried}:\n" + "\n".join(self.wrong[:40])


@pytest.mark.heavy
def test_the_schema_agrees_with_check_about_every_key_of_a_route(tmp_path):
    judges = Judges(tmp_path)
    for path, inner in keys_of_a_route():
        values = VALUES + words(inner)
        for first in range(0, len(values), 20):
            routes = {}
            for number, value in enumerate(values[first:first + 20]):
                base = {"listen": f"tcp://127.0.0.1:{5000 + number}", "endpoint": {"url": f"tty:///dev/ttyUSB{number}"}}
                routes[f"r{number}"] = put(base, path, value)
            told = judges.check({"routes": routes})
            for number, (name, route) in enumerate(routes.items()):
                own = [line for line in told if re.search(rf": routes\.{name}[.:]", line)]
                judges.compare(f"{'.'.join(path)}: {values[first + number]!r}", own, {"routes": {name: route}})
    judges.verdict(1500)


# A thousand runs of the command, on a machine that may be busy.
@pytest.mark.heavy
def test_the_schema_agrees_with_check_about_every_top_level_key(tmp_path):
    judges = Judges(tmp_path)
    tried = [(f"{'.'.join(path)}: {value!r}", put({"routes": {"r": TTY}}, path, value))
             for path, inner in keys_at_the_top() for value in VALUES + words(inner)]
    with ThreadPoolExecutor(2) as pool:
        all_told = pool.map(lambda number: judges.check(tried[number][1], number), range(len(tried)))
        for (what, config), told in zip(tried, all_told):
            judges.compare(what, told, config)
    judges.verdict(400)
