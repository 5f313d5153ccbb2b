"""Starts a gateway with a TLS listener and runs sslyze and testssl.sh against it. sys.argv[1] is a Python that has
sslyze."""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "EndToEnd"))
from certificates import Authority  # noqa: E402
from kit import Gateway  # noqa: E402

# Findings about the test's certificate are not the gateway's, and testssl.sh's messages about itself are not findings.
NOT_OURS = ("cert_", "DNS_", "engine_problem", "service", "scanTime", "scanProblem", "overall_grade", "final_score", "grade_cap")
BAD = ("MEDIUM", "HIGH", "CRITICAL")


def sslyze(python: str, port: int, authority: pathlib.Path) -> bool:
    words = [python, "-W", "ignore", "-m", "sslyze", "--mozilla_config", "intermediate", "--certinfo_ca_file", str(authority)]
    done = subprocess.run([*words, f"localhost:{port}"], capture_output=True, text=True, timeout=120)
    verdict = done.stdout[done.stdout.find("COMPLIANCE"):]
    print(verdict.strip() or done.stdout + done.stderr)
    return done.returncode == 0


def testssl(port: int, folder: pathlib.Path) -> bool:
    report = folder / "testssl.json"
    # Protocols, ciphers, forward secrecy, order, defaults, vulnerabilities; no browser simulations.
    words = ["testssl", "--quiet", "--color", "0", "--warnings", "off", "--ip", "127.0.0.1", "-p", "-s", "-f", "-P", "-S", "-U"]
    subprocess.run(
        [*words, "--jsonfile", str(report), f"localhost:{port}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, timeout=400)
    items = json.loads(report.read_text())
    findings = [i for i in items if i["severity"] in BAD and not i["id"].startswith(NOT_OURS)]
    for item in findings:
        print(f"testssl.sh: {item['severity']} {item['id']}: {item['finding']}")
    print(f"testssl.sh: {len(items)} items, {len(findings)} worse than LOW")
    return len(items) > 40 and not findings


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="bw-") as name:
        folder = pathlib.Path(name)
        authority = Authority(folder)
        pair = authority.issue("localhost", "localhost", "127.0.0.1", days=(-1, 300))
        lab = {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo",
               "tls": {"certificate": str(pair.certificate), "key": str(pair.key)}}
        with Gateway({"routes": {"lab": lab}}) as gateway:
            port = gateway.address("lab")[1]
            good = sslyze(sys.argv[1], port, authority.certificate)
            return 0 if testssl(port, folder) and good else 1


sys.exit(main())
