"""TLS listeners as ordinary clients see them: OpenSSL's own, Python's, and clients that speak another protocol."""
import contextlib
import json
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
from certificates import Authority
from kit import GUARD, Gateway, Pty, connect, free_port, receive, receive_all, round_trip, run_all, until
from listener_clients import connect_tls, end_of, finish, own_address, trusting


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority):
    return authority.issue("gw.test", "gw.test", "127.0.0.1")


def tls(pair, **more) -> dict:
    return {"certificate": str(pair.certificate), "key": str(pair.key)} | {k.replace("_", "-"): str(v) for k, v in more.items()}


def route(pair, listen="tls://127.0.0.1:0", endpoint="sim://echo", **more) -> dict:
    return {"listen": listen, "endpoint": endpoint, "tls": tls(pair, **more)}


def old_device(folder, *words) -> tuple[subprocess.Popen, int]:
    """OpenSSL's server with TLS 1.2 and an RSA key; it sends each line back in reverse."""
    port, key, certificate = free_port(), str(folder / "key.pem"), str(folder / "cert.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=old"],
        check=True, capture_output=True, timeout=60)
    program = subprocess.Popen(
        ["openssl", "s_server", "-accept", str(port), "-cert", certificate, "-key", key, "-tls1_2", "-quiet", "-rev", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: is_open(port), 60, "s_server listens")
    return program, port


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


@pytest.mark.parametrize("cipher", ["AES128-SHA", "ECDHE-RSA-AES128-SHA"])
def test_an_old_device_is_reached_by_its_ciphers_and_the_log_says_so(tmp_path, cipher):
    program, port = old_device(tmp_path, "-cipher", cipher)
    url = f"tls://127.0.0.1:{port}?verify=none"
    try:
        routes = {name: {"listen": "tcp://127.0.0.1:0", "endpoint": url + more} for name, more in [
            ("usual", ""), ("old", f"&ciphers={cipher}"), ("newest", "&min-version=1.3")]}
        with Gateway({"routes": routes}) as gateway:
            with gateway.connect("old") as client:
                client.sendall(b"abc\n")
                assert receive(client, 4) == b"cba\n"
            for name, offered in ("usual", "TLS 1.2 with ECDHE-"), ("newest", "offered: TLS 1.3 with"):
                with gateway.connect(name) as client:
                    assert receive_all(client) == b""
                error = gateway.event("session ended", route=name, seconds=60)["error"]
                assert offered in error, error
                if name == "usual":
                    assert "ciphers=" in error and "cert=" in error, error
    finally:
        program.kill()
        program.wait()


class OldFront:
    """TLS 1.2 with one old cipher, in front of a server without TLS, as an old device server has it."""

    def __init__(self, pair, cipher: str):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(pair.certificate, pair.key)
        self.context.maximum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_ciphers(cipher)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target = None
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client):
        with contextlib.suppress(OSError), client, self.context.wrap_socket(client, server_side=True) as shown:
            with socket.create_connection(self.target) as server:
                while True:
                    if shown.pending() or shown in (ready := select.select([shown, server], [], [])[0]):
                        if not (data := shown.recv(4096)):
                            return
                        server.sendall(data)
                    elif server in ready:
                        if not (data := server.recv(4096)):
                            return
                        shown.sendall(data)


