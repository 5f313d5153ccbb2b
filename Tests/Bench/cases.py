"""The rows: what is run, what is read from it, and the bar for each value.

A case is one run of the load generator; it yields several metrics, each a row of the table. Used by bench.py,
measure.py and report.py.
"""

from dataclasses import dataclass, field
from typing import Optional

GIB = 1 << 30


@dataclass
class Bar:
    """`than` is "best peer", a peer's name, or None for an absolute bar."""

    relation: str  # "≥" or "≤"
    value: float
    than: Optional[str] = "best peer"

    def met(self, value):
        return value >= self.value if self.relation == "≥" else value <= self.value

    def __str__(self):
        if self.than is None:
            return f"{self.relation} {self.value:g}"
        return f"{self.relation} {self.value:g} × {self.than}"


@dataclass
class Metric:
    name: str
    unit: str
    better: str = "less"  # or "more"; "" for what has no better
    bars: tuple = ()
    digits: int = 3  # significant ones


@dataclass
class Case:
    name: str
    title: str
    kind: str  # "tcp" or "pty"
    load: tuple  # the load generator's words; {seconds} is filled in
    metrics: tuple
    derive: object  # (result of the load, CPU seconds, clients or None) -> {metric name: value}
    clients: int = 1
    routes: int = 1
    how: str = "run"  # measure.py's way: run, start, quiet, memory, strace, callgrind
    once: bool = False  # the same in every round, so one will do
    peers: tuple = ("gensiot", "socat")  # asked by --quick
    own_network: bool = False  # a loopback that nobody filled with closed connections before


def at_least(ratio, than="best peer"):
    return Bar("≥", ratio, than)


def at_most(ratio, than="best peer"):
    return Bar("≤", ratio, than)


def _bulk_values(result, cpu):
    size = result["bytes"]
    return {
        "rate": size / result["seconds"] / 1e6,
        "cpu": cpu / (size / GIB) if size else None,
        "fairness": result["jain"],
    }


def _bulk(name, title, kind, direction, rate, cpu, clients=1, fairness=False, peers=("gensiot", "socat")):
    metrics = [Metric("rate", "MB/s", "more", rate), Metric("cpu", "CPU s/GiB", "less", cpu)]
    if fairness:
        metrics.append(Metric("fairness", "Jain's index", "more", (Bar("≥", 0.98, None),)))
    return Case(
        name,
        title,
        kind,
        ("bulk", kind, str(clients), direction, "{seconds}"),
        tuple(metrics),
        _bulk_values,
        clients=clients,
        routes=clients if kind == "pty" else 1,
        peers=peers,
    )


def _round_values(result, cpu):
    return {
        "p50": result["p50"],
        "p99": result["p99"],
        "p999": result["p999"],
        "cpu": cpu / result["rounds"] * 1e6,
    }


def _rounds(kind, size, p50=(), p99=(), cpu=(), peers=("gensiot", "socat")):
    return Case(
        f"rounds-{kind}-{size}",
        f"round trip {size} byte{'s' if size > 1 else ''}, {kind} echo",
        kind,
        ("rounds", kind, str(size), "{seconds}", "0"),
        (
            Metric("p50", "p50 µs", "less", p50),
            Metric("p99", "p99 µs", "less", p99),
            Metric("p999", "p99.9 µs"),
            Metric("cpu", "CPU µs", "less", cpu),
        ),
        _round_values,
        peers=peers,
    )


def _idle(clients, bars):
    return Case(
        f"idle-{clients}",
        f"{clients:,} idle clients, tcp→tcp",
        "tcp",
        ("idle", str(clients)),
        # Fewer where a process may have fewer than 20,000 descriptors: so their number is a value too.
        (Metric("memory", "KiB user memory each", "less", bars), Metric("clients", "clients", "", digits=4)),
        None,
        clients=clients + 1,
        how="memory",
        once=True,
        peers=("haproxy",),
    )


def _counted(kind, how, title, metric, peers=("gensiot",)):
    """64-byte round trips with somebody counting."""
    load = ("rounds", kind, "64", "60", "{count}")
    return Case(f"{how}-{kind}", title, kind, load, (metric,), None, how=how, once=True, peers=peers)


BEST = at_least(1.0)
FAST_TCP = ("haproxy", "nginx")

CASES = [
    _bulk("tcp-up", "tcp→tcp up", "tcp", "up", (BEST,), (at_most(1.0),)),
    _bulk("tcp-down", "tcp→tcp down", "tcp", "down", (BEST,), (at_most(1.0),)),
    _bulk("tcp-both", "tcp↔tcp both ways", "tcp", "both", (BEST,), (at_most(1.0),)),
    _bulk("tcp-64", "tcp↔tcp, 64 connections", "tcp", "both", (BEST,), (at_most(1.1),), clients=64, fairness=True),
    _bulk("pty-up", "tcp→pty, client to device", "pty", "up", (at_least(0.9),), (at_most(1.0, "gensiot"),)),
    _bulk("pty-down", "pty→tcp, device to client", "pty", "down", (at_least(0.95),), (at_most(1.0),)),
    _bulk("pty-both", "tcp↔pty both ways", "pty", "both", (at_least(0.9),), ()),
    _bulk("pty-64", "tcp↔pty, 64 ptys both ways", "pty", "both", (BEST,), (), clients=64),
    _rounds("pty", 1, (at_most(1.0),), (at_most(1.2),), (at_most(1.0),)),
    _rounds("pty", 64),
    _rounds("tcp", 1, (at_most(1.1),), (at_most(1.2),), (at_most(1.15),), peers=FAST_TCP),
    _rounds("tcp", 64, peers=FAST_TCP),
    Case(
        "accepts",
        "connect, 1 byte there and back, close",
        "tcp",
        # A second at most: the ports of closed connections come back only after a minute.
        ("accepts", "1.0", "8"),
        (
            Metric("rate", "per second", "more", (at_least(0.97),)),
            Metric("cpu", "CPU µs each", "less", (at_most(1.3, "nginx"),)),
        ),
        lambda result, cpu: {
            "rate": result["connections"] / result["seconds"],
            "cpu": cpu / result["connections"] * 1e6,
        },
        clients=1000,
        peers=FAST_TCP,
        own_network=True,
    ),
    _idle(1000, ()),
    _idle(9900, (at_most(0.9), Bar("≤", 3, None))),
    Case(
        "start",
        "start-up",
        "tcp",
        ("start", "11"),
        (
            Metric("listening", "fork to first accept, ms", "less", (Bar("≤", 50, None),)),
            Metric("answering", "fork to first byte back, ms"),
        ),
        None,
        how="start",
        peers=("socat",),
    ),
    Case(
        "quiet",
        "10 s without clients",
        "tcp",
        ("idle", "0"),
        (
            Metric("wakeups", "wake-ups", "less", (Bar("≤", 0, None),)),
            Metric("rss", "RSS, MiB", "less", (Bar("≤", 12, None),)),
        ),
        None,
        how="quiet",
        once=True,
        peers=("gensiot",),
    ),
    _counted(
        "pty",
        "strace",
        "64-byte round trip, pty echo",
        Metric("calls", "system calls", "less", (Bar("≤", 8, None),)),
    ),
    _counted("tcp", "strace", "64-byte round trip, tcp echo", Metric("calls", "system calls"), peers=("nginx",)),
    _counted("tcp", "callgrind", "64-byte round trip, tcp echo", Metric("instructions", "user instructions", digits=4)),
    _counted("pty", "callgrind", "64-byte round trip, pty echo", Metric("instructions", "user instructions", digits=4)),
]
