"""What is compared, and how each one is started: with its best sensible options, or its defaults where the name says
so.

A subject turns a Job into the commands that serve it. Used by measure.py, bench.py and layout.py.
"""

import os
import subprocess
from dataclasses import dataclass, field, replace
from typing import Callable

from cases import CASES
from kernel import free_ports


@dataclass
class Job:
    """What a subject must serve: route i goes from ports[i] to targets[i], a port number or a pty's path."""

    kind: str  # "tcp" or "pty"
    ports: list
    targets: list
    clients: int  # the maximum at once, all routes together
    folder: str  # for configuration files
    transport: str  # the clients' transport: "plain", "tls", "ws", "wss" or "telnet"
    certificates: str  # the folder of certificate.pem, key.pem and both.pem
    records: bool = False  # what goes over ptys

    def routes(self):
        return list(zip(self.ports, self.targets))

    @property
    def is_plain(self):
        return self.transport == "plain"

    @property
    def certificate(self):
        return os.path.join(self.certificates, "certificate.pem")

    @property
    def key(self):
        return os.path.join(self.certificates, "key.pem")

    @property
    def both(self):
        return os.path.join(self.certificates, "both.pem")

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path


@dataclass
class Subject:
    name: str
    commands: Callable[[Job], list]
    version: list = field(default_factory=list)  # the command that prints it
    note: str = ""
    kinds: tuple = ("tcp", "pty")
    transports: tuple = ("plain",)
    records: bool = False  # can record what it carries
    peer: bool = True  # one of the peers that Baudway is compared with
    limits: dict = field(default_factory=dict)  # case name -> why it is not run
    # Programs that must run first, and the file that each makes when it is ready; their CPU is not the subject's.
    helpers: Callable[[Job], list] = lambda job: []

    def version_line(self):
        if not self.version:
            return ""
        done = subprocess.run(self.version, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        # socat and HAProxy print their name before the line with the version.
        return next((line for line in lines if any(c.isdigit() for c in line)), "")


def _direct(job):
    return []


def _relay(path):
    def commands(job):
        kind = {"tcp": "tcp", "pty": "tty"}[job.kind]
        return [[path] + [f"{port}={kind}:{target}" for port, target in job.routes()]]

    return commands


def _baudway(path, records=False):
    def commands(job):
        lines = ["version: 1", "control: { socket: off }"]
        if job.transport in ("tls", "wss"):
            lines.append(f"tls: {{ certificate: {job.certificate}, key: {job.key} }}")
        scheme = "tcp" if job.is_plain else job.transport
        lines.append("routes:")
        for number, (port, target) in enumerate(job.routes()):
            endpoint = f"tcp://127.0.0.1:{target}" if job.kind == "tcp" else f"tty://{target}"
            lines += [f"  r{number}:", f"    listen: {scheme}://127.0.0.1:{port}", f"    endpoint: {endpoint}"]
            if job.clients > 900:  # the default is 1000
                lines.append(f"    clients: {{ max: {job.clients + 100} }}")
            if (records or job.records) and job.kind != "tcp":  # only shared links are recorded
                lines.append(f"    capture: {{ file: '{job.folder}/r{number}.pcapng', rotate: 100MiB, keep: 2 }}")
        return [[path, "serve", job.write("baudway.yaml", "\n".join(lines) + "\n")]]

    return commands


def _gensio_layer(job, more):
    if job.transport == "telnet":
        return f"telnet(rfc2217{more}),"
    return "" if job.is_plain else f"ssl(key={job.key},cert={job.certificate}{more}),"


def _ser2net(tuned):
    def commands(job):
        # As in Debian's /etc/ser2net.yaml, without the banner, which is not part of the stream.
        buffers = "(readbuf=65536)" if tuned else ""
        more = ",readbuf=65536" if tuned else ""
        layer = _gensio_layer(job, more)
        lines = ["%YAML 1.1", "---"]
        for number, (port, target) in enumerate(job.routes()):
            if job.kind == "tcp":
                connector = f"tcp{'(nodelay,readbuf=65536)' if tuned else ''},127.0.0.1,{target}"
            else:
                connector = f"serialdev{buffers},{target},115200n81,local"
            lines += [
                f"connection: &con{number}",
                f"  accepter: {layer}tcp{'(nodelay,readbuf=65536)' if tuned else ''},127.0.0.1,{port}",
                "  enable: on",
                "  options:",
                "    kickolduser: true",
            ]
            if tuned:
                lines += ["    chardelay: false", "    dev-to-net-bufsize: 65536", "    net-to-dev-bufsize: 65536"]
            lines.append(f"  connector: {connector}")
        return [["ser2net", "-n", "-d", "-c", job.write("ser2net.yaml", "\n".join(lines) + "\n")]]

    return commands


def _gensiot(job):
    # --server serves many clients in one process, but only one route.
    commands = []
    for port, target in job.routes():
        device = (
            f"tcp(nodelay,readbuf=65536),127.0.0.1,{target}"
            if job.kind == "tcp"
            else f"serialdev(nouucplock=true,readbuf=65536),{target},115200n81,local"
        )
        accepter = f"{_gensio_layer(job, ',readbuf=65536')}tcp(nodelay,readbuf=65536),127.0.0.1,{port}"
        commands.append(["gensiot", "--server", "-a", "-i", device, accepter])
    return commands


def _socat(job):
    commands = []
    for port, target in job.routes():
        device = f"TCP:127.0.0.1:{target},nodelay" if job.kind == "tcp" else f"FILE:{target},raw,echo=0"
        listen = f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,nodelay,backlog=1024"
        if not job.is_plain:
            listen = listen.replace("TCP-", "OPENSSL-") + f",cert={job.certificate},key={job.key},verify=0"
        commands.append(["socat", "-b131072", listen, device])
    return commands


def _log_socket(job):
    return os.path.join(job.folder, "log.sock")


def _log_reader(job):
    """Reads a subject's syslog messages, as a daemon would, into a file."""
    log = os.path.join(job.folder, "messages")
    return [(["socat", "-u", "-b65536", f"UNIX-RECV:{_log_socket(job)}", f"OPEN:{log},creat,append"], _log_socket(job))]


def _haproxy(extra=""):
    def commands(job):
        # Each connection needs two descriptors: with a larger reserve it would not start with 9,900 clients.
        tls = "" if job.is_plain else f" ssl crt {job.both}"
        lines = [
            "global",
            f"  log {_log_socket(job)} local0",
            f"  maxconn {job.clients + 10}",
            extra,
            "defaults",
            "  log global",
            "  option dontlognull",
            "  mode tcp",
            "  timeout connect 5s",
            "  timeout client 1h",
            "  timeout server 1h",
        ]
        for number, (port, target) in enumerate(job.routes()):
            lines += [f"listen r{number}", f"  bind 127.0.0.1:{port}{tls}", f"  server s 127.0.0.1:{target}"]
        return [["haproxy", "-db", "-q", "-f", job.write("haproxy.cfg", "\n".join(lines) + "\n")]]

    return commands


def _nginx(extra=""):
    def commands(job):
        # Debian's defaults; two descriptors per client, and one worker may get all clients.
        user = "user root;" if os.geteuid() == 0 else ""
        tls = "" if job.is_plain else " ssl"
        keys = ""
        if tls:  # its own default does not cover TLS 1.3
            keys = f"ssl_certificate {job.certificate}; ssl_certificate_key {job.key}; ssl_protocols TLSv1.2 TLSv1.3;"
        servers = "\n".join(
            f"  server {{ listen 127.0.0.1:{port}{tls}; proxy_pass 127.0.0.1:{target}; proxy_timeout 1h; }}"
            for port, target in job.routes()
        )
        text = f"""{user}
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
worker_processes auto;
pid {job.folder}/nginx.pid;
error_log {job.folder}/error.log;
events {{ worker_connections {max(768, 2 * job.clients + 64)}; }}
stream {{
{extra}
{keys}
{servers}
}}
"""
        return [["nginx", "-e", "stderr", "-c", job.write("nginx.conf", text)]]

    return commands


def _stunnel(job):
    lines = ["foreground = yes", "pid =", "socket = l:TCP_NODELAY=1", "socket = r:TCP_NODELAY=1", "debug = 3"]
    for number, (port, target) in enumerate(job.routes()):
        lines += [
            f"[r{number}]",
            f"accept = 127.0.0.1:{port}",
            f"connect = 127.0.0.1:{target}",
            f"cert = {job.certificate}",
            f"key = {job.key}",
        ]
    return [["stunnel", job.write("stunnel.conf", "\n".join(lines) + "\n")]]


def _websockify(job):
    commands = []
    tls = ["--ssl-only", f"--cert={job.certificate}", f"--key={job.key}"] if job.transport == "wss" else []
    for port, target in job.routes():
        if job.kind == "pty":
            # It speaks TCP only, so a tuned ser2net has the device.
            behind = replace(job, ports=free_ports(1), targets=[target], transport="plain")
            commands += _ser2net(tuned=True)(behind)
            target = behind.ports[0]
        commands.append(["websockify", *tls, f"127.0.0.1:{port}", f"127.0.0.1:{target}"])
    return commands


def _websocketd(job):
    commands = []
    tls = ["--ssl", f"--sslcert={job.certificate}", f"--sslkey={job.key}"] if job.transport == "wss" else []
    for port, target in job.routes():
        device = f"TCP:127.0.0.1:{target},nodelay" if job.kind == "tcp" else f"FILE:{target},raw,echo=0"
        options = ["--address=127.0.0.1", f"--port={port}", "--binary=true", "--loglevel=error", *tls]
        commands.append(["websocketd", *options, "socat", "-b131072", "-", device])
    return commands


ONE_CLIENT = "one client per device"
TLS = ("plain", "tls")
GENSIO = ("plain", "tls", "telnet")
BULK_ONLY = "differs from the untuned one in bulk only"


def all_subjects(relay, baudways, count_tuned=False):
    """The subjects in the order of the table's columns. `baudways` is a list of (name, path).

    HAProxy and nginx are peers with their default buffers: the bars were set against these. Larger ones are shown next
    to them and count as peers only with `count_tuned`.
    """
    ser2net_limits = {case.name: ONE_CLIENT for case in CASES if case.clients > case.routes}
    bulk_only = {case.name: BULK_ONLY for case in CASES if case.load[0] != "bulk"}
    return [
        Subject("direct", _direct, note="the load generator's two ends without anything between", peer=False),
        Subject("relay", _relay(relay), note="a bare epoll relay in C (relay.c): what is reachable", peer=False),
        *(
            Subject(
                name,
                _baudway(path, records=name == "recorded"),
                [path, "--version"],
                "as shipped, its defaults",
                transports=("plain", "tls", "ws", "wss", "telnet"),
                records=True,
                peer=False,
            )
            for name, path in baudways
        ),
        Subject(
            "ser2net",
            _ser2net(tuned=False),
            ["ser2net", "-v"],
            "as installed",
            transports=GENSIO,
            limits=ser2net_limits,
        ),
        Subject(
            "ser2net-tuned",
            _ser2net(tuned=True),
            ["ser2net", "-v"],
            "no chardelay, nodelay, 64 KiB buffers",
            transports=GENSIO,
            limits=ser2net_limits,
        ),
        Subject(
            "gensiot",
            _gensiot,
            ["gensiot", "--version"],
            "`--server`, nodelay, readbuf=65536 (1 KiB otherwise); one process per pty",
            transports=GENSIO,
        ),
        Subject("socat", _socat, ["socat", "-V"], "`-b131072`, fork, nodelay, backlog 1024", transports=TLS),
        Subject("haproxy", _haproxy(), ["haproxy", "-v"], "mode tcp, all threads, a line per connection to syslog", kinds=("tcp",), transports=TLS, helpers=_log_reader),
        Subject("nginx", _nginx(), ["nginx", "-v"], "stream module, workers auto, no access log", kinds=("tcp",), transports=TLS),
        Subject("stunnel", _stunnel, ["stunnel", "-version"], "nodelay", kinds=("tcp",), transports=("tls",)),
        Subject(
            "websockify",
            _websockify,
            ["websockify", "--version"],
            "its defaults; to a pty through ser2net-tuned",
            transports=("ws", "wss"),
        ),
        Subject(
            "websocketd",
            _websocketd,
            ["websocketd", "--version"],
            "`--binary`, a socat `-b131072` for each client",
            transports=("ws", "wss"),
            limits={"idle-ws-9900": "a program for each client"},
        ),
        Subject(
            "haproxy-64k",
            _haproxy("  tune.bufsize 65536"),
            note="the same with 64 KiB buffers, bulk only",
            kinds=("tcp",),
            peer=count_tuned,
            limits=bulk_only,
            helpers=_log_reader,
        ),
        Subject(
            "nginx-64k",
            _nginx("  proxy_buffer_size 64k;"),
            note="the same with 64 KiB buffers, bulk only",
            kinds=("tcp",),
            peer=count_tuned,
            limits=bulk_only,
        ),
    ]