@pytest.mark.parametrize("scheme", ["wss", "rfc2217s"])
def test_each_kind_of_tls_endpoint_reaches_an_old_device_by_its_ciphers(authority, server, scheme):
    front = OldFront(server, "ECDHE-ECDSA-AES128-SHA")
    behind = "ws://127.0.0.1:0" if scheme == "wss" else "telnet://127.0.0.1:0"
    url = f"{scheme}://127.0.0.1:{front.port}?verify=none"
    with Pty() as device:
        routes = {name: {"listen": "tcp://127.0.0.1:0", "endpoint": url + more, "link": "per-client"} for name, more in [
            ("usual", ""), ("old", "&ciphers=ECDHE-ECDSA-AES128-SHA"), ("newest", "&min-version=1.3"),
            ("oldest", "&ciphers=ECDHE-ECDSA-AES128-SHA&min-version=1.2")]}
        routes["device"] = {"listen": behind, "endpoint": device.url}
        with Gateway({"routes": routes}) as gateway:
            url = gateway.event("listening", route="device")["listen"]
            front.target = ("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))
            for name in ("old", "oldest"):
                with gateway.connect(name) as client:
                    client.sendall(b"abc")
                    assert device.read(3) == b"abc"
                    device.write(b"cba")
                    assert receive(client, 3) == b"cba"
            for name, offered in ("usual", "TLS 1.2 with ECDHE-"), ("newest", "offered: TLS 1.3 with"):
                with gateway.connect(name) as client:
                    receive_all(client)
                error = gateway.event("session ended", route=name)["error"]
                assert offered in error, error
    front.listener.close()


def test_openssl_and_python_talk_to_a_pty(authority, server):
    with Pty() as device, Gateway({"routes": {"lab": route(server, endpoint=device.url)}}) as gateway:
        host, port = gateway.address("lab")
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = trusting(authority, minimum_version=version, maximum_version=version)
            client = connect_tls((host, port), context)
            client.sendall(b"from python")
            assert device.read(11) == b"from python"
            device.write(b"to python")
            assert receive(client, 9) == b"to python"
            finish(client)
        words = ["openssl", "s_client", "-quiet", "-connect", f"{host}:{port}", "-servername", "gw.test", "-CAfile",
                 str(authority.certificate), "-verify_return_error"]
        program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            program.stdin.write(b"from openssl\n")
            program.stdin.flush()
            assert device.read(13) == b"from openssl\n"
            device.write(b"to openssl\n")
            assert os.read(program.stdout.fileno(), 100) == b"to openssl\n"
        finally:
            program.kill()
            program.wait()
            program.stdin.close()
            program.stdout.close()
        assert all("TLS 1." in e["tls"] for e in gateway.events("session opened"))


def test_a_client_without_tls_is_answered_and_reported(authority, server):
    with Gateway({"routes": {"lab": route(server)}}) as gateway:
        for sent, answer, said in [
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 ", "received plain HTTP instead of TLS"),
            (b"SSH-2.0-OpenSSH_9\r\n", b"\x15\x03", "received SSH instead of TLS"),
            (b"\x00\x01\x02\x03\x04\x05\x06\x07", b"\x15\x03", "received unknown bytes instead"),
        ]:
            with connect(gateway.address("lab")) as client:
                client.sendall(sent)
                assert receive_all(client).startswith(answer)
        ended = [gateway.event("session ended", count=n) for n in (1, 2, 3)]
        assert [e["reason"] for e in ended] == ["protocol-error"] * 3
        assert ended[0]["error"] == "received plain HTTP instead of TLS" and ended[1]["error"].startswith("received SSH")


def test_client_certificates_decide_which_clients_are_accepted(authority, server, tmp_path):
    stranger = Authority(tmp_path, "Other CA")
    ada, late = authority.issue("ada", "ada@lab.test"), authority.issue("late", days=(-3, -1))
    eve, fake = authority.issue("eve"), stranger.issue("ada")
    authority.revoke(eve)
    config = {"routes": {"lab": route(server, client_ca=authority.certificate, crl=authority.revocations())}}
    with Gateway(config) as gateway:
        address = gateway.address("lab")
        with connect_tls(address, trusting(authority, ada)) as client:
            round_trip(client)
            assert gateway.event("session opened")["user"] == "CN=ada"
        for number, (pair, said) in enumerate([
            (None, "sent no certificate"), (late, "has expired"), (fake, "not signed by a trusted authority"), (eve, "is revoked"),
        ], 1):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                # A TLS 1.3 client finishes before the server checks its certificate: the alert arrives with the first
                # read.
                with connect_tls(address, trusting(authority, pair)) as client:
                    client.recv(1)
            ended = gateway.event("session ended", count=number, reason="login-failed")
            assert said in ended["error"], ended
        assert len(gateway.events("session opened")) == 1


def test_server_names_select_routes_that_share_a_port(authority, server, tmp_path):
    other = Authority(tmp_path, "Other CA")
    pair, ada = other.issue("b.test", "b.test", "*.c.test"), other.issue("ada")
    host, port = own_address()
    listen = f"tls://{host}:{port}?server-name="
    config = {"routes": {
        "a": route(server, listen + "gw.test", "sim://echo"),
        "b": route(pair, [listen + "B.test", listen + "*.c.test"], "sim://echo", client_ca=other.certificate),
    }}
    gateway = Gateway(config)
    with gateway:
        address = (host, port)
        with connect_tls(address, trusting(authority), "gw.test") as a:
            round_trip(a)
            assert gateway.event("session opened")["route"] == "a"
            # A session of route a does not open route b to a client that b would refuse.
            shortcut = trusting(other, check_hostname=False)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                with shortcut.wrap_socket(connect(address), server_hostname="b.test", session=None) as client:
                    client.recv(1)
            # The requested name shows which route the failure belongs to.
            assert gateway.event("session ended", reason="login-failed")["route"] == "b"
        for name in ("b.test", "any.c.test"):
            with connect_tls(address, trusting(other, ada), name) as b:
                round_trip(b)
        gateway.event("session opened", route="b", count=2)
        for name in ("x.test", None):
            with pytest.raises(ssl.SSLError, match="(?i)unrecognized"):
                connect_tls(address, trusting(authority, check_hostname=False), name)
        ended = gateway.event("session ended", count=2, reason="protocol-error")
        assert "route" not in ended and "sends no server name" in ended["error"]


def test_a_ticket_of_one_route_opens_no_other(authority, server):
    """Both use the same certificate; the second also requires one of the client."""
    host, port = own_address()
    listen = f"tls://{host}:{port}?server-name="
    gateway = Gateway({"routes": {
        "open": route(server, listen + "gw.test"),
        "shut": route(server, listen + "shut.test", client_ca=authority.certificate),
    }})
    with gateway:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = trusting(authority, check_hostname=False, maximum_version=version)
            with connect_tls((host, port), context) as client:
                round_trip(client)
                session = client.session
            again = context.wrap_socket(connect((host, port)), server_hostname="gw.test", session=session)
            with again:
                round_trip(again)
                assert again.session_reused
            with pytest.raises((ssl.SSLError, ConnectionError)):
                with context.wrap_socket(connect((host, port)), server_hostname="shut.test", session=session) as client:
                    client.recv(1)
        assert not gateway.events("session opened", route="shut")


def install(pair, folder: pathlib.Path):
    """As tools that renew certificates do: each file as a whole, one after the other."""
    for source, name in ((pair.certificate, "c.pem"), (pair.key, "k.pem")):
        shutil.copyfile(source, folder / "new")
        (folder / "new").rename(folder / name)


def shown(address, authority) -> bytes:
    with connect_tls(address, trusting(authority)) as client:
        return client.getpeercert(binary_form=True)


def installed(folder) -> bytes:
    return ssl.PEM_cert_to_DER_cert((folder / "c.pem").read_text())


@pytest.mark.heavy
def test_certificates_are_renewed_without_disturbing_clients(authority, server, tmp_path):
    """64 MiB both ways in random pieces, over one connection that survives all renewals."""
    install(server, tmp_path)
    lab = {"listen": "tls://127.0.0.1:0", "endpoint": "tcp://127.0.0.1:1", "tls": {
        "certificate": str(tmp_path / "c.pem"), "key": str(tmp_path / "k.pem")}}
    seed = random.randrange(1 << 32)
    print("seed", seed)
    size, piece = 64 << 20, random.Random(seed).randbytes(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lab["endpoint"] = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with Gateway({"routes": {"lab": lab}}) as gateway:
            address = gateway.address("lab")
            client = connect_tls(address, trusting(authority))
            server_end, _ = listener.accept()
            server_end.settimeout(GUARD)
            client.settimeout(GUARD)

            def send(end, seed):
                chance, sent = random.Random(seed), 0
                while sent < size:
                    count = min(chance.choice((1, 100, 5000, 16384, 70000)), size - sent, (1 << 20) - sent % (1 << 20))
                    start = sent % (1 << 20)
                    end.sendall(piece[start:start + count])
                    sent += count

            def take(end):
                for _ in range(size >> 20):
                    assert receive(end, 1 << 20) == piece

            def renew():
                for _ in range(3):
                    install(authority.issue("gw.test", "gw.test"), tmp_path)
                    until(lambda: shown(address, authority) == installed(tmp_path), what="the new certificate", every=0.2)

            # An SSL object may be used by one thread at a time, so the directions run one after the other, renewals in
            # parallel with each.
            run_all(lambda: send(client, seed), lambda: take(server_end), renew, seconds=4 * GUARD)
            run_all(lambda: send(server_end, seed + 1), lambda: take(client), seconds=4 * GUARD)
            gateway.event("certificates renewed")
            finish(client)
            server_end.close()


def test_a_broken_certificate_changes_nothing_and_is_reported(authority, server, tmp_path):
    install(server, tmp_path)
    lab = {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo", "tls": {
        "certificate": str(tmp_path / "c.pem"), "key": str(tmp_path / "k.pem")}}
    with Gateway({"routes": {"lab": lab}}) as gateway:
        address, before = gateway.address("lab"), installed(tmp_path)
        (tmp_path / "c.pem").write_text("nothing\n")
        assert "c.pem" in gateway.event("certificates refused")["error"]
        assert shown(address, authority) == before
        gateway.signal(signal.SIGHUP)
        assert "c.pem" in gateway.event("reloaded")["error"]
        assert shown(address, authority) == before
        # `reload` still reports the fault, though the old certificate is served.
        reload = gateway.command("reload", str(gateway.path))
        assert reload.returncode == 78 and "c.pem" in reload.stderr and "nothing changed" in reload.stdout
        told = json.loads(gateway.command("reload", "--json", str(gateway.path)).stdout)
        assert told["reloaded"] and "c.pem" in told["certificate-faults"][0]
        assert "c.pem" in gateway.command("status", str(gateway.path)).stdout
        assert "c.pem" in json.loads(gateway.command("status", "--json", str(gateway.path)).stdout)["certificate-faults"][0]
        health = gateway.command("health", str(gateway.path))
        assert health.returncode == 0 and "c.pem" in json.loads(health.stdout)["certificate-faults"][0]
        install(authority.issue("gw.test", "gw.test"), tmp_path)
        until(lambda: shown(address, authority) == installed(tmp_path), what="the new certificate", every=0.1)
        reload = gateway.command("reload", str(gateway.path))
        assert (reload.returncode, reload.stderr) == (0, "")
        assert "certificate-faults" not in gateway.command("health", str(gateway.path)).stdout
        assert "not applied" not in gateway.command("status", str(gateway.path)).stdout


def test_a_reload_with_an_unusable_certificate_is_reported(authority, server, tmp_path):
    other = authority.issue("other.test", "other.test")
    config = lambda key: {"routes": {"lab": {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo", "tls": {
        "certificate": str(server.certificate), "key": str(key)}}}}
    with Gateway(config(server.key)) as gateway:
        address = gateway.address("lab")
        gateway.configure(config(other.key))
        reload = gateway.command("reload", str(gateway.path))
        assert reload.returncode == 78 and "lab: tls." in reload.stdout and "does not belong" in reload.stderr
        with connect_tls(address, trusting(authority)) as client:
            round_trip(client)
        gateway.configure(config(server.key))
        assert gateway.command("reload", str(gateway.path)).returncode == 0
        assert "certificate-faults" not in gateway.command("health", str(gateway.path)).stdout


