"""What the kernel has counted for a tree of processes: CPU time, context switches, memory, listening ports.

Used by measure.py. Reads /proc and the processes' CPU clocks; changes nothing.
"""

import os
import socket
import time

TICK = 1 / os.sysconf("SC_CLK_TCK")


def _stat_fields(pid):
    """Fields 3 and up of /proc/PID/stat (proc(5)); the name in field 2 may contain spaces."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def tree(roots):
    """Those of the roots that are alive, and all their descendants."""
    children = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            children.setdefault(int(_stat_fields(name)[1]), []).append(int(name))
        except OSError:
            pass  # It has ended meanwhile.
    found, todo = [], [pid for pid in roots if os.path.exists(f"/proc/{pid}")]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_seconds(pids):
    """User and system time in seconds, including threads and reaped children.

    A living process is measured to the nanosecond by its CPU clock (clock_getcpuclockid(3), whose formula this is);
    /proc/PID/stat has ticks of 10 ms, precise enough for children that have ended.
    """
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime((~pid << 3) | 2)
            total += sum(int(field) for field in _stat_fields(pid)[13:15]) * TICK
        except OSError:
            pass
    return total


def context_switches(pids):
    """How often threads of these processes were switched out: the wake-ups of an idle process."""
    total = 0
    for pid in pids:
        for thread in _listdir(f"/proc/{pid}/task"):
            total += sum(v for k, v in _status(f"/proc/{pid}/task/{thread}/status") if k.endswith("ctxt_switches"))
    return total


def resident_bytes(pids):
    return sum(v * 1024 for pid in pids for k, v in _status(f"/proc/{pid}/status") if k == "VmRSS")


def proportional_bytes(pids):
    """PSS: shared memory is counted once, split among its users. So forked children compare with one process."""
    total = 0
    for pid in pids:
        total += sum(v * 1024 for k, v in _status(f"/proc/{pid}/smaps_rollup") if k == "Pss")
    return total


def _listdir(path):
    try:
        return os.listdir(path)
    except OSError:
        return []


def _status(path):
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        key, _, value = line.partition(":")
        if value and value.split()[0:1] and value.split()[0].isdigit():
            yield key, int(value.split()[0])


def listening(ports):
    """Whether all these ports are listened on. Reads the kernel's table: a connection would count as a client."""
    open_ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for fields in (line.split() for line in _lines(table)):
            if fields[3] == "0A":
                open_ports.add(int(fields[1].rpartition(":")[2], 16))
    return open_ports.issuperset(ports)


def _lines(path):
    try:
        with open(path) as file:
            return file.readlines()[1:]
    except OSError:
        return []


_next_port = 20000


def free_ports(count):
    """Ports below the kernel's ephemeral range, and not used before in this run."""
    global _next_port
    found = []
    while len(found) < count:
        _next_port = _next_port + 1 if _next_port < 32000 else 20001
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", _next_port))
            except OSError:
                continue
        found.append(_next_port)
    return found
