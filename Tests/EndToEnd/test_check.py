"""What `check` reports beyond the file itself: unusable certificates, and listeners that are more open than the roles
suggest."""
import pytest
from certificates import Authority
from kit import Gateway


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def check(text: str):
    gateway = Gateway({"routes": {}})
    gateway.path.write_text(text)
    gateway.path.chmod(0o600)  # it may contain secrets
    done = gateway.command("check", str(gateway.path))
    return done.returncode, done.stderr.replace(f"{gateway.path}:", ""), done.stdout


def route(tls: str, listen="tls://127.0.0.1:0", top="") -> str:
    return f"{top}routes:\n  lab:\n    listen: {listen}\n    endpoint: sim://echo\n    tls:\n" + "".join(
        f"      {line}\n" for line in tls.splitlines())


def test_valid_files_are_accepted(authority):
    pair, authority_file, lists = authority.issue("gw.test", "gw.test"), authority.certificate, authority.revocations()
    code, said, table = check(route(
        f"certificate: {pair.certificate}\nkey: {pair.key}\nclient-ca: {authority_file}\ncrl: {lists}"))
    assert (code, said) == (0, "") and "client-ca" in table


def test_each_unusable_file_is_reported_with_its_position(authority, tmp_path):
    pair, other = authority.issue("gw.test", "gw.test"), authority.issue("other.test", "other.test")
    broken, missing = tmp_path / "broken.pem", tmp_path / "missing.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    good = f"certificate: {pair.certificate}\nkey: {pair.key}\n"
    for tls, place, words in [
        (f"certificate: {missing}\nkey: {pair.key}", "6:7: routes.lab.tls.certificate: ", "missing.pem"),
        (f"certificate: {broken}\nkey: {pair.key}", "6:7: routes.lab.tls.certificate: ", "broken.pem"),
        (f"certificate: {pair.certificate}\nkey: {missing}", "7:7: routes.lab.tls.key: ", "missing.pem"),
        (f"certificate: {pair.certificate}\nkey: {other.key}", "7:7: routes.lab.tls.key: ", "does not belong"),
        (good + f"client-ca: {missing}", "8:7: routes.lab.tls.client-ca: ", "missing.pem"),
        (good + f"client-ca: {authority.certificate}\ncrl: {broken}", "9:7: routes.lab.tls.crl: ", "broken.pem"),
        (good + "ciphers: NONSENSE", "8:7: routes.lab.tls.ciphers: ", "NONSENSE"),
        # A valid file of another kind is refused too.
        (good + f"client-ca: {pair.key}", "8:7: routes.lab.tls.client-ca: ", "no certificate"),
        (good + f"client-ca: {authority.certificate}\ncrl: {authority.certificate}", "9:7: routes.lab.tls.crl: ",
         "no revocation list"),
        (good + f"certificates: [{{ certificate: {other.certificate}, key: {pair.key} }}]",
         f"8:{39 + len(str(other.certificate))}: routes.lab.tls.certificates.key: ", "does not belong"),
    ]:
        code, said, table = check(route(tls))
        assert (code, table) == (78, ""), tls
        assert said.startswith(place) and words in said, (tls, said)
    # All mistakes at once.
    code, said, _ = check(route(
        good + f"client-ca: {missing}\ncertificates: [{{ certificate: {broken}, key: {pair.key} }}]"))
    assert code == 78 and len(said.splitlines()) == 2 and "broken.pem" in said and "missing.pem" in said


