"""The rows: what is run, what is read from it, and the bar for each value.

A case is one run of the load generator; it yields several metrics, each a row of the table. Used by bench.py,
layout.py, measure.py and report.py.
"""

from dataclasses import dataclass, field
from typing import Optional

GIB = 1 << 30


@dataclass
class Bar:
    """`than` is "best peer", a peer's name, or None for an absolute bar; or "own NAME": the same value of ours in the case NAME."""

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
    better: str = "less"  # or "more"; "" if neither is better
    bars: tuple = ()
    digits: int = 3  # significant digits


@dataclass
class Case:
    name: str
    title: str
    kind: str  # "tcp" or "pty"
    load: tuple  # the load generator's arguments; {seconds} is filled in
    metrics: tuple
    derive: object  # (result of the load, CPU seconds, clients or None) -> {metric name: value}
    clients: int = 1
    routes: int = 1
    how: str = "run"  # measure.py's way: run, start, quiet, memory, strace, callgrind
    once: bool = False  # the same in every round, so one round is enough
    peers: tuple = ("gensiot", "socat")  # run with --quick
    transport: str = "plain"  # the clients' transport; ws and wss with the size of their messages
    own_network: bool = False  # a loopback without closed connections of earlier runs
    records: bool = False  # into files; only Baudway does that


FAST_TCP = ("haproxy", "nginx")  # also for TLS
WEB = ("websockify", "websocketd")
TELNET = ("ser2net-tuned", "gensiot")


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


def _bulk(
    name, title, kind, direction, rate, cpu, clients=1, fairness=None, peers=("gensiot", "socat"), transport="plain",
    records=False,
):
    metrics = [Metric("rate", "MB/s", "more", rate), Metric("cpu", "CPU s/GiB", "less", cpu)]
    if fairness:
        metrics.append(Metric("fairness", "Jain's index", "more", (Bar("≥", fairness, None),)))
    if records:
        metrics.append(Metric("recorded", "share in the recording", "more", digits=4))
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
        transport=transport,
        records=records,
    )


def _recorded(direction, title):
    """Beside the same route without a recording, which must be in the same run."""
    own = f"own pty-{direction}"
    return _bulk(
        f"pty-{direction}-recorded", f"{title}, recorded as pcapng", "pty", direction, (at_least(0.95, own),), (), peers=(), records=True)


def _round_values(result, cpu):
    return {
        "p50": result["p50"],
        "p99": result["p99"],
        "p999": result["p999"],
        "cpu": cpu / result["rounds"] * 1e6,
    }


def _rounds(kind, size, p50=(), p99=(), cpu=(), peers=("gensiot", "socat"), transport="plain"):
    over = "" if transport == "plain" else transport.partition(":")[0]
    return Case(
        f"rounds-{over}-{kind}-{size}" if over else f"rounds-{kind}-{size}",
        f"round trip {size} byte{'s' if size > 1 else ''}, {over + '→' if over else ''}{kind} echo",
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
        transport=transport,
    )


def _idle(clients, bars, peers=("haproxy",), transport="plain"):
    over = "tcp" if transport == "plain" else transport.partition(":")[0]
    return Case(
        f"idle-{clients}" if over == "tcp" else f"idle-{over}-{clients}",
        f"{clients:,} idle clients, {over}→tcp",
        "tcp",
        ("idle", str(clients)),
        # Fewer clients if a process may have fewer than 20,000 descriptors, so their number is a value too.
        (Metric("memory", "KiB user memory each", "less", bars), Metric("clients", "clients", "", digits=4)),
        None,
        clients=clients + 1,
        how="memory",
        once=True,
        peers=peers,
        transport=transport,
    )


def _handshakes(which, bars):
    return Case(
        f"handshakes-{which}",
        f"TLS 1.3, {which} handshake, 1 byte there and back, close",
        "tcp",
        ("handshakes", which, "{seconds}", "8"),
        (Metric("rate", "per second", "more", bars), Metric("cpu", "CPU µs each", "less")),
        lambda result, cpu: {
            "rate": result["connections"] / result["seconds"],
            "cpu": cpu / result["connections"] * 1e6,
        },
        clients=1000,
        peers=FAST_TCP,
        own_network=True,
        transport="tls",
    )


def _counted(kind, how, title, metric, peers=("gensiot",)):
    """64-byte round trips while another program counts."""
    load = ("rounds", kind, "64", "60", "{count}")
    return Case(f"{how}-{kind}", title, kind, load, (metric,), None, how=how, once=True, peers=peers)


def _telnet(direction, kind, rate, cpu=(), iacs=0):
    """`iacs`: one byte in 256 is 0xFF, which telnet sends twice."""
    shown = {"up": f"telnet→{kind}", "down": f"{kind}→telnet"}[direction]
    return _bulk(
        f"telnet-{kind}-{direction}{'-iac' if iacs else ''}", f"{shown}, {'one byte in 256 is 0xFF' if iacs else 'no 0xFF'}", kind,
        direction, rate, cpu, transport=f"telnet:{iacs}", peers=TELNET,
    )


BEST = at_least(1.0)