def test_a_reload_does_not_renew_an_unchanged_certificate(authority, server, tmp_path):
    """One file for both, so that a single replacement is the only change."""
    both = tmp_path / "both.pem"

    def place(pair):
        (tmp_path / "new").write_text(pair.certificate.read_text() + pair.key.read_text())
        (tmp_path / "new").rename(both)

    place(server)
    lab = {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo", "tls": {"certificate": str(both), "key": str(both)}}
    with Gateway({"routes": {"lab": lab}}) as gateway:
        address = gateway.address("lab")
        for number in (1, 2):
            gateway.signal(signal.SIGHUP)
            gateway.event("reloaded", count=number)
        new = authority.issue("gw.test", "gw.test")
        place(new)
        wanted = ssl.PEM_cert_to_DER_cert(new.certificate.read_text())
        until(lambda: shown(address, authority) == wanted, what="the new certificate", every=0.1)
        gateway.signal(signal.SIGHUP)
        gateway.event("reloaded", count=3)
        gateway.event("certificates renewed")
        assert len(gateway.events("certificates renewed")) == 1


def test_a_missing_certificate_is_awaited(authority, server, tmp_path):
    lab = {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo", "tls": {
        "certificate": str(tmp_path / "c.pem"), "key": str(tmp_path / "k.pem")}}
    with Gateway({"routes": {"lab": lab}}, ready=0) as gateway:
        assert "c.pem" in gateway.event("certificates refused")["error"]
        assert "waits" in gateway.command("status", str(gateway.path)).stdout
        install(server, tmp_path)
        with connect_tls(gateway.address("lab"), trusting(authority)) as client:
            round_trip(client)