def test_each_unusable_file_of_an_endpoint_is_reported(authority, tmp_path):
    pair, missing = authority.issue("gw.test", "gw.test"), tmp_path / "missing.pem"

    def said(*parameters):
        lab = "routes:\n  lab:\n    listen: tcp://127.0.0.1:0\n    endpoint: "
        return check(f"{lab}tls://127.0.0.1:1?{'&'.join(parameters)}\n")[:2]

    ca, good = f"ca={authority.certificate}", [f"cert={pair.certificate}", f"key={pair.key}"]
    assert said(ca, *good) == (0, "")
    for parameters, words in [
        ([f"ca={missing}", *good], ["missing.pem"]), ([ca, f"cert={missing}", good[1]], ["missing.pem"]),
        ([ca, good[0], f"key={missing}"], ["missing.pem"]), ([ca, good[0], f"key={pair.certificate}"], ["private key"]),
        ([f"ca={pair.key}", f"cert={missing}", f"key={missing}"], ["missing.pem", "no certificate"]),
        ([ca, "min-version=1.3", "ciphers=AES128-SHA:TLS_AES_128_GCM_SHA256"],
         ["uses none of these ciphers: AES128-SHA; allow TLS 1.2, or name ciphers of TLS 1.3"]),
    ]:
        code, text = said(*parameters)
        lines = text.splitlines()
        assert code == 78 and len(lines) == len(words), (parameters, text)
        for line, word in zip(lines, words):
            assert line.startswith("4:15: routes.lab.endpoint: ") and word in line, (parameters, line)


def test_ciphers_that_tls_1_3_never_uses_are_a_warning_at_a_listener(authority):
    pair = authority.issue("gw.test", "gw.test")
    tls = f"certificate: {pair.certificate}\nkey: {pair.key}\nmin-version: '1.3'\nciphers: "
    assert check(route(tls + "TLS_AES_128_GCM_SHA256"))[:2] == (0, "")
    code, said, _ = check(route(tls + "ECDHE-ECDSA-AES128-GCM-SHA256"))
    assert code == 0 and "warning: TLS 1.3 alone is allowed (min-version), and uses none of these ciphers: ECDHE-ECDSA-" in said, said


def test_settings_in_a_port_name_are_an_error():
    lab = "routes:\n  lab:\n    listen: tcp://127.0.0.1:0\n    endpoint: "
    for name in ("/dev/ttyUSB0:9600", "/dev/ttyUSB0,9600", "/dev/ttyUSB0,9600,8N1", "/dev/ttyUSB0@9600"):
        code, said, _ = check(f"{lab}tty://{name}\n")
        assert code == 78 and said.startswith("4:33: routes.lab.endpoint: '"), said
        assert "did you mean 'tty:///dev/ttyUSB0?baud=9600'?" in said
    assert check(f"{lab}tty:///dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0\n")[:2] == (0, "")


def test_an_endpoint_that_may_be_the_routes_own_listener_is_a_warning():
    lab = "routes:\n  lab: { listen: 'tcp://127.0.0.1:4001', endpoint: 'tcp://localhost:%d' }\n"
    code, said, _ = check(lab % 4001)
    assert code == 0 and "routes.lab.endpoint: warning: leads back to the route's own listener" in said, said
    assert check(lab % 4002)[:2] == (0, "")


