"""One case on one subject: starts both, runs the load generator, and reads the kernel's counters of that time.

Used by bench.py and layout.py. Everything started here is ended here, by its process group.
"""

import contextlib
import ctypes
import dataclasses
import glob
import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import tempfile
import time

import kernel
from subjects import Job

LISTEN_WITHIN = 15  # seconds; valgrind gets four times as much
QUIET_SECONDS = 10
STRACE_ROUNDS = 1000
CALLGRIND_ROUNDS = (200, 1200)  # the difference is the cost of rounds, without start-up and connecting
CLONE_NEWNET = 0x40000000  # unshare(2)


class Broken(Exception):
    """A byte was wrong or missing."""


class NotMeasured(Exception):
    """The subject can't do this, or could not be started; the message is for the table's notes, unless empty."""


class Processes:
    """Process groups that end with the `with` block."""

    def __init__(self, folder):
        self.folder, self.started = folder, []

    def start(self, command, **options):
        log = open(os.path.join(self.folder, f"{os.path.basename(command[0])}.log"), "ab")
        with log:
            options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log} | options
            process = subprocess.Popen(command, start_new_session=True, **options)
        self.started.append(process)
        return process

    def end(self, process):
        """Sends SIGTERM to the group, and SIGKILL to processes that are left after some time."""
        self.started.remove(process)  # its number may soon be another process's
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                pass
        # Forked children end after their parent, and may have counts to write.
        deadline = time.monotonic() + 1
        while _signal_group(process.pid, 0) and time.monotonic() < deadline:
            time.sleep(0.005)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait(10)

    def last_words(self):
        words = ""
        for path in glob.glob(os.path.join(self.folder, "*.log")):
            with open(path, errors="replace") as file:
                lines = [line.strip() for line in file if line.strip()]
            words = lines[-1] if lines else words
        return words[:200]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started[::-1]:
            self.end(process)


def _signal_group(group, number):
    """False if the group has no processes."""
    try:
        os.killpg(group, number)
        return True
    except ProcessLookupError:
        return False


@contextlib.contextmanager
def own_network(wanted):
    """Runs the body, and what it starts, in its own network namespace. For root; other users stay in the machine's."""
    if not wanted or os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as before:
        if libc.unshare(CLONE_NEWNET):
            raise NotMeasured(f"no network of its own: {os.strerror(ctypes.get_errno())}")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
            yield
        finally:
            libc.setns(before.fileno(), CLONE_NEWNET)