def test_a_denied_client_gets_an_alert_before_any_handshake(authority, server):
    config = {"routes": {"lab": {**route(server), "clients": {"deny": ["127.0.0.1"]}}}}
    with Gateway(config) as gateway:
        with pytest.raises(ssl.SSLError, match="(?i)access denied"):
            connect_tls(gateway.address("lab"), trusting(authority))
        assert gateway.event("session ended")["reason"] == "denied"


def test_a_reload_changes_the_kind_of_a_listener_on_one_port(authority, server):
    host, port = own_address()
    kinds = ["tls", "tcp", "wss", "tls", "ws", "tcp"]
    config = lambda kind: {"routes": {"lab": {"listen": f"{kind}://{host}:{port}", "endpoint": "sim://echo"} | (
        {"tls": tls(server)} if kind in ("tls", "wss") else {})}}
    gateway = Gateway(config(kinds[0]))
    with gateway:
        for number, kind in enumerate(kinds[1:], 1):
            gateway.configure(config(kind))
            gateway.signal(signal.SIGHUP)
            gateway.event("reloaded", count=number)
            assert gateway.event("listening", count=number + 1)["listen"].startswith(f"{kind}://")
        assert not gateway.events("listener waiting")
        with connect((host, port)) as client:
            round_trip(client)