def test_routes_that_lead_back_to_themselves_are_a_warning():
    import socket
    own = socket.gethostname()
    code, said, _ = check("routes:\n  lab: { listen: 'tcp://:4001', endpoint: 'tcp://%s:4001' }\n" % own)
    assert code == 0 and "leads back to the route's own listener" in said, said
    for listener, endpoint in [
        ("tcp://127.0.0.1:4001", "tcp://0.0.0.0:4001"), ("tcp://:4001", "tcp://[::]:4001"), ("tcp://[::1]:4001", "tcp://[::]:4001"),
        ("tcp://0.0.0.0:4001", "tcp://[::ffff:127.0.0.1]:4001"), ("tcp://0.0.0.0:4001", "tcp://0.0.0.0:4001"),
        ("ws://127.0.0.1:4001/gps", "ws://127.0.0.1:4001/gps/"),
    ]:
        said = check(f"routes:\n  lab: {{ listen: '{listener}', endpoint: '{endpoint}' }}\n")[1]
        assert "leads back to the route's own listener" in said, (listener, endpoint, said)
    for listener, endpoint in [("tcp://[::1]:4001", "tcp://0.0.0.0:4001"), ("ws://127.0.0.1:4001/a", "ws://0.0.0.0:4001/b")]:
        assert check(f"routes:\n  lab: {{ listen: '{listener}', endpoint: '{endpoint}' }}\n")[:2] == (0, "")
    circle = "routes:\n" + "".join(
        "  %s: { listen: 'tcp://127.0.0.1:%d', endpoint: 'tcp://127.0.0.1:%d' }\n" % route
        for route in (("a", 4001, 4002), ("b", 4002, 4003), ("c", 4003, 4001), ("proxy", 4004, 4001)))
    code, said, _ = check(circle)
    assert code == 0 and said.count("leads back to this route, by way of 'b' (line ") == 1 and said.count("warning") == 1, said
    assert check(circle.replace("127.0.0.1:4001' }", "127.0.0.1:4009' }"))[:2] == (0, "")
    files = "routes:\n  a: { listen: 'pty:///run/a', endpoint: 'unix:///run/b' }\n  b: { listen: 'unix:///run/b', endpoint: 'tty:///run/a' }\n"
    assert "leads back to this route, by way of 'b'" in check(files)[1]


def test_an_ignored_path_is_a_warning_also_in_the_log():
    lab = "log: { format: json }\nroutes:\n  lab: { listen: 'tcp://127.0.0.1:0', endpoint: 'tcp://127.0.0.1:1/foo' }\n"
    words = "routes.lab.endpoint: warning: tcp takes no path: '/foo' is ignored; write tcp://127.0.0.1:1"
    code, said, table = check(lab)
    assert (code, said) == (0, f"3:67: {words}\n") and "endpoint: tcp://127.0.0.1:1\n" in table
    with Gateway({"routes": {"lab": {"listen": "tcp://127.0.0.1:0", "endpoint": "tcp://127.0.0.1:1/foo"}}}) as gateway:
        entry = gateway.event("configuration in doubt")
        assert entry["level"] == "warning" and entry["error"].startswith(str(gateway.path)) and entry["error"].endswith(words)


def test_an_expired_certificate_is_a_warning(authority):
    late = authority.issue("late", days=(-3, -1))
    code, said, table = check(route(f"certificate: {late.certificate}\nkey: {late.key}"))
    assert code == 0 and said.startswith("6:7: routes.lab.tls.certificate: warning: ") and "expired" in said and table


def test_roles_that_a_listener_cannot_enforce_are_a_warning():
    users = "users: { ada: { token: token-of-ada-0123, roles: { lab: monitor } } }\n"
    lab = users + "routes:\n  lab:\n    endpoint: sim://echo\n    listen: ["
    code, said, _ = check(lab + "'ws://127.0.0.1:0/lab', 'tcp://127.0.0.1:0']\n")
    assert code == 0 and said.startswith("5:38: routes.lab.listen: warning: users have roles") and "role=monitor" in said
    for quiet in ["'ws://127.0.0.1:0/lab'", "'tcp://127.0.0.1:0?role=monitor'", "'unix:///tmp/x'"]:
        assert check(lab + quiet + "]\n")[:2] == (0, ""), quiet
    assert check(lab.replace("lab: monitor", "other: monitor").replace("routes:", "routes:\n  other: { listen: "
        "'unix:///tmp/y', endpoint: 'sim://sink' }") + "'tcp://127.0.0.1:0']\n")[:2] == (0, "")


def test_a_proxy_listener_without_allowed_proxies_is_an_error():
    lab = "routes:\n  lab:\n    endpoint: sim://echo\n    listen: 'tcp://127.0.0.1:0?proxy-protocol=required'\n"
    for top in ("", "proxies: []\n"):
        code, said, _ = check(top + lab)
        assert code == 78 and "routes.lab.listen: can accept no client" in said and "proxies: [127.0.0.1]" in said
    assert check("proxies: [127.0.0.1]\n" + lab)[:2] == (0, "")
