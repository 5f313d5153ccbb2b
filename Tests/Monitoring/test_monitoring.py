"""Debian's Prometheus scrapes a gateway; the shipped alert rules and the expressions of the shipped dashboard work there."""
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request

import yaml
from kit import GUARD, ROOT, Gateway, Pty, free_port, receive, reset, until

MONITORING = ROOT / "Deploy" / "monitoring"
TOOLS = ROOT / ".build" / "monitoring" / "usr" / "bin"
RULES = [rule for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
PANELS = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
#: These have no samples here: no serial port with counters, no client that is refused or waits, no device that is away.
EMPTY = {"Errors of the line", "Refused clients", "Devices away"}


def promtool(*words, text=None, folder=None):
    done = subprocess.run(
        [TOOLS / "promtool", *words], input=text, capture_output=True, text=True, timeout=GUARD, cwd=folder)
    return done.returncode, done.stdout + done.stderr


class Prometheus:
    """A server that scrapes one gateway twice a second, with the shipped rules; `hurry` shortens their `for`."""

    def __init__(self, gateway, folder, hurry=False):
        self.port = free_port()
        rules = (MONITORING / "alerts.yaml").read_text()
        (folder / "alerts.yaml").write_text(re.sub(r"for: \d+m", "for: 1s", rules) if hurry else rules)
        (folder / "prometheus.yaml").write_text(yaml.safe_dump({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}, "rule_files": ["alerts.yaml"],
            "scrape_configs": [{"job_name": "baudway", "static_configs": [{"targets": [f"127.0.0.1:{gateway.admin}"]}]}],
        }))
        self.log = open(folder / "prometheus.log", "wb")
        self.process = subprocess.Popen(
            [TOOLS / "prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=GUARD) as answer:
            told = json.load(answer)
        assert told["status"] == "success" and not told.get("warnings"), told
        return told["data"]

    def query(self, expression):
        return self.get("query?" + urllib.parse.urlencode({"query": expression}))["result"]

    def firing(self):
        return {(a["labels"]["alertname"], a["labels"].get("route")) for a in self.get("alerts")["alerts"] if a["state"] == "firing"}

    def __enter__(self):
        def scraped():
            try:
                return any(value["value"][1] == "1" for value in self.query('up{job="baudway"}'))
            except OSError:
                assert self.process.poll() is None, "it ended: see its log"
                return False

        until(scraped, GUARD, "the first scrape")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(GUARD)
        self.log.close()


def serving(routes):
    port = free_port()
    gateway = Gateway({"admin": {"listen": f"http://127.0.0.1:{port}"}, "routes": routes})
    gateway.admin = port
    return gateway


def echo(**more):
    return {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo", **more}


def expressions():
    for panel in PANELS:
        for number, target in enumerate(panel["targets"]):
            text = target["expr"].replace("$job", "baudway").replace("$instance", ".*").replace("$route", ".*")
            yield panel["title"], number, text.replace("$__rate_interval", "10s")


def test_promtool_finds_the_rules_right_and_they_fire_when_they_should(folder):
    shutil.copy(MONITORING / "alerts.yaml", folder)
    shutil.copy(ROOT / "Tests" / "Monitoring" / "alerts.test.yaml", folder)
    code, said = promtool("check", "rules", "alerts.yaml", folder=folder)
    assert code == 0 and f"{len(RULES)} rules found" in said
    code, said = promtool("test", "rules", "alerts.test.yaml", folder=folder)
    assert code == 0, said


def test_promtool_finds_nothing_wrong_with_the_metrics():
    with serving({"a": echo()}) as gateway:
        with gateway.connect("a") as client:
            client.sendall(b"x")
            receive(client, 1)
            with urllib.request.urlopen(f"http://127.0.0.1:{gateway.admin}/metrics", timeout=GUARD) as answer:
                text = answer.read().decode()
            reset(client)
    code, said = promtool("check", "metrics", text=text)
    assert code == 0 and not said, said


def test_each_expression_of_panels_and_rules_works(folder):
    with serving({"a": echo(clients={"half-close": "100ms"})}) as gateway, Prometheus(gateway, folder) as prometheus:
        names = set(prometheus.get("label/__name__/values"))
        assert names  # rates need two scrapes
        used = {name for text in [text for *_, text in expressions()] + [rule["expr"] for rule in RULES]
                for name in re.findall(r"\b(?:baudway|process)_\w+", text)}
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway.admin}/metrics", timeout=GUARD) as answer:
            described = set(re.findall(r"^# HELP (\S+)", answer.read().decode(), re.M))
        assert used <= described | {"baudway_build_info"}, used - described
        gateway.connect("a").close()
        gateway.event("session ended")
        with gateway.connect("a") as client:
            client.sendall(b"x" * 1000)
            receive(client, 1000)
            for rule in RULES:
                prometheus.query(rule["expr"])
            for title, number, text in expressions():
                if title in EMPTY or "> 0" in text:
                    prometheus.query(text)
                else:
                    until(lambda: prometheus.query(text), GUARD, f"samples of {title}, {number}")
            reset(client)


def test_expressions_name_labels_and_words_that_there_are():
    """A mistake in one of them gives no samples, which is right for some of the panels."""
    labels = {"job", "instance", "route", "state", "direction", "ending", "reason", "lane", "error"}
    words = {"closed", "opening", "open", "waiting", "draining", "up", "down", "overrun", "buffer-overrun"}
    for text in [text for *_, text in expressions()] + [rule["expr"] for rule in RULES]:
        used = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", text))
        for part in re.findall(r"\b(?:by|without) \(([^)]*)\)", text):
            used |= set(part.split(", "))
        assert used <= labels, text
        assert {word for found in re.findall(r'\b(?:state|direction|error)=~?"([^"]*)"', text) for word in found.split("|")} <= words, text


def test_an_alert_fires_when_a_cable_is_pulled_and_ends_when_it_is_back(folder):
    link = folder / "device"
    with Pty() as pty:
        link.symlink_to(pty.path)
        route = echo(endpoint=f"tty://{link}?exclusive=no", device={"open": "always", "retry": "100ms..200ms"})
        with serving({"port": route, "calm": echo()}) as gateway, Prometheus(gateway, folder, hurry=True) as prometheus:
            gateway.event("link open", route="port")
            assert ("BaudwayDeviceAway", "port") not in prometheus.firing()
            link.unlink()
            pty.close()
            gateway.event("link lost", route="port")
            until(lambda: ("BaudwayDeviceAway", "port") in prometheus.firing(), GUARD, "the alert")
            assert not {name for name, route in prometheus.firing() if route == "calm"}
            with Pty() as other:
                link.symlink_to(other.path)
                until(lambda: ("BaudwayDeviceAway", "port") not in prometheus.firing(), GUARD, "the alert's end")


def test_an_alert_fires_when_the_configuration_has_mistakes(folder):
    with serving({"a": echo()}) as gateway, Prometheus(gateway, folder, hurry=True) as prometheus:
        assert not prometheus.firing()
        gateway.configure({"routes": {"a": {"listen": "tcp://127.0.0.1:0"}}})
        gateway.signal(1)
        until(lambda: ("BaudwayReloadFailed", None) in prometheus.firing(), GUARD, "the alert")