def test_a_broken_certificate_is_logged_once_for_all_its_listeners(authority, server, tmp_path):
    install(server, tmp_path)
    files = {"certificate": str(tmp_path / "c.pem"), "key": str(tmp_path / "k.pem")}
    routes = {f"lab-{n}": {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo", "tls": files} for n in range(5)}
    with Gateway({"routes": routes}) as gateway:
        for text in ("nothing\n", "nothing at all\n"):
            (tmp_path / "c.pem").write_text(text)
            gateway.event("certificates refused")
            time.sleep(1)  # for lines that must not come
            for _ in range(2):
                assert gateway.command("reload", str(gateway.path)).returncode == 78
        assert len(gateway.events("certificates refused")) == 1
        install(authority.issue("gw.test", "gw.test"), tmp_path)
        until(lambda: "not applied" not in gateway.command("status", str(gateway.path)).stdout, what="mended", every=0.1)
        assert len(gateway.events("certificates renewed")) <= 2  # certificate and key are two changes
        (tmp_path / "c.pem").write_text("nothing\n")
        gateway.event("certificates refused", count=2)


def test_a_client_whose_certificate_is_revoked_is_disconnected_and_others_stay(authority, server, tmp_path, quick):
    ada, bob = authority.issue("ada"), authority.issue("bob")
    crl = tmp_path / "crl.pem"
    crl.write_bytes(authority.revocations().read_bytes())
    checks = {**tls(server), "client-ca": str(authority.certificate), "crl": str(crl)}
    config = {"routes": {"lab": {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo", "tls": checks}}}
    with Gateway(config) as gateway:
        address = gateway.address("lab")
        one, other = (connect_tls(address, trusting(authority, who)) for who in (ada, bob))
        round_trip(one)
        round_trip(other)
        authority.revoke(ada)
        new = tmp_path / "new.pem"
        new.write_bytes(authority.revocations().read_bytes())
        new.rename(crl)
        start = time.monotonic()
        ended = gateway.event("session ended")
        quick(time.monotonic() - start, 5, "from the new list of revocations")
        assert (ended["reason"], ended["user"]) == ("denied", "CN=ada") and "is revoked" in ended["error"]
        assert end_of(one) == "end"
        round_trip(other)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            round_trip(connect_tls(address, trusting(authority, ada)))
        finish(other)


@pytest.mark.waits
def test_a_client_is_disconnected_when_its_certificate_expires(authority, server):
    soon = authority.issue("soon", days=(-1, 10 / 86400))
    checks = {**tls(server), "client-ca": str(authority.certificate)}
    with Gateway({"routes": {"lab": {"listen": "tls://127.0.0.1:0", "endpoint": "sim://echo", "tls": checks}}}) as gateway:
        client = connect_tls(gateway.address("lab"), trusting(authority, soon))
        round_trip(client)
        ended = gateway.event("session ended")
        assert ended["reason"] == "denied" and "has expired" in ended["error"]
        assert end_of(client) == "end"
