"""Starts a gateway with an admin listener and users, and runs schemathesis and wapiti against it. Each must first find
something that is wrong on purpose. sys.argv[1] is a Python that has schemathesis."""
import http.server
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "EndToEnd"))
from admin import place  # noqa: E402
from kit import Gateway, Pty  # noqa: E402

TOKEN = "4f2d8c0a9b7e6d5c"
LOGIN = f"Authorization: Bearer {TOKEN}"
CASES = 10_000
# Those that wapiti 3.0.4 has and that ask no server of the internet.
MODULES = "backup,blindsql,cookieflags,crlf,csp,csrf,exec,file,htaccess,http_headers,methods,permanentxss,redirect,shellshock,sql,xss"
LOW = 1


# --- schemathesis ---


def schemathesis(python: str, location: str, folder: pathlib.Path, *words: str, quiet: bool = False) -> tuple[bool, int]:
    """Whether it found nothing, and the number of cases."""
    command = [python, "-m", "schemathesis.cli", "--no-color", "--config-file", str(HERE / "schemathesis.toml")]
    done = subprocess.run(
        [*command, "run", location, "--header", LOGIN, *words], capture_output=True, text=True, timeout=2400, cwd=folder)
    if not quiet:
        print(done.stdout[-20_000:] + done.stderr[-4000:])
    cases = re.search(r"^  (\d+) generated", done.stdout, re.M)
    return done.returncode == 0, int(cases[1]) if cases else 0


def described(python: str, base: str, folder: pathlib.Path) -> bool:
    description = f"{base}/api/v1/openapi.json"
    # A description without the status of bad content must be found to be wrong.
    answer = subprocess.run(["curl", "-s", "-H", LOGIN, description], capture_output=True, timeout=60, check=True)
    wrong = json.loads(answer.stdout)
    del wrong["paths"]["/api/v1/routes/{name}/kick"]["post"]["responses"]["422"]
    path = folder / "wrong.json"
    path.write_text(json.dumps(wrong))
    only = ["--include-path", "/api/v1/routes/{name}/kick", "-n", "10"]
    nothing, _ = schemathesis(python, str(path), folder, "--url", base, *only, quiet=True)
    if nothing:
        print("schemathesis: a status that is not described was not found")
    good, cases = schemathesis(python, description, folder)
    print(f"schemathesis: {cases} cases")
    return good and not nothing and cases >= CASES


# --- wapiti ---


def wapiti(base: str, paths: list[str], folder: pathlib.Path, modules: str) -> list[str] | None:
    """What is worse than low; None if it did not see all these pages."""
    report = folder / "wapiti.json"
    report.unlink(missing_ok=True)
    starts = [word for path in paths for word in ("-s", f"{base}{path}")]
    words = ["wapiti", "-u", f"{base}/", *starts, "-H", LOGIN, "-m", modules, "--scope", "domain", "--flush-session",
             "--no-bugreport", "-t", "30", "-v", "1", "-f", "json", "-o", str(report)]
    for name in ("session", "config"):
        words += [f"--store-{name}", str(folder / name)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1500, stdin=subprocess.DEVNULL)
    if not report.exists():
        print(done.stdout[-4000:], done.stderr[-4000:])
        return None
    whole = json.loads(report.read_text())
    findings = [(kind, item) for part in ("vulnerabilities", "anomalies") for kind, items in whole[part].items() for item in items]
    pages = re.search(r"Wapiti found (\d+) URLs", done.stdout)
    print(f"wapiti: {pages[1] if pages else 0} pages, {len(findings)} findings")
    for kind, item in findings:
        print(f"  level {item['level']}, {kind}: {item['method']} {item['path']} {item['parameter']}: {item['info']}")
    if not pages or int(pages[1]) < len(paths):
        return None
    return [kind for kind, item in findings if int(item["level"]) > LOW]


class Careless(http.server.BaseHTTPRequestHandler):
    """Repeats a parameter as HTML."""

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        content = f"<html><body>{''.join(query.get('name', ['-']))}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def scanned(base: str, folder: pathlib.Path) -> bool:
    careless = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    threading.Thread(target=careless.serve_forever, daemon=True).start()
    found = wapiti(f"http://127.0.0.1:{careless.server_port}", ["/?name=x"], folder, "xss")
    careless.shutdown()
    if not found:
        print("wapiti: the page that repeats its parameter was not found")
    paths = ["/", "/healthz", "/readyz", "/readyz?route=port", "/metrics"]
    paths += [f"/api/v1/{name}" for name in ("openapi.json", "user", "routes", "routes/port", "routes/port/log", "clients", "devices", "log")]
    worse = wapiti(base, paths, folder, MODULES)
    return bool(found) and worse == []


def main() -> int:
    users = {"ada": {"token": TOKEN, "roles": {"*": "admin"}}}
    with tempfile.TemporaryDirectory(prefix="bw-") as name, Pty() as port:
        folder = pathlib.Path(name)
        routes = {"port": {"listen": "tcp://127.0.0.1:0", "endpoint": port.url, "device": {"open": "always"}},
                  "echo": {"listen": "tcp://127.0.0.1:0", "endpoint": "sim://echo"}}
        gateway = Gateway({"admin": {"listen": "http://127.0.0.1:0"}, "users": users, "routes": routes})
        gateway.expected += 1
        with gateway:
            base = "http://%s:%d" % place(gateway)
            good = described(sys.argv[1], base, folder)
            return 0 if scanned(base, folder) and good else 1


sys.exit(main())