CASES = [
    _bulk("tcp-up", "tcp→tcp up", "tcp", "up", (BEST,), (at_most(1.0),)),
    _bulk("tcp-down", "tcp→tcp down", "tcp", "down", (BEST,), (at_most(1.0),)),
    _bulk("tcp-both", "tcp↔tcp both ways", "tcp", "both", (BEST,), (at_most(1.0),)),
    _bulk("tcp-64", "tcp↔tcp, 64 connections", "tcp", "both", (BEST,), (at_most(1.1),), clients=64, fairness=0.98),
    _bulk("pty-up", "tcp→pty, client to device", "pty", "up", (at_least(0.9),), (at_most(1.0, "gensiot"),)),
    _bulk("pty-down", "pty→tcp, device to client", "pty", "down", (at_least(0.95),), (at_most(1.0),)),
    _bulk("pty-both", "tcp↔pty both ways", "pty", "both", (at_least(0.9),), ()),
    _recorded("up", "tcp→pty"),
    _recorded("down", "pty→tcp"),
    _recorded("both", "tcp↔pty"),
    _bulk("pty-64", "tcp↔pty, 64 ptys both ways", "pty", "both", (BEST,), (), clients=64),
    _rounds("pty", 1, (at_most(1.0),), (at_most(1.2),), (at_most(1.0),)),
    _rounds("pty", 64),
    _rounds("tcp", 1, (at_most(1.1),), (at_most(1.2),), (at_most(1.15),), peers=FAST_TCP),
    _rounds("tcp", 64, peers=FAST_TCP),
    Case(
        "accepts",
        "connect, 1 byte there and back, close",
        "tcp",
        # At most a second: the ports of closed connections are free again only after a minute.
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
    _bulk("tls-up", "tls→tcp up", "tcp", "up", (at_least(0.97),), (at_most(1.05),), peers=FAST_TCP, transport="tls"),
    _bulk("tls-down", "tls→tcp down", "tcp", "down", (at_least(0.95),), (at_most(1.05),), peers=FAST_TCP, transport="tls"),
    _bulk(
        "tls-16", "tls↔tcp, 16 connections", "tcp", "both", (at_least(0.93),), (), clients=16, fairness=0.95,
        peers=FAST_TCP, transport="tls",
    ),
    _bulk("tls-pty-up", "tls→pty, client to device", "pty", "up", (at_least(0.95),), (), transport="tls"),
    _bulk("tls-pty-down", "pty→tls, device to client", "pty", "down", (at_least(0.95),), (), transport="tls"),
    _rounds("pty", 64, (at_most(0.9),), transport="tls"),
    _rounds("tcp", 64, (at_most(1.05),), peers=("gensiot", "haproxy"), transport="tls"),
    _handshakes("full", (at_least(0.9),)),
    _handshakes("resumed", (at_least(1.0),)),
    _bulk("ws-up-64", "ws→tcp up, messages of 64 bytes", "tcp", "up", (at_least(25),), (), peers=WEB, transport="ws:64"),
    _bulk("ws-up-1k", "ws→tcp up, messages of 1 KiB", "tcp", "up", (at_least(8),), (), peers=WEB, transport="ws:1024"),
    _bulk("ws-up-64k", "ws→tcp up, messages of 64 KiB", "tcp", "up", (at_least(5),), (), peers=WEB, transport="ws:65536"),
    _bulk("ws-down", "ws→tcp down", "tcp", "down", (at_least(1.1),), (), peers=WEB, transport="ws:65536"),
    _bulk("wss-up", "wss→tcp up, messages of 16 KiB", "tcp", "up", (at_least(2.3),), (), peers=WEB, transport="wss:16384"),
    _rounds("tcp", 64, (at_most(0.85),), peers=WEB, transport="ws:4096"),
    _rounds("pty", 64, (at_most(0.65),), peers=WEB, transport="ws:4096"),
    *(
        _telnet(
            direction, kind, (at_least(share, f"own {kind}-{direction}"), at_least(2)),
            (at_most(1.2, f"own {kind}-{direction}"),) if kind == "tcp" and not iacs else (), iacs,
        )
        for kind, iacs, share in (("tcp", 0, 0.9), ("pty", 0, 0.97), ("tcp", 1, 0.7), ("pty", 1, 0.7))
        for direction in ("up", "down")
    ),
    _rounds("tcp", 1, (at_most(1.05, "own rounds-tcp-1"),), peers=TELNET, transport="telnet:1"),
    _rounds("pty", 1, (at_most(1.05, "own rounds-pty-1"),), peers=TELNET, transport="telnet:1"),
    Case(
        "baud",
        "telnet: change of the bit rate, RFC 2217",
        "pty",
        ("baud", "30", "1000"),
        (
            Metric("p50", "p50 µs", "less", (at_most(1.05, "ser2net"),)),
            Metric("p99", "p99 µs", "less"),
            Metric("cpu", "CPU µs"),
        ),
        _round_values,
        peers=("ser2net",),
        transport="telnet:1",
    ),
    _idle(1000, ()),
    _idle(9900, (at_most(0.9), Bar("≤", 3, None))),
    _idle(9900, (Bar("≤", 24, None),), transport="tls"),
    _idle(9900, (Bar("≤", 4, None),), ("websockify",), transport="ws:4096"),
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
            Metric("rss", "RSS, MiB", "less", (Bar("≤", 14, None),)),
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