class Load:
    """The load generator and the protocol with it; load/load.h describes it."""

    def __init__(self, processes, program, words):
        self.process = processes.start(
            [program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def say(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; the next hear() reports why

    def hear(self, word, within=60):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(within):
                raise NotMeasured(f"no '{word}' from the load generator within {within} s")
        line = self.process.stdout.readline().strip()
        kind, _, rest = line.partition(" ")
        if kind == "broken":
            raise Broken(rest)
        if kind == "failed":
            raise NotMeasured(rest)
        if kind != word:
            raise NotMeasured(f"the load generator said '{line}', not '{word}'")
        return rest

    def result(self, within=60):
        pairs = (word.split("=") for word in self.hear("result", within).split())
        return {key: float(value) for key, value in pairs}


class Bench:
    """How to measure: the programs, the time for each run."""

    def __init__(self, program, seconds, certificate):
        self.program, self.seconds, self.certificate = program, seconds, certificate

    def measure(self, case, subject):
        """The case's metrics by name. Raises Broken or NotMeasured."""
        if case.kind not in subject.kinds or case.transport.partition(":")[0] not in subject.transports:
            raise NotMeasured("")  # needs no explanation
        if case.records and not subject.records:
            raise NotMeasured("")
        if case.name in subject.limits:
            raise NotMeasured(subject.limits[case.name])
        if subject.name == "direct" and case.how != "run":
            raise NotMeasured("nothing to count")
        folder = tempfile.mkdtemp(prefix="bench-")
        try:
            with own_network(case.own_network), Processes(folder) as processes:
                try:
                    return getattr(self, "_" + case.how)(case, subject, processes)
                except NotMeasured as reason:
                    words = processes.last_words()
                    raise NotMeasured(f"{reason}; it said: {words}" if words else str(reason)) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # -- ways to measure, by Case.how

    def _run(self, case, subject, processes):
        load, pids = self.prepare(case, subject, processes)
        load.hear("ready")
        # Lists the tree anew each time: some subjects fork for each client.
        before = kernel.cpu_seconds(kernel.tree(pids))
        load.say("go")
        result = load.result()
        cpu = kernel.cpu_seconds(kernel.tree(pids)) - before
        load.say("done")
        values = case.derive(result, cpu)
        if subject.name == "direct":
            values.pop("cpu", None)
        if case.records:
            values["recorded"] = 1 - self._dropped(processes) / result["bytes"]
        return values

    def _dropped(self, processes):
        """Ends everything, because what is missing in a recording is in the log then, and counts that."""
        for process in processes.started[:]:
            processes.end(process)
        log = ""
        for path in glob.glob(os.path.join(processes.folder, "*.log")):
            with open(path, errors="replace") as file:
                log += file.read()
        if " recording " not in log:
            raise NotMeasured("nothing was recorded")
        return sum(int(count) for count in re.findall(r" recording drops .*?\bdropped=(\d+)", log))

    def _memory(self, case, subject, processes):
        clients = min(case.clients - 1, descriptors() // 2 - 60)
        case = dataclasses.replace(case, clients=clients + 1)
        case = dataclasses.replace(case, load=("idle", str(clients)))
        load, pids = self.prepare(case, subject, processes)
        load.hear("ready")
        before = kernel.proportional_bytes(kernel.tree(pids))
        load.say("go")
        load.result(within=110)
        after = kernel.proportional_bytes(kernel.tree(pids))
        load.say("done")
        return {"memory": (after - before) / clients / 1024, "clients": clients}

    def _quiet(self, case, subject, processes):
        _, pids = self.prepare(case, subject, processes)
        time.sleep(1)  # start-up work is not idling
        pids = kernel.tree(pids)
        before = kernel.context_switches(pids)
        time.sleep(QUIET_SECONDS)
        return {
            "wakeups": kernel.context_switches(pids) - before,
            "rss": kernel.resident_bytes(pids) / (1 << 20),
        }

    def _start(self, case, subject, processes):
        load = Load(processes, self.program, self._words(case))
        job = self._job(case, load, processes.folder)
        [command] = subject.commands(job)
        load.say("spawn " + "\t".join([str(job.ports[0]), *command]))
        return load.result()

    def _strace(self, case, subject, processes):
        load, pids = self.prepare(case, subject, processes, count=STRACE_ROUNDS)
        load.hear("ready")
        table = os.path.join(processes.folder, "calls")
        targets = [word for pid in kernel.tree(pids) for word in ("-p", str(pid))]
        tracer = processes.start(["strace", "-f", "-c", "-o", table, *targets], stderr=subprocess.PIPE, text=True)
        if "attached" not in tracer.stderr.readline():
            raise NotMeasured("strace could not attach")
        time.sleep(0.3)  # it attaches to the other threads one by one
        load.say("go")
        rounds = load.result(within=90)["rounds"]
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=20)
        with open(table) as file:
            total = next(line.split() for line in file if line.rstrip().endswith(" total"))
        # "100.00  seconds  usecs/call  calls  [errors]  total"
        return {"calls": int(total[3]) / rounds}

    def _callgrind(self, case, subject, processes):
        fewer, more = (self._instructions(case, subject, processes, count) for count in CALLGRIND_ROUNDS)
        return {"instructions": (more - fewer) / (CALLGRIND_ROUNDS[1] - CALLGRIND_ROUNDS[0])}

    def _instructions(self, case, subject, processes, count):
        prefix = os.path.join(processes.folder, f"callgrind.{count}.")
        valgrind = ["valgrind", "--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={prefix}%p"]
        load, _ = self.prepare(case, subject, processes, count=count, prefix=valgrind)
        load.hear("ready")
        load.say("go")
        load.result(within=90)
        load.say("done")
        for process in processes.started[:]:  # the clients first, so that the children that served them finish
            processes.end(process)
        total = 0
        for path in glob.glob(prefix + "*"):
            with open(path) as file:
                total += sum(int(number) for number in re.findall(r"^(?:totals|summary): (\d+)", file.read(), re.M)[:1])
        if not total:
            raise NotMeasured("valgrind counted nothing")
        return total

    # -- starting

    def _words(self, case, count=0):
        words = [word.format(seconds=self.seconds, count=count) for word in case.load]
        return words if case.transport == "plain" else ["--transport", case.transport, *words]

    def _job(self, case, load, folder):
        kind, *targets = load.hear("endpoint").split()
        transport = case.transport.partition(":")[0]
        return Job(kind, kernel.free_ports(case.routes), targets, case.clients, folder, transport, self.certificate, case.records)

    def prepare(self, case, subject, processes, count=0, prefix=()):
        """Starts the load and the subject and connects them; returns the load and the subject's first processes."""
        load = Load(processes, self.program, self._words(case, count))
        job = self._job(case, load, processes.folder)
        commands = subject.commands(job)
        if not commands:
            load.say("connect direct")
            return load, []
        for helper, sign in subject.helpers(job):
            processes.start(helper)
            wait_for(lambda: os.path.exists(sign), f"{helper[0]} is not ready")
        started = [processes.start([*prefix, *command]) for command in commands]
        deadline = time.monotonic() + LISTEN_WITHIN * (4 if prefix else 1)
        while not kernel.listening(job.ports):
            if time.monotonic() > deadline or any(process.poll() is not None for process in started):
                raise NotMeasured("does not listen")
            time.sleep(0.01)
        load.say("connect " + " ".join(map(str, job.ports)))
        return load, [process.pid for process in started]


def wait_for(condition, failure):
    deadline = time.monotonic() + LISTEN_WITHIN
    while not condition():
        if time.monotonic() > deadline:
            raise NotMeasured(failure)
        time.sleep(0.01)


def descriptors():
    """Raises our descriptor limit as far as possible, for us and our child processes; returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
